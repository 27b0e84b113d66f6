"""Metrics as checks read them: canonical names, one number a question, and why a number is missing.

Filled by checks/metrics/scrape.py (two scrapes of each member's page) or checks/metrics/prometheus.py (queries).
Canonical names and their spellings stand in data/metric_aliases.yaml. Ratios are never formed in a query: a check asks
numerator and denominator apart and divides itself, so that 0/0 and no data stay different things.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from checks.model import Evidence, Reason


def window_text(seconds: float) -> str:
    """`15m`, `14s`: as PromQL writes a span."""
    whole = max(1, round(seconds))
    return f"{whole // 60}m" if whole % 60 == 0 else f"{whole}s"


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of one member."""

    name: str
    """Canonical name, as in metric_aliases.yaml; for a histogram with `_bucket`, `_sum` or `_count` appended."""
    member: str
    """`Member.key`; '' where the series cannot be put to a member."""
    labels: Mapping[str, str]
    value: float
    """The newest value."""
    increase: float | None = None
    """Over the window, resets allowed for; None for gauges or where only one value was seen."""
    reset: bool = False
    spelled: str = ""
    """The name it was found under."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One number, or why there is none. False in a condition when missing."""

    name: str
    value: float | None
    missing: Reason | None = None
    window: str = ""
    """`15m`, `14s`, `lifetime` or `now`."""
    reset: bool = False
    where: str = ""

    def __bool__(self) -> bool:
        return self.value is not None

    def or_zero(self) -> float:
        return 0.0 if self.value is None else self.value

    @property
    def lifetime(self) -> bool:
        """Since the engine started, because nothing moved in the window: old traffic dilutes it; at most a warning."""
        return self.window == "lifetime"

    def evidence(self) -> Evidence:
        shown = "no sample" if self.value is None else f"{self.value:.6g}"
        over = f" ({self.window}{', a counter was reset' if self.reset else ''})" if self.window else ""
        return Evidence("metric", self.where or "fleet", f"{self.name} = {shown}{over}")


@dataclass(frozen=True, slots=True)
class Page:
    """How one member's own /metrics answered."""

    member: str
    status: int = 0
    """HTTP status; 0: no answer."""
    families: frozenset[str] = frozenset()
    """Family names as spelled on the page."""
    problem: Reason | None = None
    message: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """What Prometheus knows of one member: `up`, age of the newest sample, both None if it has none."""

    member: str
    up: float | None = None
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class Metrics:
    """All samples of a snapshot. Empty when nothing could be read; `missing` then says why."""

    samples: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    """By canonical name."""
    window: str = ""
    """What `increase` spans: `15m` with Prometheus, the seconds between two scrapes without."""
    source: str = ""
    """prometheus · scrape · ''"""
    missing: Reason | None = None
    pages: Mapping[str, Page] = field(default_factory=dict)
    """Direct scrapes by member key; empty when none was made."""
    targets: Mapping[str, ScrapeTarget] = field(default_factory=dict)
    """By member key; empty without Prometheus."""
    scrape_interval_s: float | None = None
    mangled: bool = False
    """Some names came with `_` for `:` (an exporter renamed them)."""
    by_member: bool = True
    """Series can be put to members; False when no pod label was found: fleet ratios only."""

    def find(self, name: str, member: str | None = None, **labels: str) -> tuple[Sample, ...]:
        """Series of a canonical name, of one member (key) or all, whose labels equal those given."""
        return tuple(
            sample
            for sample in self.samples.get(name, ())
            if (member is None or sample.member == member)
            and all(sample.labels.get(label) == value for label, value in labels.items())
        )

    def has(self, names: Iterable[str], member: str | None = None) -> bool:
        return any(self.find(name, member) for name in names)

    def one_rank(self, name: str, member: str | None = None) -> dict[str, str]:
        """Labels to add to a question about requests or tokens, so that tensor-parallel ranks do not count one twice.

        LMCache counts in every rank; `worker_id="0"` where there is such a series, nothing otherwise.
        """
        return {"worker_id": "0"} if self.find(name, member, worker_id="0") else {}

    def now(self, name: str, member: str | None = None, *, how: str = "sum", **labels: str) -> Reading:
        """The newest value over the matching series; `how`: sum, min or max."""
        found = self.find(name, member, **labels)
        if not found:
            return Reading(name, None, self.missing or Reason.NO_DATA, "now", where=member or "")
        values = [sample.value for sample in found]
        value = sum(values) if how == "sum" else (min(values) if how == "min" else max(values))
        return Reading(name, value, None, "now", where=member or "")

    def increase(self, name: str, member: str | None = None, **labels: str) -> Reading:
        """Growth over the window, summed; reason NO_DATA where no series has one."""
        found = [sample for sample in self.find(name, member, **labels) if sample.increase is not None]
        if not found:
            return Reading(name, None, self.missing or Reason.NO_DATA, self.window, where=member or "")
        value = sum(sample.increase or 0.0 for sample in found)
        return Reading(name, value, None, self.window, any(sample.reset for sample in found), member or "")

    def grown(self, names: tuple[str, ...], member: str | None = None, **labels: str) -> tuple[Reading, ...]:
        """The increase of each name over one common span: the window, or the lifetime if the last name stood still.

        With direct scrapes nothing usually moves in a few seconds; the lifetime totals are then the only evidence and
        every reading says `lifetime`. The last name is the denominator. With Prometheus the window alone counts.
        """
        readings = tuple(self.increase(name, member, **labels) for name in names)
        if self.source != "scrape" or readings[-1].or_zero() > 0:
            return readings
        totals = tuple(self.now(name, member, **labels) for name in names)
        return tuple(
            Reading(one.name, one.value, one.missing, "lifetime" if one else one.window, where=one.where)
            for one in totals
        )
