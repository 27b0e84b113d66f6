"""Reads a /metrics page: the Prometheus text format 0.0.4 and OpenMetrics, as real pages hold them.

Pure; one pass over the text, linear in its length. Tolerated: families given twice, samples without HELP or TYPE,
exemplars, timestamps, `_created` (left out), NaN and infinities, a few unreadable lines. Not a page at all (HTML, JSON,
prose) is `Reason.PARSE`. Label values come from strangers: they are made printable and cut.
The client library's own parser stops at the first odd line and splits labels by scanning back for each quote.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass

from checks.model import Reason
from checks.redact import clean

PAGE_CHARACTERS = 32 << 20
LINE_CHARACTERS = 64 << 10
SERIES_LIMIT = 100_000
"""Wanted series of one page."""
LABEL_CHARACTERS = 512

Labels = tuple[tuple[str, str], ...]
"""Sorted by name."""

_SAMPLE = re.compile(
    r'([a-zA-Z_:][\w:]*+)(?:[ \t]*+\{((?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+)\}[ \t]*+|[ \t]++)'
    r"([^ \t#]++)(?:[ \t]++[-+.\deE]++)?+(?:[ \t]++#.*+)?+[ \t\r]*+",
    re.ASCII,
)
_QUOTED_NAME = re.compile(r'\{[ \t]*+"(?:[^"\\]++|\\.)++"[ \t]*+[,}]')
_LABEL = re.compile(r'[ \t]*+([a-zA-Z_]\w*+)[ \t]*+=[ \t]*+"((?:[^"\\]++|\\.)*+)"[ \t]*+(?:,|$)', re.ASCII)
_ESCAPE = re.compile(r'\\([\\n"])')
_SUFFIXES = ("_bucket", "_count", "_sum", "_total", "_created")


@dataclass(frozen=True, slots=True)
class Series:
    """One sample as it stands on the page."""

    name: str
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Exposition:
    """What a page holds."""

    series: tuple[Series, ...] = ()
    families: frozenset[str] = frozenset()
    """Names of HELP and TYPE lines, and of samples that have neither; as spelled."""
    unreadable: int = 0
    """Lines that are neither a comment nor a sample."""
    problem: Reason | None = None
    message: str = ""


def parse(text: str, wanted: Container[str] | None = None) -> Exposition:
    """The samples whose names are in `wanted` (None: all) in the order of the page, and the names of all families.

    Of a name that is not wanted only the first line is looked at closely.
    """
    if len(text) > PAGE_CHARACTERS:
        return Exposition(problem=Reason.PARSE, message=f"the page is larger than {PAGE_CHARACTERS >> 20} MiB")
    series: list[Series] = []
    told: set[str] = set()
    names: set[str] = set()
    labels_of: dict[str, Labels] = {}
    readable = unreadable = 0
    for line in _lines(text):
        if line.startswith("#"):
            parts = line.split(None, 3)
            if len(parts) > 2 and parts[1] in ("HELP", "TYPE"):
                told.add(parts[2])
            continue
        if wanted is not None and (name := line.partition("{")[0]) in names and name not in wanted:
            readable += 1
            continue
        match = _SAMPLE.fullmatch(line) if len(line) <= LINE_CHARACTERS else None
        value = None if match is None else _number(match[3])
        if match is None or value is None:
            if _QUOTED_NAME.match(line):
                readable += 1
            else:
                unreadable += 1
            continue
        name, inside = match[1], match[2] or ""
        if wanted is None or name in wanted:
            if (labels := labels_of.get(inside)) is None:
                try:
                    labels = labels_of[inside] = _labels(inside)
                except ValueError:
                    unreadable += 1
                    continue
            if not name.endswith("_created"):
                series.append(Series(name, labels, value))
        readable += 1
        names.add(name)
        if len(series) > SERIES_LIMIT:
            return Exposition(problem=Reason.PARSE, message=f"the page has more than {SERIES_LIMIT} series of interest")
    if unreadable > readable:
        return Exposition(unreadable=unreadable, problem=Reason.PARSE, message="the answer is not a Prometheus page")
    bare = {name for name in names - told if not any(_family(name, suffix) in told for suffix in _SUFFIXES)}
    families = frozenset(told | {name for name in bare if not name.endswith("_created")})
    message = f"{unreadable} lines of the page cannot be read" if unreadable else ""
    return Exposition(tuple(series), families, unreadable, None, message)


def _lines(text: str) -> Iterator[str]:
    """Lines without their ends and leading blanks; empty ones left out. One at a time: a page may be large."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        if line := text[start:end].strip(" \t\r"):
            yield line
        start = end + 1


def _number(text: str) -> float | None:
    if "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _labels(inside: str) -> Labels:
    """Raises ValueError for what is no list of labels, or names one twice."""
    found: dict[str, str] = {}
    at = 0
    inside = inside.strip(" \t")
    while at < len(inside):
        match = _LABEL.match(inside, at)
        if match is None or match[1] in found:
            raise ValueError("labels cannot be read")
        found[match[1]] = printable(_ESCAPE.sub(_unescaped, match[2]) if "\\" in match[2] else match[2])
        at = match.end()
    return tuple(sorted(found.items()))


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def printable(value: str) -> str:
    """A label's value without control characters, at most LABEL_CHARACTERS."""
    if not value.isprintable():
        value = " ".join(clean(value).split("\n"))
    return value[:LABEL_CHARACTERS]


def _family(name: str, suffix: str) -> str:
    return name.removesuffix(suffix) if name.endswith(suffix) else ""
