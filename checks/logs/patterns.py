"""The log lines that mean something, from data/patterns.yaml: expression, who prints it, since and until which version.

A pattern matches a record's message only; the level is evidence, never a verdict. Compiled once a process. Where a line
has nothing to do with a pattern, a search costs one substring test.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import accumulate

import msgspec
import yaml

from checks.compatibility import Version

_NEEDLE_MIN = 5
"""Shorter needles are found in nearly every line."""
_ATOM = re.compile(r"\\.|\[[^\]]*\]")
_LITERAL = re.compile(r"(?:\\[^\w\s]|[^\\.^$*+?{}\[\]()|])*")
_WORD = re.compile(rf"[A-Za-z_]{{{_NEEDLE_MIN},}}")
_ESCAPED = re.compile(r"\\(.)")
_LEVELS = {"DEBUG": 10, "INFO": 20, "WARN": 30, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}


class PatternRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of patterns.yaml."""

    id: str
    regex: str
    component: str
    """Whose line: lmcache, router (production stack), vllm, aws, kvctl, epp, hyperpod, uvicorn."""
    role: str
    """Whose log it stands in: router, worker or any."""
    polarity: str
    """good, bad, or neutral."""
    level: str = "INFO"
    first: str = ""
    """First version of the component that prints it; '' if all that were read do."""
    last: str = ""
    """Last version that prints it; '' if the newest read still does."""
    sample: str
    """A literal line, invented values, as it comes from the container."""
    fields: dict[str, str] = {}
    """What the named groups hold in the sample."""
    note: str = ""
    needles: list[str] = []
    """Literal texts of which every match holds at least one; left out: the literal text the expression begins with."""
    also: list[str] = []
    """Ids of other patterns that the sample matches too."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled row."""

    row: PatternRow
    expression: re.Pattern[str]
    first: Version | None
    last: Version | None
    needles: tuple[str, ...]
    """Every match holds one of them. ("",): not known, so that every message is searched."""

    @staticmethod
    def compile(row: PatternRow) -> Pattern:
        needles = tuple(row.needles) or (_literal_start(row.regex),)
        if min(map(len, needles)) < _NEEDLE_MIN:
            needles = ("",)
        first = Version.parse(row.first) if row.first else None
        last = Version.parse(row.last) if row.last else None
        return Pattern(row, re.compile(row.regex), first, last, needles)

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def component(self) -> str:
        return self.row.component

    @property
    def always(self) -> bool:
        """Printed by every version that was read: its absence needs no version to be judged."""
        return self.first is None and self.last is None

    def hidden_at(self, level: str) -> bool:
        """A log at `level` does not show it. An unknown level hides nothing."""
        return _LEVELS.get(self.row.level.upper(), 20) < _LEVELS.get(level.upper(), 0)

    def printed_by(self, version: Version) -> bool:
        return (self.first is None or version >= self.first) and (self.last is None or version <= self.last)


@dataclass(frozen=True, slots=True)
class Patterns:
    """All patterns by id, in file order."""

    by_id: Mapping[str, Pattern]
    _stems: tuple[tuple[str, tuple[tuple[str, Pattern], ...]], ...] = field(init=False, repr=False)
    """A word, and the needles that hold it with their patterns: where the word is not, they need not be looked for."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_stems", _stems(self.by_id.values()))

    @staticmethod
    def load() -> Patterns:
        return _load()

    def __getitem__(self, key: str) -> Pattern:
        return self.by_id[key]

    def __iter__(self) -> Iterator[Pattern]:
        return iter(self.by_id.values())

    def find(self, messages: Sequence[str]) -> Iterator[tuple[int, Pattern, re.Match[str]]]:
        """What `expression.search` of each pattern finds in each message: index of the message, pattern, match.

        Messages hold no NUL. Looking through many at once costs half as much as one by one.
        """
        text = "\0".join(messages)
        ends = list(accumulate(len(message) + 1 for message in messages))
        found: set[tuple[int, str]] = set()
        for stem, needles in self._stems:
            if stem not in text:
                continue
            for needle, pattern in needles:
                at = text.find(needle)
                while at >= 0:
                    index = bisect_right(ends, at)
                    hit = pattern.expression.search(messages[index])
                    if hit is not None and (index, pattern.id) not in found:
                        found.add((index, pattern.id))
                        yield index, pattern, hit
                    at = text.find(needle, ends[index])


def _stems(patterns: Iterable[Pattern]) -> tuple[tuple[str, tuple[tuple[str, Pattern], ...]], ...]:
    """Words that together stand in all needles, each with the needles it stands for; greedily few."""
    missing = {(needle, pattern.id): pattern for pattern in patterns for needle in pattern.needles}
    chosen = []
    while missing:
        words = {word for needle, _ in missing for word in (needle, *_WORD.findall(needle))}
        best = max(sorted(words), key=lambda word: (sum(word in needle for needle, _ in missing), len(word)))
        covered = [key for key in missing if best in key[0]]
        chosen.append((best, tuple((key[0], missing.pop(key)) for key in covered)))
    return tuple(chosen)


@cache
def _load() -> Patterns:
    text = files("checks").joinpath("data/patterns.yaml").read_text(encoding="utf-8")
    rows = msgspec.convert(yaml.safe_load(text), list[PatternRow])
    found: dict[str, Pattern] = {}
    for row in rows:
        if row.id in found:
            raise ValueError(f"patterns.yaml: two patterns named {row.id}")
        found[row.id] = Pattern.compile(row)
    return Patterns(found)


def _literal_start(expression: str) -> str:
    """The literal text that every match of an expression begins with; '' where it is an alternation at its top."""
    depth = 0
    for letter in _ATOM.sub("", expression):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "|" and depth == 0:
            return ""
    match = _LITERAL.match(expression)
    literal = match.group() if match else ""
    if expression[len(literal) : len(literal) + 1] in tuple("*+?{"):
        literal = literal[: -2 if literal[-2:-1] == "\\" else -1]
    return _ESCAPED.sub(r"\1", literal)
