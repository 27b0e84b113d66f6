"""Answers of a Prometheus put together to samples and scrape targets. Pure.

Of a member that exports a name in several spellings the preferred one counts. Where a page is scraped twice (two jobs,
a pair of servers) one scrape counts: the one with more series, by name among equals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import msgspec

from checks.metrics.aliases import Spelling
from checks.metrics.promql import SCRAPER_LABELS
from checks.metrics.scope import Scope
from checks.metrics.text import Labels, printable
from checks.metrics.view import Sample, ScrapeTarget


class Row(msgspec.Struct, frozen=True):
    """One series of a result list: `value` of an instant vector, `values` of a range."""

    metric: dict[str, str] = {}
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []

    def number(self) -> float | None:
        """The value; None where it is missing or not finite."""
        try:
            number = float(self.value[1]) if self.value is not None else math.nan
        except ValueError:
            return None
        return number if math.isfinite(number) else None


_DECODER = msgspec.json.Decoder(list[Row])


def rows_of(text: str) -> list[Row]:
    """Raises ValueError for what is no result list."""
    return _DECODER.decode(text)


@dataclass(slots=True)
class _Found:
    value: float | None = None
    increase: float | None = None


@dataclass(slots=True)
class Assembly:
    """Collects rows of one name after the other; `samples` gives what counts."""

    scope: Scope
    _found: dict[tuple[str, str], dict[tuple[int, str], dict[Labels, dict[Labels, _Found]]]] = field(
        default_factory=dict
    )

    def add(self, spelled: str, spelling: Spelling, rows: Iterable[Row], *, increase: bool) -> None:
        for row in rows:
            member, number = self.scope.member_of(row.metric), row.number()
            if member is None or number is None:
                continue
            scraper: list[tuple[str, str]] = []
            kept: list[tuple[str, str]] = []
            for name, value in row.metric.items():
                if value and name in SCRAPER_LABELS:
                    scraper.append((name, value))
                elif value and name not in self.scope.place:
                    kept.append((name, printable(value)))
            spellings = self._found.setdefault((spelling.canonical, member), {})
            series = spellings.setdefault((spelling.rank, spelled), {}).setdefault(tuple(sorted(scraper)), {})
            found = series.setdefault(tuple(sorted(kept)), _Found())
            if increase:
                found.increase = (found.increase or 0.0) + number
            else:
                found.value = (found.value or 0.0) + number

    def samples(self, restarted: Iterable[str] = ()) -> dict[str, tuple[Sample, ...]]:
        """By canonical name. A series that grew in the window and is gone now has the value 0."""
        anew = set(restarted)
        shared: dict[Labels, dict[str, str]] = {}
        out: dict[str, list[Sample]] = {}
        for (canonical, member), spellings in sorted(self._found.items()):
            (_, spelled), scrapes = min(spellings.items())
            _, series = min(scrapes.items(), key=lambda one: (-len(one[1]), one[0]))
            for labels, found in sorted(series.items()):
                sample = Sample(
                    name=canonical,
                    member=member,
                    labels=shared.setdefault(labels, dict(labels)),
                    value=found.value or 0.0,
                    increase=found.increase,
                    reset=member in anew and found.increase is not None,
                    spelled=spelled,
                )
                out.setdefault(canonical, []).append(sample)
        return {name: tuple(found) for name, found in out.items()}


def targets_of(
    scope: Scope, ups: Iterable[Row], ages: Iterable[Row], with_samples: Iterable[str]
) -> Mapping[str, ScrapeTarget]:
    """What is known of each member's scrapes.

    A member with samples is up if any of its targets is: another may be a port without metrics. Without samples it is
    down if any target is.
    """
    states: dict[str, list[float]] = {}
    for row in ups:
        if (member := scope.member_of(row.metric)) and (number := row.number()) is not None:
            states.setdefault(member, []).append(number)
    newest: dict[str, float] = {}
    for row in ages:
        if (member := scope.member_of(row.metric)) and (number := row.number()) is not None:
            newest[member] = min(max(0.0, number), newest.get(member, math.inf))
    heard = {*with_samples, *newest}
    return {
        member: ScrapeTarget(
            member,
            (max if member in heard else min)(states[member]) if member in states else None,
            newest.get(member),
        )
        for member in sorted({*states, *newest})
    }


def interval_of(rows: Sequence[Row]) -> float | None:
    """The usual distance of a series' samples in seconds; None with fewer than two."""
    for row in rows:
        times = [at for at, _ in row.values]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        if gaps:
            return median(gaps)
    return None
