"""Recordings that were damaged, made by hand, or made to do harm: one line that names the file, never more."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.model import Reason
from checks.request import CollectRequest, RequestError
from checks.sources.recording import RecordingError
from checks.sources.tape import Answer, Tape


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good recording with one log, `logs/w.head.log`."""
    with Tape.record(tmp_path / "rec", options={}, version="1") as tape:
        tape.ask("log", "w head", lambda: Answer(200, "text"))
    return tmp_path / "rec"


def asked(folder: Path) -> str:
    return Tape.replay(folder).ask("log", "w head", Answer).text


def manifest(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def entry(folder: Path, **changes: Any) -> None:
    path = folder / "index.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes) + "\n")


def instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def test_a_good_one_is_read(folder: Path) -> None:
    assert asked(folder) == "text"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"schema_version": 2}, "schema_version 2"),
        ({"schema_version": "x"}, "schema_version"),
        ({"now": 1e300}, "now"),
        ({"now": -1.0}, "now"),
        ({"now": None}, "now"),
        ({"options": []}, "options"),
    ],
)
def test_a_manifest_with_odd_values_is_refused(folder: Path, changes: dict[str, Any], named: str) -> None:
    manifest(folder, **changes)
    with pytest.raises(RecordingError, match=rf"manifest\.json.*{named}"):
        asked(folder)


@pytest.mark.parametrize(
    "make",
    [
        Path.touch,
        os.mkfifo,
        Path.mkdir,
        lambda path: path.write_bytes(b"[" * 200_000),
        lambda path: path.write_bytes(b"\0"),
    ],
)
def test_a_manifest_that_is_something_else_is_refused(folder: Path, make: Callable[[Path], object]) -> None:
    instead(folder / "manifest.json", make)
    with pytest.raises(RecordingError, match=r"manifest\.json"):
        asked(folder)


def test_a_huge_manifest_is_not_read(folder: Path) -> None:
    os.truncate(folder / "manifest.json", 1 << 30)
    with pytest.raises(RecordingError, match=r"manifest\.json is larger than 4 MiB"):
        asked(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency", 0),
        ("log_limit_bytes", -5),
        ("window_s", -1),
        ("max_log_pods", 0),
        ("timeout_s", "x"),
        ("routers", 7),
    ],
)
def test_options_out_of_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"\$\.{name}"):
        CollectRequest.of_options({name: value})


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.write_bytes(b"\xff\xfe")])
def test_an_index_that_is_something_else_is_refused(folder: Path, make: Callable[[Path], object]) -> None:
    instead(folder / "index.jsonl", make)
    with pytest.raises(RecordingError, match=r"index\.jsonl"):
        asked(folder)


def test_an_endless_line_of_the_index_is_not_read(folder: Path) -> None:
    (folder / "index.jsonl").write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(RecordingError, match=r"index\.jsonl line 1 is longer"):
        asked(folder)


@pytest.mark.parametrize("changes", [{"kind": "shell"}, {"status": "x"}, {"at": 1e300}, {"at": -1.0}, {"more": 1}])
def test_a_line_with_odd_values_is_named(folder: Path, changes: dict[str, Any]) -> None:
    entry(folder, **changes)
    with pytest.raises(RecordingError, match=r"index\.jsonl line 1"):
        asked(folder)


@pytest.mark.parametrize(
    "name", ["../../../../etc/passwd", "/etc/passwd", "logs/../../x", "a\0b", "x" * 5000, "logs/none"]
)
def test_a_file_outside_or_impossible_is_refused(folder: Path, name: str) -> None:
    entry(folder, file=name)
    with pytest.raises(RecordingError):
        asked(folder)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to("/etc/passwd"),
        lambda path: path.symlink_to(path.name),
        os.mkfifo,
        Path.mkdir,
    ],
)
def test_a_file_that_is_a_link_to_elsewhere_a_pipe_or_a_folder_is_refused(
    folder: Path, make: Callable[[Path], object]
) -> None:
    instead(folder / "logs" / "w.head.log", make)
    with pytest.raises(RecordingError):
        asked(folder)


def test_a_cut_off_index_still_tells_what_it_holds(folder: Path) -> None:
    path = folder / "index.jsonl"
    path.write_text(path.read_text() + '{"kind": "log", "ke')
    with pytest.raises(RecordingError, match=r"index\.jsonl line 2"):
        asked(folder)


def test_an_answer_that_is_not_there_is_no_data(folder: Path) -> None:
    assert Tape.replay(folder).ask("log", "other", Answer).error is Reason.NO_DATA


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with (
        pytest.raises(RecordingError, match=r"cannot write a recording to .*No space left"),
        Tape.record(tmp_path / "rec", options={}, version="1") as tape,
    ):
        tape.ask("log", "w head", lambda: Answer(200, "text"))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_at_the_end_is_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with (
        pytest.raises(RecordingError, match=r"cannot write a recording to .*No space left"),
        Tape.record(tmp_path / "rec", options={}, version="1") as tape,
    ):
        tape.ask("log", "w head", lambda: Answer(200, "text"))
        monkeypatch.setattr(Path, "write_text", full)
    assert list(tmp_path.iterdir()) == []
