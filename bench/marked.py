"""A block of a page between two marks, written anew by a program; the rest of the page is a person's."""

from __future__ import annotations

import tempfile
from pathlib import Path


class NoMarks(ValueError):
    """The page has no such block. The message names page and marks."""


def replace_block(page: Path, name: str, text: str) -> None:
    """Puts `text` between `<!-- NAME: begin -->` and `<!-- NAME: end -->`; the page is replaced in one step.

    Raises:
        NoMarks: it has no such block.
        OSError: it cannot be read or written.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, opened, rest = page.read_text("utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise NoMarks(f"{page} has no block between '{begin}' and '{end}'")
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=page.parent, delete=False) as file:
        file.write(f"{before}{begin}\n{text.rstrip()}\n{end}{after}")
        written = Path(file.name)
    written.chmod(page.stat().st_mode)
    written.replace(page)
