"""The marked block of a page: what is replaced, what stays, and a page without marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.marked import NoMarks, replace_block


def page(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text, "utf-8")
    return path


def test_only_what_stands_between_the_marks_is_replaced(tmp_path: Path) -> None:
    path = page(tmp_path, "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n<!-- y: begin -->\n<!-- y: end -->\n")
    replace_block(path, "x", "new\nlines\n\n")
    wanted = "a\n<!-- x: begin -->\nnew\nlines\n<!-- x: end -->\nb\n<!-- y: begin -->\n<!-- y: end -->\n"
    assert path.read_text("utf-8") == wanted


def test_a_second_time_gives_the_same_page(tmp_path: Path) -> None:
    path = page(tmp_path, "<!-- x: begin --><!-- x: end -->")
    replace_block(path, "x", "new")
    once = path.read_text("utf-8")
    replace_block(path, "x", "new")
    assert path.read_text("utf-8") == once


@pytest.mark.parametrize("text", ["", "<!-- x: begin -->", "<!-- x: end -->\n<!-- x: begin -->"])
def test_a_page_without_its_marks_is_left_alone(tmp_path: Path, text: str) -> None:
    path = page(tmp_path, text)
    with pytest.raises(NoMarks, match="no block between"):
        replace_block(path, "x", "new")
    assert path.read_text("utf-8") == text
    assert [one.name for one in tmp_path.iterdir()] == ["page.md"]
