"""Writes docs/checks/: a page a check and an index, from the checks themselves and from what their tests make them say.

    python scripts/check_pages.py              write the pages
    python scripts/check_pages.py --examples   first run the tests of the checks and keep the worst that each one said
    python scripts/check_pages.py --check      write nothing; exit code 1 if a page is not up to date

Text by hand goes into docs/checks/_more/KVnnn.md, which is put into the page (index.md: into the index). Examples are
kept in _examples.json, so that pages need no test run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from checks.catalogue.registry import ALL  # noqa: E402
from checks.metrics.queries import expressions  # noqa: E402
from checks.model import Check, Finding, Status  # noqa: E402
from checks.report.explain import WHY, in_order, parts, stacks  # noqa: E402

PAGES = ROOT / "docs" / "checks"
EXAMPLES = PAGES / "_examples.json"
MORE = PAGES / "_more"
_INDEX = MORE / "index.md"
_WORST = (Status.FAIL, Status.WARN, Status.ERROR)
_TESTS = "tests/checks/catalogue"


class Listener:
    """Plugin of a test run: keeps the worst finding of each check, of equals the one with most evidence."""

    def __init__(self) -> None:
        self.heard: dict[str, list[Finding]] = defaultdict(list)

    def pytest_configure(self) -> None:
        from tests.checks import build

        asked = build.findings

        def listening(check_id: str, of: Any) -> list[Finding]:
            found = asked(check_id, of)
            self.heard[check_id] += found
            return found

        build.findings = listening

    def examples(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for check, findings in sorted(self.heard.items()):
            bad = [one for one in findings if one.status in _WORST]
            if bad:
                worst = min(
                    bad, key=lambda one: (_WORST.index(one.status), -len(one.evidence), one.message, one.target)
                )
                found[check] = {
                    "status": str(worst.status),
                    "target": str(worst.target),
                    "message": worst.message,
                    "evidence": [f"{one.source} {one.where}: {one.text}" for one in worst.evidence[:3]],
                }
        return found


def listen() -> dict[str, dict[str, Any]]:
    """Runs the tests of the checks and returns an example a check. Exits where a test fails."""
    import pytest

    listener = Listener()
    code = pytest.main(["-q", "-p", "no:cacheprovider", str(ROOT / _TESTS)], plugins=[listener])
    if code:
        sys.exit(f"check_pages: the tests in {_TESTS} do not pass; examples are left as they are")
    return listener.examples()


def page(check: Check, example: dict[str, Any] | None) -> str:
    """The page of one check, Markdown."""
    kind = f"Section: {check.group} · at worst: {check.worst} · stacks: {stacks(check)}"
    notes = [
        *(["a pass is part of the proof that routing by cache works"] if check.proves else []),
        *(["required with `--strict`"] if check.required else []),
        *(["needs `--probe`"] if check.needs_probe else []),
    ]
    text = [f"# {check.id} {check.title}", "", kind + (f" · {', '.join(notes)}" if notes else ""), ""]
    for heading, body in parts(check, ALL):
        text += [f"## {heading}", "", _linked(_markdown(body)) if heading == "Related checks" else _markdown(body), ""]
        if heading == "When it passes, warns or fails" and example is not None:
            text += ["## What it looks like", "", "```", *_shown(check, example), "```", ""]
    if queries := expressions(check.id):
        text += ["## PromQL, for a dashboard", ""]
        for one in queries:
            text += [f"{one.title[0].upper()}{one.title[1:]}:", "", "```", one.promql, "```", ""]
    more = MORE / f"{check.id}.md"
    if more.is_file():
        text += [more.read_text(encoding="utf-8").strip(), ""]
    text += ["[All checks](README.md)", ""]
    return "\n".join(text)


def index() -> str:
    text = ["# What `kvctl validate` checks", ""]
    text += [
        f"{len(ALL)} checks. `kvctl validate --list-checks` prints this list, `--explain ID` a page. States: pass, "
        "warn, fail; skip and error say why nothing could be said.",
        "These pages are made from the checks by `make check-pages`.",
        "",
    ]
    for group, checks in groupby(in_order(ALL), lambda one: one.group):
        text += [f"## {group}", "", WHY[group], "", "| check | what | at worst | stacks |", "|---|---|---|---|"]
        text += [f"| [{one.id}]({one.id}.md) | {one.title} | {one.worst} | {stacks(one)} |" for one in checks]
        text.append("")
    text += [_INDEX.read_text(encoding="utf-8").strip(), ""]
    return "\n".join(text)


def pages() -> dict[str, str]:
    """All files of docs/checks by name."""
    examples = json.loads(EXAMPLES.read_text(encoding="utf-8")) if EXAMPLES.is_file() else {}
    return {"README.md": index(), **{f"{one.id}.md": page(one, examples.get(one.id)) for one in ALL}}


def stale() -> list[str]:
    """Names of pages that are missing, differ, or belong to no check."""
    wanted = pages()
    found = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def write() -> list[str]:
    """Brings docs/checks up to date; returns what changed."""
    changed = stale()
    wanted = pages()
    PAGES.mkdir(parents=True, exist_ok=True)
    for name in changed:
        if name in wanted:
            _replace(PAGES / name, wanted[name])
        else:
            (PAGES / name).unlink()
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--examples", action="store_true", help="run the tests of the checks for fresh examples")
    parser.add_argument("--check", action="store_true", help="only say which pages are not up to date")
    options = parser.parse_args()
    if options.check:
        if names := stale():
            sys.exit(f"check_pages: not up to date: {', '.join(names)}; run `make check-pages`")
        return
    if options.examples:
        PAGES.mkdir(parents=True, exist_ok=True)
        _replace(EXAMPLES, json.dumps(listen(), indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    changed = write()
    print(f"{len(changed)} pages changed, {len(ALL)} checks")


def _shown(check: Check, example: dict[str, Any]) -> list[str]:
    mark = {"fail": "×", "warn": "‼", "error": "×"}[example["status"]]
    who = "" if example["target"] == "fleet" else f"{example['target']}: "
    lines = [f"{mark} {check.id} {check.title}: {who}{example['message']}"]
    return [*lines, *(f"    {one}" for one in example["evidence"])]


def _markdown(text: str) -> str:
    """Paragraphs as they are; one with line breaks (a file) in a code block. `<` would be markup."""
    found = []
    for paragraph in text.split("\n\n"):
        if "\n" in paragraph.strip():
            found.append(f"```yaml\n{paragraph.strip()}\n```")
        else:
            found.append(paragraph.strip().replace("<", "&lt;"))
    return "\n\n".join(found)


def _linked(text: str) -> str:
    """Ids as links."""
    for one in ALL:
        text = text.replace(one.id, f"[{one.id}]({one.id}.md)")
    return text


def _replace(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    Path(file.name).replace(path)


if __name__ == "__main__":
    main()
