"""docs/checks: a page a check, up to date with the checks."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from checks.catalogue.registry import ALL
from checks.model import Group
from checks.report.explain import WHY, parts

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_pages", ROOT / "scripts" / "check_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_the_pages_are_up_to_date(script: ModuleType) -> None:
    assert script.stale() == [], "run `make check-pages`"


def test_each_check_has_a_page_and_a_row_of_the_index(script: ModuleType) -> None:
    folder = ROOT / "docs" / "checks"
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert [one.id for one in ALL if not (folder / f"{one.id}.md").is_file()] == []
    assert [one.id for one in ALL if f"| [{one.id}]({one.id}.md) | {one.title} |" not in index] == []


def test_a_page_has_what_the_check_reads_its_rule_its_hint_and_its_example(script: ModuleType) -> None:
    one = next(check for check in ALL if check.id == "KV004")
    example = {
        "status": "fail",
        "target": "Pod w-0.prod",
        "message": "it ran out of memory",
        "evidence": ["pod w-0: x"],
    }
    text = script.page(one, example)
    for heading, body in parts(one, ALL):
        assert f"## {heading}\n" in text
        assert heading == "Related checks" or body.split("\n", 1)[0] in text
    assert "× KV004 Pods are well: Pod w-0.prod: it ran out of memory\n    pod w-0: x\n" in text


def test_an_old_page_of_no_check_is_stale(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "PAGES", tmp_path)
    script.write()
    (tmp_path / "KV000.md").write_text("old")
    assert script.stale() == ["KV000.md"]
    script.write()
    assert script.stale() == []


def test_hand_written_text_is_of_a_check(script: ModuleType) -> None:
    known = {"index", *(one.id for one in ALL)}
    assert [path.name for path in script.MORE.glob("*") if path.stem not in known or path.suffix != ".md"] == []


def test_every_section_says_why_it_matters() -> None:
    assert set(WHY) == set(Group)
