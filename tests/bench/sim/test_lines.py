"""The shapes of log lines, and where they go."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path

import pytest

from bench.sim.lines import Lines, LogFile, LogStream
from bench.sim.styles import style_named


class Kept:
    def __init__(self) -> None:
        self.records: list[str] = []

    def write(self, record: str) -> None:
        self.records.append(record)

    def close(self) -> None:
        pass


def written(style: str) -> tuple[Lines, Kept]:
    sink = Kept()
    return Lines(style_named(style), sink), sink


def test_lmcache_colours_its_head_and_its_place() -> None:
    lines, sink = written("lmcache-0.5.6")
    lines.lmcache("WARNING", "hello", "a.py:1:b.c")
    head = r"\x1b\[33;20m\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] LMCache WARNING:\x1b\[0m"
    shape = head + r" hello \x1b\[3m\(a.py:1:b.c\)\x1b\[0m"
    assert re.fullmatch(shape, sink.records[0])


def test_an_old_vllm_puts_the_process_before_every_line_of_a_record_of_lmcache() -> None:
    lines, sink = written("lmcache-0.4.3")
    lines.lmcache("ERROR", "one\ntwo", "a.py:1:b.c")
    first, second = sink.records[0].split("\n")
    assert re.match(r"\(EngineCore_DP0 pid=\d+\) \x1b\[31;20m\[", first)
    assert re.fullmatch(r"\(EngineCore_DP0 pid=\d+\) two \x1b\[3m\(a.py:1:b.c\)\x1b\[0m", second)


def test_vllm_repeats_its_head_on_every_line() -> None:
    lines, sink = written("lmcache-0.5.6")
    lines.vllm("one\ntwo", "core.py:133")
    head = r"\(EngineCore pid=\d+\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[core.py:133\] "
    assert [bool(re.fullmatch(head + word, line)) for word, line in zip(("one", "two"), sink.records, strict=True)] == [
        True,
        True,
    ]


def test_the_router_has_neither_colour_nor_process() -> None:
    lines, sink = written("lmcache-0.4.3")
    lines.router("INFO", "hello", "a.py:1:b")
    assert re.fullmatch(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] INFO: hello \(a.py:1:b\)", sink.records[0])


def test_a_plain_record_has_the_level_alone() -> None:
    lines, sink = written("hyperpod")
    lines.plain("DEBUG", "hello")
    assert sink.records == ["DEBUG: hello"]


def test_a_file_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("old\n")
    sink = LogFile(path)
    sink.write("new")
    sink.close()
    assert path.read_text() == "new\n"


def test_kubelet_timestamps_precede_every_physical_line(tmp_path: Path) -> None:
    sink = LogFile(tmp_path / "a.log", timestamps=True)
    sink.write("one\ntwo")
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z "
    assert re.fullmatch(f"{stamp}one\n{stamp}two\n", (tmp_path / "a.log").read_text())
    sink.close()


def test_a_full_file_is_rotated_once(tmp_path: Path) -> None:
    sink = LogFile(tmp_path / "a.log", rotate_bytes=8)
    for word in ("first", "second", "third"):
        sink.write(word)
    sink.close()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.log": "third\n", "a.log.1": "second\n"}


def test_a_file_that_cannot_be_written_any_more_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = LogFile(tmp_path / "a.log", rotate_bytes=4)
    sink.write("one")
    (tmp_path / "a.log").unlink()
    with caplog.at_level(logging.ERROR):
        sink.write("two")
        sink.write("three")
    assert len(caplog.records) == 1
    assert "a.log" in caplog.text


def test_a_stream_tells_containers_apart() -> None:
    stream = io.StringIO()
    sink = LogStream(stream, prefix="[pod/sim-1/vllm] ")
    sink.write("one\ntwo")
    sink.close()
    assert stream.getvalue() == "[pod/sim-1/vllm] one\n[pod/sim-1/vllm] two\n"


def test_a_closed_stream_ends_the_log_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    sink = LogStream(stream)
    stream.close()
    with caplog.at_level(logging.ERROR):
        sink.write("one")
        sink.write("two")
    assert len(caplog.records) == 1
