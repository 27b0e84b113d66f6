"""Any bytes as a log: records stay clean and bounded; two overlapping parts make the whole."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from checks.logs.patterns import Patterns
from checks.logs.read import GAP, RECORD_CHARACTERS, RECORD_LINES, merge, read_log

STARTED = datetime(2026, 8, 1, 10, tzinfo=UTC).timestamp()
LMCACHE = "[2026-08-01 10:00:01,120] LMCache INFO: "


def stamped(seconds: float, text: str = "INFO: x") -> str:
    return datetime.fromtimestamp(STARTED + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ ") + text


PIECES = st.sampled_from(
    [
        LMCACHE,
        "2026-08-01T10:00:02Z ",
        "(A pid=1) ",
        "\n",
        "\r",
        "\x1b[31m",
        "\x1b]8;;http://x\x07",
        "\x9b1m",
        "{",
        '{"level": "INFO", "message": "\\u001b[2J"}\n',
        " (a.py:1:b)\n",
        "Traceback (most recent call last):\n",
        "  File x\n",
        "\u202e",
        GAP,
        "redis://:hunter2@r:1 ",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(PIECES, st.text(max_size=20), st.binary(max_size=20)), max_size=30))
def test_any_bytes_give_clean_bounded_records(parts: list[str | bytes]) -> None:
    text = "".join(part if isinstance(part, str) else part.decode("utf-8", "replace") for part in parts)
    for record in read_log(text, where="x", started_at=STARTED, patterns=Patterns.load()).records:
        assert record.message.count("\n") < RECORD_LINES
        assert len(record.message) <= RECORD_CHARACTERS
        shown = record.message + record.level + record.component + record.process + record.time + record.printed_time
        assert not [one for one in shown if _is_control(one)]
        assert "://:hunter2@" not in record.message


def _is_control(letter: str) -> bool:
    """What a terminal may act upon: C0 but newline and tab, DEL, C1, bidirectional controls."""
    code = ord(letter)
    if letter in "\n\t":
        return False
    return (
        code < 32
        or 127 <= code < 160
        or letter in "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(alphabet="ab \n", max_size=30), max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_a_log_read_in_two_overlapping_parts_is_the_whole_log(texts: list[str], one: int, other: int) -> None:
    log = [stamped(number, f"INFO: {text}".replace("\n", " ")) for number, text in enumerate(texts)]
    start, end = min(one, other, len(log)), min(max(one, other), len(log))
    if start == end:
        return
    assert merge("\n".join(log[:end]) + "\n", "\n".join(log[start:])).split("\n") == log
