"""Where a log begins: whether its start was read."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from checks.logs.patterns import Patterns
from checks.logs.read import read_log
from checks.logs.view import LogView

STARTED = datetime(2026, 8, 1, 10, tzinfo=UTC).timestamp()
LMCACHE = "[2026-08-01 10:00:01,120] LMCache INFO: "


def read(text: str, started_at: float | None = STARTED, **more: bool) -> LogView:
    return read_log(text, where="prod/w-0/vllm", started_at=started_at, patterns=Patterns.load(), **more)


def stamped(seconds: float, text: str = "INFO: x") -> str:
    return datetime.fromtimestamp(STARTED + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ ") + text


@pytest.mark.parametrize(("seconds", "complete"), [(-3, True), (0, True), (60, True), (61, False)])
def test_the_head_is_complete_if_the_first_line_came_soon_after_the_start(seconds: float, complete: bool) -> None:
    assert read(stamped(seconds)).head_complete is complete


def test_how_soon_can_be_told() -> None:
    view = read_log(
        stamped(20), where="x", started_at=STARTED, patterns=Patterns.load(), head_complete_s=10
    )  # fmt: skip
    assert not view.head_complete


def test_an_empty_log_has_no_complete_head() -> None:
    assert not read("").head_complete
    assert read("").lines == 0


BANNER = "(APIServer pid=1) INFO 08-01 10:00:05 [api_utils.py:286] non-default args: {'model': 'm'}"


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        (BANNER, True),
        (f"Triton is not installed\n{BANNER}", True),
        ("[2026-08-01 10:00:01,120] INFO: Initializing kvaware routing logic (a.py:1:b)", True),
        ("INFO:     Started server process [7]", True),
        (f"{LMCACHE}Reqid: a, Total tokens 7, LMCache hit tokens: 0\n{BANNER}", False),
        ('INFO:     10.0.0.1:5 - "GET /health HTTP/1.1" 200 OK\n' + BANNER, False),
        (f"{LMCACHE}Registered instance-worker ('x', 0) with URL 10.0.0.1:1", False),
        ("\n".join(["x"] * 500 + [BANNER]), False),
    ],
)
def test_without_timestamps_the_head_is_complete_if_the_first_lines_show_a_start(text: str, complete: bool) -> None:
    assert read(text).head_complete is complete


def test_without_a_start_time_the_first_lines_decide_too() -> None:
    assert read(stamped(0, BANNER), started_at=None).head_complete
    assert not read(stamped(0), started_at=None).head_complete


def test_a_limit_that_was_reached_is_told() -> None:
    assert read("x", limit_reached=True).unread_bytes
    assert not read("x").unread_bytes
