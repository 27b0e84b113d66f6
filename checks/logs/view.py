"""One container's log as checks read it: records, and the patterns they match, found once when the log is read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from checks.model import Evidence

EVIDENCE_CHARACTERS = 240


@dataclass(frozen=True, slots=True)
class Record:
    """One log record; continuation lines (a traceback) belong to it. All text is clean and redacted."""

    message: str
    """First line without header and source suffix, then the continuation lines, joined by newlines."""
    level: str = ""
    """Upper case; '' where the line has no header."""
    component: str = ""
    """lmcache · router · vllm · aws · kvctl · json · '' (no header, or a web server's)."""
    time: str = ""
    """Kubelet timestamp of its first line (RFC 3339), the only trusted clock; '' where there is none."""
    at: float | None = None
    """The same in epoch seconds."""
    printed_time: str = ""
    """What the program printed; for display only."""
    process: str = ""
    """vLLM's process prefix (EngineCore_DP0, Worker_TP0, APIServer) with the pid, `name:pid`."""
    clipped: bool = False


class Groups(Mapping[str, str | None]):
    """The named groups of a match, taken from the message when asked for: a busy log has tens of thousands."""

    __slots__ = ("_match",)

    def __init__(self, match: re.Match[str]) -> None:
        self._match = match

    def __getitem__(self, name: str) -> str | None:
        try:
            return self._match[name]
        except IndexError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._match.re.groupindex)

    def __len__(self) -> int:
        return len(self._match.re.groupindex)

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclass(frozen=True, slots=True)
class Match:
    """A pattern found in a record."""

    pattern: str
    record: Record
    fields: Mapping[str, str | None]
    start: int = 0
    """Where in the record's message it begins."""

    @staticmethod
    def of(pattern: str, record: Record, hit: re.Match[str]) -> Match:
        return Match(pattern, record, Groups(hit), hit.start())

    @property
    def line(self) -> str:
        """The line of the record in which it begins."""
        message = self.record.message
        end = message.find("\n", self.start)
        return message[message.rfind("\n", 0, self.start) + 1 : end if end >= 0 else len(message)]

    def __getitem__(self, name: str) -> str:
        """A named group; '' where it took no part."""
        return self.fields.get(name) or ""


@dataclass(frozen=True, slots=True)
class LogView:
    """A log that was read."""

    records: tuple[Record, ...]
    """All of them where there are few; else those of kept matches, the newest warnings, errors and records of several
    lines, and some of the log's beginning and end."""
    matches: Mapping[str, tuple[Match, ...]] = field(default_factory=dict)
    """By pattern id, in the log's order. One match a record; of very frequent patterns the newest are kept."""
    head_complete: bool = False
    """Its first line is the container's first line; only then absence of a start-up line means anything."""
    where: str = ""
    """Member key and container it was read from."""
    lines: int = 0
    unread_bytes: bool = False
    """There was more than the limit let through."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Older matches of frequent patterns that were found and not kept."""

    def all(self, *patterns: str) -> list[Match]:
        """Matches of any of the patterns, in the log's order."""
        if len(patterns) == 1:
            return list(self.matches.get(patterns[0], ()))
        order = {id(record): at for at, record in enumerate(self.records)}
        found = [match for pattern in patterns for match in self.matches.get(pattern, ())]
        return sorted(found, key=lambda match: order.get(id(match.record), 0))

    def first(self, *patterns: str) -> Match | None:
        return next(iter(self.all(*patterns)), None)

    def last(self, *patterns: str) -> Match | None:
        found = self.all(*patterns)
        return found[-1] if found else None

    def has(self, *patterns: str) -> bool:
        return any(self.matches.get(pattern) for pattern in patterns)

    def count(self, *patterns: str) -> int:
        """How many were found, kept or not."""
        return sum(len(self.matches.get(one, ())) + self.dropped.get(one, 0) for one in patterns)

    def since(self, at: float, *patterns: str) -> list[Match]:
        """Matches whose record is no older than `at` (epoch seconds); records without a time count as inside."""
        return [match for match in self.all(*patterns) if match.record.at is None or match.record.at >= at]

    def any_of_component(self, component: str) -> bool:
        return any(record.component == component for record in self.records)

    def evidence(self, match: Match) -> Evidence:
        return Evidence("log", self.where, match.line[:EVIDENCE_CHARACTERS], match.record.time)

    def lmcache_config(self) -> Mapping[str, Any]:
        """The dict of the last `LMCache Configuration: {…}` line; empty when it was not printed or cannot be read."""
        match = self.last("lmcache-configuration")
        if match is None:
            return {}
        try:
            value = ast.literal_eval(match["config"])
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return {}
        return {str(key).lower(): item for key, item in value.items()} if isinstance(value, dict) else {}
