"""Container text to a `LogView`: lines to records, records to matched patterns.

Pure: no I/O, no clock. The stages, in order: overdrawn progress bars, escape sequences and control characters, the
kubelet's timestamp, vLLM's process prefix, the header of whoever wrote the line, continuation lines, redaction,
patterns. About 9 MB/s on one core. What a log may take in memory is bounded: see `KEPT_*`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate

from checks.logs.begin import begins_with_start
from checks.logs.patterns import Patterns
from checks.logs.view import LogView, Match, Record
from checks.numerals import loads
from checks.redact import clean, redact, suspects
from checks.thresholds import Thresholds

RECORD_LINES = 400
RECORD_CHARACTERS = 64 * 1024
MAX_RECORDS = 500_000
"""More lines than any limit on a log's bytes lets through, unless most are empty."""
KEPT_OF_PATTERN = {"worker": 1_000, "any": 1_000, "router": 50_000}
"""The newest matches of one pattern that are kept, by the role in whose log it stands: all workers' logs are held at
once, and what routers say of each worker must be complete."""
KEPT_AT_ENDS = 1_000
"""Records of no note are kept if they are among so many at the log's beginning or end."""
GAP = "[kvctl: the lines between head and tail were not read]"

STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,12})?(?:Z|[+-]\d\d:\d\d))(?: |$)")
_PROCESS = re.compile(r"\(([^()]{1,80}?) pid=(\d{1,10})\) ?")
_LEVEL = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_HEADER = re.compile(
    rf"\[(?P<time1>\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d,\d{{3}})\] (?:(?P<lmcache>LMCache) )?(?P<level1>{_LEVEL}):(?: |$)"
    rf"|(?P<vllm>{_LEVEL}) (?P<time2>\d\d-\d\d \d\d:\d\d:\d\d) \[?[^\]\s]{{1,200}}:\d{{1,7}}\](?: |$)"
    rf"|(?P<bare>{_LEVEL}):(?P<padding> +)"
    rf"|(?P<time4>\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d,\d{{3}}) (?P<kvctl>{_LEVEL}) +"
)
_SOURCE = re.compile(r" \([\w.]{1,200}\.py:\d{1,7}:[\w.]{1,300}\)")
_LOUD = frozenset({"WARNING", "WARN", "ERROR", "CRITICAL", "FATAL"})
_BATCH = 64
_CHAINED = ("During handling of the above", "The above exception was")


def read_log(
    text: str,
    *,
    where: str,
    started_at: float | None,
    patterns: Patterns,
    limit_reached: bool = False,
    head_complete_s: float | None = None,
) -> LogView:
    """Reads one container's log.

    Args:
        text: what the kubelet returned (with `timestamps=true`), or a file's text; may hold anything.
        where: for evidence.
        started_at: when the container started, epoch seconds; None if unknown.
        patterns: what to look for.
        limit_reached: the source had more than it was let return.
        head_complete_s: seconds from the container's start to its first line; None: the threshold of that name.

    The head is complete when the first kubelet timestamp is no later than that. Without timestamps or start time, when
    the first lines show a program's start before any line of its running (`checks.logs.begin`).
    """
    reader = _Reader(patterns)
    lines = clean(_last_drawn(text)).split("\n")
    if lines and not lines[-1]:
        lines.pop()
    for line in lines:
        reader.feed(line)
    records, matches = reader.close()
    if head_complete_s is None:
        head_complete_s = Thresholds.load().head_complete_s
    first = _epoch(stamp.group(1)) if lines and (stamp := STAMP.match(lines[0])) else None
    if first is not None and started_at is not None:
        complete = first - started_at <= head_complete_s
    else:
        complete = begins_with_start(lines)
    return LogView(
        records=records,
        matches=matches,
        head_complete=complete,
        where=where,
        lines=len(lines),
        unread_bytes=limit_reached or reader.full,
        dropped=reader.dropped,
    )


def merge(head: str, tail: str) -> str:
    """One text of the oldest and the newest part of a log, without the lines that both hold.

    A line is the same where its kubelet timestamp and text are. The last line of `head` goes if it was cut off. Where
    the parts do not touch, the line `GAP` stands between them, so that no record reaches across.
    """
    if not head or not tail:
        return head or tail
    first, second = head.split("\n"), tail.split("\n")
    cut = first.pop()
    if cut and not any(line.startswith(cut) for line in second):
        first.append(cut)
    known = {line for line in first if STAMP.match(line)}
    new = [line for line in second if line not in known]
    return "\n".join((*first, *([GAP] if len(new) == len(second) else []), *new))


