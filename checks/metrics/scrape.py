"""Metrics from two scrapes of each member's own page. Pure: the texts and their times are given.

Growth is what the second page has over the first. A counter that fell, or a new start time of the process, means that
the process began anew: growth is then what the second page shows. Where several processes share their counters no page
tells a start time; a container that restarted within these seconds has served less, so that its counters fell. A series
that is only on the second page was born between the two. Where nothing moved, `Metrics.grown` falls back on the totals.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from checks.metrics.aliases import Aliases, Owner, Spelling
from checks.metrics.text import Exposition, Labels, parse
from checks.metrics.view import Metrics, Page, Sample, window_text
from checks.model import Reason
from checks.sources.tape import Answer

START_TOLERANCE_S = 1.0
"""Start times of one process differ by rounding only."""


@dataclass(frozen=True, slots=True)
class PageText:
    """Answer of one member's /metrics."""

    text: str = ""
    at: float = 0.0
    """Epoch seconds."""
    status: int = 200
    problem: Reason | None = None
    message: str = ""
    url: str = ""

    @classmethod
    def of(cls, answer: Answer, url: str = "") -> PageText:
        """An answer of the tape; a status that is no success becomes a problem."""
        problem, message = answer.error, answer.message
        if problem is None and not 200 <= answer.status < 300:
            problem = Reason.RBAC if answer.status in (401, 403) else Reason.UNREACHABLE
            message = message or f"HTTP {answer.status}"
        return cls(answer.text, answer.at, answer.status, problem, message, url)


@dataclass(slots=True)
class _Values:
    """Wanted samples of one page: by canonical name and spelling, then by labels."""

    by_name: dict[str, dict[str, dict[Labels, float]]] = field(default_factory=dict)

    def started(self) -> float | None:
        for spelled in self.by_name.get("process_start", {}).values():
            return max(spelled.values(), default=None)
        return None


def from_pages(first: Mapping[str, PageText], second: Mapping[str, PageText]) -> Metrics:
    """Samples of all members, by key.

    A member that only answered once has values but no growth. `missing` is the commonest problem where nobody answered.
    """
    aliases = Aliases.load()
    samples: dict[str, list[Sample]] = {}
    pages: dict[str, Page] = {}
    gaps: list[float] = []
    shared: dict[Labels, dict[str, str]] = {}
    mangled = False
    for member in sorted({*first, *second}):
        latest = second[member] if member in second else first[member]
        now, then = _read(latest, aliases), None
        pages[member] = Page(member, latest.status, now.families, now.problem, now.message, latest.url)
        if member in first and member in second:
            before = _read(first[member], aliases)
            if now.problem is not None:
                now = before
            elif before.problem is None:
                then = _values(before, aliases)
                gaps.append(latest.at - first[member].at)
        if now.problem is not None:
            continue
        for sample, spelling in _samples(member, then, _values(now, aliases), aliases, shared):
            samples.setdefault(sample.name, []).append(sample)
            mangled = mangled or spelling.mangled
    return Metrics(
        samples={name: tuple(found) for name, found in samples.items()},
        window=window_text(median(gaps)) if gaps else "",
        source="scrape",
        missing=_missing(pages),
        pages=pages,
        mangled=mangled,
    )


def _read(page: PageText, aliases: Aliases) -> Exposition:
    if page.problem is not None:
        return Exposition(problem=page.problem, message=page.message)
    return parse(page.text, aliases.by_spelling)


def _missing(pages: Mapping[str, Page]) -> Reason | None:
    problems = Counter(page.problem for page in pages.values() if page.problem is not None)
    if not pages:
        return Reason.NO_DATA
    return problems.most_common(1)[0][0] if len(pages) == sum(problems.values()) else None


def _values(read: Exposition, aliases: Aliases) -> _Values:
    """Samples that count: finite, not a router's copy. A counter that stands twice is added up, of a gauge the last."""
    values = _Values()
    for series in read.series:
        spelling = aliases.by_spelling[series.name]
        alias = spelling.alias
        if not math.isfinite(series.value) or (alias.grows and series.value < 0):
            continue
        if alias.copied_by_routers and any(name == "server" and value for name, value in series.labels):
            continue
        found = values.by_name.setdefault(spelling.canonical, {}).setdefault(series.name, {})
        found[series.labels] = found.get(series.labels, 0.0) + series.value if alias.grows else series.value
    return values


def _samples(
    member: str,
    then: _Values | None,
    now: _Values,
    aliases: Aliases,
    shared: dict[Labels, dict[str, str]],
) -> list[tuple[Sample, Spelling]]:
    """Samples of one member. `shared` holds the labels of all members: a thousand replicas have the same ones."""
    chosen: list[tuple[Spelling, str, dict[Labels, float]]] = []
    for spelled_values in now.by_name.values():
        spelled = min(spelled_values, key=lambda one: aliases.by_spelling[one].rank)
        chosen.append((aliases.by_spelling[spelled], spelled, spelled_values[spelled]))
    anew = _began_anew(then, now, chosen)
    out: list[tuple[Sample, Spelling]] = []
    for spelling, spelled, series in chosen:
        old = {} if then is None else then.by_name.get(spelling.canonical, {}).get(spelled, {})
        reset = anew is None or spelling.alias.owner in anew
        for labels, value in series.items():
            increase = None
            if then is not None and spelling.alias.grows:
                increase = value if reset else value - old.get(labels, 0.0)
            if labels not in shared:
                shared[labels] = dict(labels)
            sample = Sample(
                name=spelling.canonical,
                member=member,
                labels=shared[labels],
                value=value,
                increase=increase,
                reset=reset and increase is not None,
                spelled=spelled,
            )
            out.append((sample, spelling))
    return out


def _began_anew(
    then: _Values | None, now: _Values, chosen: list[tuple[Spelling, str, dict[Labels, float]]]
) -> frozenset[Owner] | None:
    """Owners whose counters began anew; None: all of the member's.

    One counter that fell speaks for all of its owner: what another shows above its old value is no growth either.
    """
    if then is None:
        return frozenset()
    start_then, start_now = then.started(), now.started()
    moved = start_then is not None and start_now is not None and abs(start_now - start_then) > START_TOLERANCE_S
    if moved:
        return None
    return frozenset(
        spelling.alias.owner
        for spelling, spelled, series in chosen
        if spelling.alias.grows
        for labels, value in then.by_name.get(spelling.canonical, {}).get(spelled, {}).items()
        if series.get(labels, value) < value
    )
