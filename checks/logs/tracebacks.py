"""The last Python traceback of a log, whether its lines are one record or, as vLLM prints them, a record each. Pure."""

from __future__ import annotations

import re

from checks.logs.view import LogView, Record

_START = "Traceback (most recent call last)"
_END = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Timeout|Again)\b")
_RECORDS = 400


def last_traceback(log: LogView) -> tuple[Record, str] | None:
    """The record that begins the log's last traceback, and the traceback's text; None where there is none."""
    for at in range(len(log.records) - 1, -1, -1):
        record = log.records[at]
        start = record.message.rfind(_START)
        if start < 0:
            continue
        lines = record.message[start:].split("\n")
        following = iter(log.records[at + 1 : at + 1 + _RECORDS])
        while not any(_END.match(line) for line in lines) and (more := next(following, None)) is not None:
            if more.process == record.process:
                lines += more.message.split("\n")
        return record, "\n".join(lines)
    return None
