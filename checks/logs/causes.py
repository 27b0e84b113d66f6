"""Why LMCache failed to initialise: the reason in its log records, and the likely cause from data/causes.yaml.

Pure; the table is read once a process. A record is one line up to LMCache 0.4.2 (the reason may be empty) and a whole
traceback from 0.4.3 on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec
import yaml

from checks.compatibility import Version, satisfies

_TAIL = re.compile(r"\s*\.\s*System will operate in degraded mode.*", re.S)
_SOURCE = re.compile(r"\s*\([\w.]+\.py:\d+:[\w.]+\)\s*$")


class CauseRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of causes.yaml."""

    id: str
    match: str
    cause: str
    fix: str
    sample: str
    """A reason text that it explains."""
    versions: str = ""
    """Bounds on LMCache's version, as compatibility.satisfies reads them; '' for any."""
    see: str = ""
    """Public thread where it was seen."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A compiled row."""

    row: CauseRow
    expression: re.Pattern[str]

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def hint(self) -> str:
        """What is likely wrong and what to do, in one line."""
        see = f" ({self.row.see})" if self.row.see else ""
        return f"{self.row.cause}: {self.row.fix}{see}"

    def holds(self, version: Version | None) -> bool:
        """The row may speak of this version; one that is unknown, or only a bound, rules nothing out."""
        if not self.row.versions or version is None or not version.exact:
            return True
        return satisfies(version, self.row.versions)


def reason_of(message: str) -> str:
    """The reason in a record such as `Failed to initialize LMCacheManager components: REASON. System will operate …`.

    The whole traceback where one was printed; '' where the program gave none.
    """
    _, _, reason = message.partition(": ")
    return _SOURCE.sub("", _TAIL.sub("", reason)).strip()


def summary_of(reason: str) -> str:
    """The line that says what happened: the last one, without its full stop. '' for an empty reason."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else ""


def cause_of(reason: str, version: Version | None) -> Cause | None:
    """The likely cause, None where the table knows none.

    Rows of the version go before rows of others: a text that fits is evidence even where its bounds are wrong.
    """
    summary = summary_of(reason)
    for wanted in (True, False):
        for text in (summary, reason):
            for cause in table():
                if cause.holds(version) is wanted and cause.expression.search(text):
                    return cause
    return None


@cache
def table() -> tuple[Cause, ...]:
    """All causes in the file's order. Raises ValueError where two rows share an id."""
    text = files("checks").joinpath("data/causes.yaml").read_text(encoding="utf-8")
    rows = msgspec.convert(yaml.safe_load(text), list[CauseRow])
    if len({row.id for row in rows}) != len(rows):
        raise ValueError("causes.yaml: two rows share an id")
    return tuple(Cause(row, re.compile(row.match)) for row in rows)
