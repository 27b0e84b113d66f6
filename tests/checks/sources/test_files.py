"""Logs from files."""

from __future__ import annotations

from pathlib import Path

from checks.model import Reason
from checks.sources import files


def test_a_short_file_is_all_head_and_has_no_tail(tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    path.write_text("a\nb\n")
    assert files.head(path, 100).text == "a\nb\n"
    assert files.tail(path, 100).text == ""


def test_head_and_tail_of_a_long_file_are_limited_and_the_tail_begins_a_line(tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    path.write_text("".join(f"line {number:03}\n" for number in range(100)))
    assert files.head(path, 27).text == "line 000\nline 001\nline 002\n"
    assert files.tail(path, 20).text == "line 098\nline 099\n"


def test_a_missing_file_is_gone_and_named(tmp_path: Path) -> None:
    answer = files.head(tmp_path / "none.log", 10)
    assert answer.error is Reason.GONE
    assert "none.log: no such file" in answer.message


def test_a_folder_is_not_read(tmp_path: Path) -> None:
    assert files.head(tmp_path, 10).error is Reason.UNREACHABLE


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    path.write_bytes(b"a\xff\n")
    assert files.head(path, 10).text == "a�\n"
