"""The file behind the access log, where it is none that takes all at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router.journal import log_file
from router.journal.log_file import LogFile


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_lines_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a\n")
    file = LogFile(path)
    file.write(b"b\n")
    file.write(b"c\n")
    file.close()
    assert path.read_bytes() == b"a\nb\nc\n"


def test_a_pipe_that_nobody_reads_is_an_error_and_no_wait(pipe: Path) -> None:
    with pytest.raises(OSError, match="No such device"):
        LogFile(pipe)


def test_a_reader_that_takes_nothing_is_given_up(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "_PATIENCE", 0.05)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    file = LogFile(pipe)
    with pytest.raises(TimeoutError):
        file.write(b"x" * 10_000_000)
    file.close()
    os.close(reader)


def test_a_line_that_was_cut_short_is_ended_before_the_next(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "_PATIENCE", 0.05)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    file = LogFile(pipe)
    with pytest.raises(TimeoutError):
        file.write(b"x" * 10_000_000 + b"\n")
    os.read(reader, 1 << 20)
    file.write(b"next\n")
    assert os.read(reader, 100) == b"\nnext\n"
    file.close()
    os.close(reader)


def test_a_reader_that_has_gone_is_an_error(pipe: Path) -> None:
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    file = LogFile(pipe)
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        file.write(b"line\n")
    file.close()
