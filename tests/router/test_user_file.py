"""Reading files that a user names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router.user_file import read_user_file


def test_a_regular_file_behind_a_link_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert read_user_file(tmp_path / "link", 3) == b"abc"


def test_a_file_larger_than_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abcd")
    with pytest.raises(OSError, match="more than the 3 bytes"):
        read_user_file(tmp_path / "file", 3)


def test_a_pipe_that_nobody_writes_to_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read_user_file(tmp_path / "pipe", 10)


def test_a_device_that_never_ends_is_refused() -> None:
    with pytest.raises(OSError, match="not a regular file"):
        read_user_file(Path("/dev/zero"), 10)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_user_file(tmp_path, 10)