def _last_drawn(text: str) -> str:
    """Each line as a terminal would show it in the end: of a progress bar, what stands after its last return."""
    if "\r" not in text:
        return text
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(_last_part(line) if "\r" in line else line for line in lines)


def _last_part(line: str) -> str:
    stamp = STAMP.match(line)
    return (stamp.group() if stamp else "") + next((part for part in reversed(line.split("\r")) if part), "")


def _epoch(stamp: str) -> float | None:
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError):  # the 31st of February, the year 0
        return None


@dataclass(slots=True)
class _Open:
    """A record that may still grow."""

    at: int
    """Its place among all records."""
    parts: list[str]
    level: str
    component: str
    time: str
    printed_time: str
    process: str
    headed: bool
    size: int = 0
    clipped: bool = False
    ended: bool = False
    in_traceback: bool = False

    def record(self, message: str) -> Record:
        return Record(
            message=message,
            level=self.level,
            component=self.component,
            time=self.time,
            at=_epoch(self.time) if self.time else None,
            printed_time=self.printed_time,
            process=self.process,
            clipped=self.clipped,
        )

    def add(self, text: str) -> None:
        """A continuation line. The source suffix ends the record; so does the last line of a traceback of its own."""
        if (stripped := _without_source(text)) is not text:
            text, self.ended = stripped, True
        if len(self.parts) >= RECORD_LINES or self.size + len(text) >= RECORD_CHARACTERS:
            self.clipped = True
            return
        self.parts.append(text)
        self.size += len(text) + 1

    def continues(self, text: str) -> bool:
        """A line without a header belongs to this record."""
        if self.ended:
            return False
        if self.headed or not text or text[0] in " \t":
            return True
        if self.in_traceback:
            self.in_traceback = text.startswith("Traceback (most recent call last)")
            return True
        if text.startswith(_CHAINED):
            self.in_traceback = True
            return True
        return False


def _without_source(text: str) -> str:
    """Without LMCache's and the router's ` (file.py:12:logger)` at the end; the same object where there is none."""
    if text.endswith(")") and (at := text.rfind(" (")) >= 0 and _SOURCE.fullmatch(text, at):
        return text[:at]
    return text


