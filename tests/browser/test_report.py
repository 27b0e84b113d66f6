"""report.html in a real browser: nothing sticks out at 1280 and 400 pixels, no complaint, no request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.report.html import html
from bench.verdict import Verdict
from tests.bench.report.made import CASES, sweep
from tests.browser.chromium import Tab, tab

pytestmark = pytest.mark.timeout(300)

STICKING_OUT = """
[...document.querySelectorAll('main *')].filter(e => !e.closest('.wide') && !(e.closest('svg') && e.tagName != 'svg'))
  .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
  .map(e => e.tagName + ' ' + e.textContent.slice(0, 40))
"""
LABELS_OUTSIDE = """
[...document.querySelectorAll('svg[role=img] text')].filter(e => {
  const box = e.getBoundingClientRect(), svg = e.closest('svg').getBoundingClientRect();
  return box.left < svg.left - 1 || box.right > svg.right + 1 || box.bottom > svg.bottom + 1 })
  .map(e => e.textContent)
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with tab(tmp_path_factory.mktemp("chromium") / "profile") as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {name: html(*case()) for name, case in CASES.items() if name in SHOWN}
    empty = Verdict([], [], [], [], [], ["kv carries 9.5 requests/s (not 10; precision 5%)."], measured=True)
    made["a sweep"] = html(sweep(CASES["a pair"]()[0]), empty)
    found = {}
    for name, text in made.items():
        found[name] = folder / f"{name.replace(' ', '-')}.html"
        found[name].write_text(text, encoding="utf-8")
    return found


SHOWN = ("a pair", "five arms", "nothing answered", "stopped in the first block", "unstable")


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", [*SHOWN, "a sweep"])
def test_the_page_fits_makes_no_request_and_has_no_complaint(
    browser: Tab, pages: dict[str, Path], name: str, width: int
) -> None:
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(pages[name], width)
    assert browser.ask("window.innerWidth") == width
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(STICKING_OUT) == []
    assert browser.ask(LABELS_OUTSIDE) == []
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [pages[name].as_uri()]


def test_the_page_follows_dark_and_light(browser: Tab, pages: dict[str, Path]) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.open(pages["a pair"], 1280)
        colours = [
            browser.ask(f"getComputedStyle(document.querySelector({where!r})).{what}")
            for where, what in (
                ("body", "backgroundColor"),
                ("body", "color"),
                ("svg[role=img]", "fill"),
                (".line", "stroke"),
            )
        ]
        seen[scheme] = colours
    browser.call("Emulation.setEmulatedMedia", features=[])
    assert all(light != dark for light, dark in zip(seen["light"], seen["dark"], strict=True))


def test_paper_is_white_in_a_dark_room_too(browser: Tab, pages: dict[str, Path]) -> None:
    browser.call(
        "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    browser.open(pages["a pair"], 800)
    white = browser.ask("getComputedStyle(document.body).backgroundColor")
    browser.call("Emulation.setEmulatedMedia", media="", features=[])
    assert white == "rgb(255, 255, 255)"


def test_every_picture_is_named_for_those_who_do_not_see_it(browser: Tab, pages: dict[str, Path]) -> None:
    browser.open(pages["a pair"], 1280)
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    names = [n.get("name", {}).get("value", "") for n in tree if n.get("role", {}).get("value") in ("image", "img")]
    assert len(names) == browser.ask("document.querySelectorAll('svg[role=img]').length")
    assert all(len(name) > 20 for name in names)
