"""Logs from files."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_with_a_byte_order_mark_is_read_at_both_ends(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "w.log"
    path.write_bytes("\ufeff".encode(encoding) + "".join(f"line {at:03}\n" for at in range(100)).encode(encoding))
    assert files.head(path, 38).text == "\ufeffline 000\nline 001\n"
    assert files.tail(path, 41).text.splitlines() == ["line 098", "line 099"]


@pytest.mark.parametrize(
    ("data", "named"),
    [(gzip.compress(b"log"), "gzip"), (b"BZh91AY", "bzip2"), (b"\x28\xb5\x2f\xfdx", "zstd"), (b"a\0b", "no text")],
)
def test_what_is_no_text_is_named_and_not_read(tmp_path: Path, data: bytes, named: str) -> None:
    path = tmp_path / "w.log"
    path.write_bytes(data)
    answer = files.head(path, 100)
    assert (answer.error, answer.text) == (Reason.PARSE, "")
    assert named in answer.message
    assert files.why_no_log(path) == answer.message


def test_a_text_a_pipe_and_an_empty_file_may_be_logs(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a\n")
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    assert [files.why_no_log(tmp_path / name) for name in ("text", "empty", "pipe")] == ["", "", ""]


def test_a_folder_and_nothing_may_not(tmp_path: Path) -> None:
    assert files.why_no_log(tmp_path).endswith("is a folder")
    assert "there is no file" in files.why_no_log(tmp_path / "none")


def test_returns_alone_are_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    path.write_bytes(b"one\rtwo\r")
    assert files.head(path, 100).text == "one\ntwo\n"