@dataclass(slots=True)
class _Reader:
    """Lines in, records and matches out."""

    patterns: Patterns
    full: bool = False
    """More records than MAX_RECORDS: the rest was not read."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Matches that were found and not kept, by pattern."""
    _open: dict[str, _Open] = field(default_factory=dict)
    """By process prefix; '' holds lines without one."""
    _count: int = 0
    _head: list[tuple[int, Record]] = field(default_factory=list)
    _latest: deque[tuple[_Open, Record | str]] = field(default_factory=lambda: deque(maxlen=KEPT_AT_ENDS))
    """With the redacted message, or the record where there is one already."""
    _found: dict[str, deque[tuple[int, Match]]] = field(default_factory=dict)
    _complete: list[_Open] = field(default_factory=list)
    """Up to _BATCH records that wait for redaction and patterns."""
    _remarkable: deque[tuple[int, Record]] = field(default_factory=lambda: deque(maxlen=2 * KEPT_AT_ENDS))
    """Warnings, errors, records of several lines."""
    _first: dict[str, tuple[int, Record]] = field(default_factory=dict)
    """By component, so that it is known who wrote here."""

    def feed(self, line: str) -> None:
        if self.full:
            return
        if line == GAP:
            self._flush_all()
            return
        time, start = "", 0
        if line[4:5] == "-" and (stamp := STAMP.match(line)):
            time, start = stamp.group(1), stamp.end()
        process = ""
        if line[start : start + 1] == "(" and (prefix := _PROCESS.match(line, start)):
            process, start = f"{prefix.group(1)}:{prefix.group(2)}", prefix.end()
        if (header := _HEADER.match(line, start)) is not None:
            self._begin_headed(line[header.end() :], header, time, process)
            return
        text = line[start:] if start else line
        if text[:1] == "{" and self._begin_json(text, time, process):
            return
        current = self._open.get(process)
        if current is not None and current.continues(text):
            current.add(text)
        else:
            self._begin(text, "", "", time, "", process, headed=False)

    def close(self) -> tuple[tuple[Record, ...], Mapping[str, tuple[Match, ...]]]:
        """The records in the log's order, and the matches by pattern in the same order."""
        self._flush_all()
        latest = [(one.at, one.record(kept) if isinstance(kept, str) else kept) for one, kept in self._latest]
        kept = dict([*latest, *self._head, *self._first.values(), *self._remarkable])
        matches = {}
        for pattern, found in self._found.items():
            in_order = sorted(found, key=lambda one: one[0])
            kept.update((at, match.record) for at, match in in_order)
            matches[pattern] = tuple(match for _, match in in_order)
        return tuple(kept[at] for at in sorted(kept)), matches

    def _begin_headed(self, text: str, header: re.Match[str], time: str, process: str) -> None:
        kind = header.lastgroup
        if kind == "level1":
            component = "lmcache" if header["lmcache"] else "router"
            level, printed = header["level1"], header["time1"]
        elif kind == "time2":
            component, level, printed = "vllm", header["vllm"], header["time2"]
        elif kind == "padding":
            # uvicorn, which pads its levels, is nobody's record; AWS's images put one space.
            component, level, printed = "aws" if header["padding"] == " " else "", header["bare"], ""
        else:
            component, level, printed = "kvctl", header["kvctl"], header["time4"]
        self._begin(text, level, component, time, printed, process, headed=True)

    def _begin_json(self, text: str, time: str, process: str) -> bool:
        """A line of a JSON logger: an object with a level and a message."""
        try:
            data = loads(text)
        except ValueError:
            return False
        if not isinstance(data, dict):
            return False
        message, level = data.get("message", data.get("msg")), data.get("level")
        if not isinstance(message, str) or not isinstance(level, str):
            return False
        printed = data.get("timestamp", data.get("ts", ""))
        more = [str(data[key]) for key in ("error", "exception") if data.get(key)]
        lines = clean("\n".join([message, *more])).split("\n")
        self._begin(lines[0], clean(level).upper()[:20], "json", time, clean(str(printed))[:40], process, headed=True)
        for line in lines[1:]:
            self._open[process].add(line)
        self._open[process].ended = True
        return True

    def _begin(
        self, text: str, level: str, component: str, time: str, printed: str, process: str, *, headed: bool
    ) -> None:
        self._flush(process)
        if self._count >= MAX_RECORDS:
            self.full = True
            return
        text = _without_source(text)
        clipped = len(text) > RECORD_CHARACTERS
        text = text[:RECORD_CHARACTERS]
        self._open[process] = _Open(
            at=self._count,
            parts=[text],
            level=level,
            component=component,
            time=time,
            printed_time=printed,
            process=process,
            headed=headed,
            size=len(text),
            clipped=clipped,
            in_traceback=not headed and text.startswith("Traceback (most recent call last)"),
        )
        self._count += 1

    def _flush_all(self) -> None:
        for process in list(self._open):
            self._flush(process)
        self._settle()

    def _flush(self, process: str) -> None:
        if (one := self._open.pop(process, None)) is not None:
            self._complete.append(one)
            if len(self._complete) >= _BATCH:
                self._settle()

    def _settle(self) -> None:
        """Redacts the complete records, finds their patterns, and keeps what is to be kept."""
        messages = _redacted(["\n".join(one.parts) for one in self._complete])
        noted: dict[int, Record] = {}
        for index, pattern, hit in self.patterns.find(messages):
            one = self._complete[index]
            record = noted.get(index) or noted.setdefault(index, one.record(messages[index]))
            self._keep(pattern.id, KEPT_OF_PATTERN[pattern.row.role], one.at, Match.of(pattern.id, record, hit))
        for index, (one, message) in enumerate(zip(self._complete, messages, strict=True)):
            kept = noted.get(index)
            if one.at < KEPT_AT_ENDS:
                self._head.append((one.at, kept := kept or one.record(message)))
            if one.component not in self._first:
                self._first[one.component] = (one.at, kept := kept or one.record(message))
            if len(one.parts) > 1 or one.level in _LOUD:
                self._remarkable.append((one.at, kept := kept or one.record(message)))
            self._latest.append((one, kept or message))
        self._complete.clear()

    def _keep(self, pattern: str, limit: int, at: int, match: Match) -> None:
        found = self._found.get(pattern)
        if found is None:
            found = self._found[pattern] = deque(maxlen=limit)
        if len(found) == limit:
            self.dropped[pattern] = self.dropped.get(pattern, 0) + 1
        found.append((at, match))


def _redacted(messages: list[str]) -> list[str]:
    """`redact` of each; those without a suspicious line are not looked at one by one."""
    ends = list(accumulate(len(message) + 1 for message in messages))
    for index in {bisect_right(ends, start) for start, _ in suspects("\n".join(messages))}:
        messages[index] = redact(messages[index])[:RECORD_CHARACTERS]
    return messages
