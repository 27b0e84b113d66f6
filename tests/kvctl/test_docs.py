"""README.md and docs/: every link leads somewhere, and every page is reached from the README."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))


def links(page: Path) -> list[str]:
    """Links to files and headings of this repository, without those in code."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    dead = []
    for page in PAGES:
        for link in links(page):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if not target.exists() or (anchor and anchor not in headings(target)):
                dead.append(f"{page.relative_to(ROOT)}: {link}")
    assert dead == []


def test_the_readme_links_every_page_of_docs() -> None:
    linked = {(README.parent / link.partition("#")[0]).resolve() for link in links(README)}
    assert [page.name for page in PAGES[1:] if page.resolve() not in linked] == []
