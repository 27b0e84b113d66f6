"""A table of HTML, its text escaped. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Cell:
    """Text with a class of the style sheet."""

    text: str
    kind: str


def table(head: Sequence[str], rows: Sequence[Sequence[str | Cell]], caption: str = "") -> str:
    """The first cell of a row is its heading. Scrolls sideways by itself where it is too wide."""
    cells = "".join(f"<th scope=col>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows)
    said = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<div class=wide tabindex=0><table>{said}<thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>"


def _row(cells: Sequence[str | Cell]) -> str:
    first, *rest = cells
    name = first.text if isinstance(first, Cell) else first
    return f"<th scope=row>{escape(name)}</th>" + "".join(
        f"<td class='{cell.kind}'>{escape(cell.text)}</td>" if isinstance(cell, Cell) else f"<td>{escape(cell)}</td>"
        for cell in rest
    )
