"""Metrics from a Prometheus: finds the members' labels, asks for every name that exists, puts the answers together.

Every query goes through the tape, so that a recording answers without a server. Costs two queries for each name that
the fleet exports (about eighty for vLLM with LMCache), a few at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checks.metrics import promql
from checks.metrics.aliases import Aliases
from checks.metrics.assemble import Assembly, Row, interval_of, rows_of, targets_of
from checks.metrics.scope import INSTANCE, Scope, find_scope, matcher
from checks.metrics.view import Metrics, window_text
from checks.model import Reason
from checks.snapshot import Member, Unread
from checks.sources.tape import Tape

if TYPE_CHECKING:
    from checks.sources.prometheus import Server

CONCURRENCY = 4
BUDGET_S = 60.0
"""For all queries of a run; what is not asked by then is left out and said so."""
SCRAPES_IN_WINDOW = 4
"""Growth over fewer scrapes is mostly guessed at the window's ends."""


@dataclass(slots=True)
class _Failure:
    reason: Reason
    message: str


@dataclass(slots=True)
class _Questions:
    """Asks through the tape and remembers what failed. Used from several threads; list.append is atomic."""

    tape: Tape
    server: Server
    until: float
    at: float | None = None
    """As of when: the server's clock at its first answer, so that two counters of one page never differ by a scrape."""
    asked: list[str] = field(default_factory=list)
    failures: list[_Failure] = field(default_factory=list)

    def rows(self, query: str | None) -> list[Row]:
        """The result; empty where there is none or the query failed."""
        if query is None:
            return []
        self.asked.append(query)
        if not self.tape.replaying and time.monotonic() > self.until:
            self.failures.append(_Failure(Reason.TIMEOUT, "the queries took too long; the rest was not asked"))
            return []
        answer = self.tape.ask("prometheus", query, lambda: self.server.query(query, at=self.at))
        if answer.error is not None:
            self.failures.append(_Failure(answer.error, answer.message))
            return []
        try:
            rows = rows_of(answer.text)
        except ValueError:
            message = f"Prometheus at {self.server.shown} answered with JSON that is no query result"
            self.failures.append(_Failure(Reason.PARSE, message))
            return []
        if self.at is None:
            self.at = next((row.value[0] for row in rows if row.value is not None), None)
        return rows

    def unread(self) -> tuple[Unread, ...]:
        """One entry for all failures; the message is the first one's."""
        if not self.failures:
            return ()
        first = self.failures[0]
        return (Unread(f"{len(self.failures)} of {len(self.asked)} Prometheus queries", first.reason, first.message),)


def from_prometheus(
    tape: Tape,
    server: Server,
    members: Sequence[Member],
    *,
    window_s: float = 900.0,
    addresses: Mapping[str, str] | None = None,
    concurrency: int = CONCURRENCY,
    budget_s: float = BUDGET_S,
) -> tuple[Metrics, tuple[Unread, ...]]:
    """Samples of the members with their growth over `window_s`, their scrape targets, and what could not be read.

    `addresses` are further HOST:PORT -> member key, for series that only have an `instance`. Where nothing could be
    read `Metrics.missing` says why: unreachable, rbac, timeout, parse, or no_data.
    """
    aliases = Aliases.load()
    ask = _Questions(tape, server, time.monotonic() + budget_s)
    scope, found = _scope(ask, aliases, members, addresses)
    if not found or scope.nothing:
        if ask.failures:
            return Metrics(source="prometheus", missing=ask.failures[0].reason), ask.unread()
        why = scope.nothing or "it has no series of engines or routers"
        message = f"Prometheus at {server.shown}: {why}"
        return Metrics(source="prometheus", missing=Reason.NO_DATA), (Unread("Prometheus", Reason.NO_DATA, message),)
    window = window_text(window_s)
    existing = {row.metric.get("__name__", "") for row in ask.rows(promql.present(aliases, scope))}
    names = [(spelled, spelling) for spelled, spelling in aliases.by_spelling.items() if spelled in existing]
    anchors = promql.spelled_as(promql.ANCHORS, aliases, existing)
    counters = promql.spelled_as(promql.RESTART_COUNTERS, aliases, existing)
    assembly = Assembly(scope)
    with ThreadPoolExecutor(max_workers=max(1, concurrency)) as pool:
        values = pool.map(ask.rows, [promql.value(*name, scope) for name in names])
        growing = [name for name in names if name[1].alias.grows]
        grown = pool.map(ask.rows, [promql.increase(*name, scope, window) for name in growing])
        resets = pool.map(ask.rows, [promql.restarts(name, scope, window) for name in counters])
        ups, ages = pool.map(ask.rows, [promql.up(scope), promql.ages(anchors, scope)])
        for name, rows in zip(names, values, strict=True):
            assembly.add(*name, rows, increase=False)
        for name, rows in zip(growing, grown, strict=True):
            assembly.add(*name, rows, increase=True)
        restarted = _restarted(scope, (row for rows in resets for row in rows))
    samples = assembly.samples(restarted)
    metrics = Metrics(
        samples=samples,
        window=window,
        source="prometheus",
        missing=None if samples else (ask.failures[0].reason if ask.failures else Reason.NO_DATA),
        targets=targets_of(scope, ups, ages, {one.member for found in samples.values() for one in found}),
        scrape_interval_s=_interval(ask, scope, anchors, ages or ups),
        mangled=any(aliases.by_spelling[one.spelled].mangled for found in samples.values() for one in found),
        by_member=scope.by_member,
    )
    return metrics, (*ask.unread(), *_too_short(metrics, window_s))


def _scope(
    ask: _Questions, aliases: Aliases, members: Sequence[Member], addresses: Mapping[str, str] | None
) -> tuple[Scope, bool]:
    """The scope, and whether any series or target was found to base it on.

    Targets are looked at where the series alone do not put the members: those that are down have no series.
    """
    rows = [row.metric for row in ask.rows(promql.places(aliases))]
    scope = find_scope(rows, members, addresses)
    if not ask.failures and (not scope.place or scope.place == (INSTANCE,)):
        targets = find_scope([*rows, *(row.metric for row in ask.rows(promql.target_places()))], members, addresses)
        if targets.place:
            return targets, True
    return scope, bool(rows)


def _too_short(metrics: Metrics, window_s: float) -> tuple[Unread, ...]:
    interval = metrics.scrape_interval_s
    if interval is None or window_s >= SCRAPES_IN_WINDOW * interval:
        return ()
    message = f"Prometheus scrapes every {interval:g} s: a window of {metrics.window} is too short for growth"
    return (Unread("growth over the window", Reason.NO_DATA, f"{message}; give --window {interval * 8:.0f}s or more"),)


def _restarted(scope: Scope, rows: Iterable[Row]) -> set[str]:
    return {member for row in rows if (row.number() or 0) > 0 and (member := scope.member_of(row.metric))}


def _interval(ask: _Questions, scope: Scope, anchors: Sequence[str], somewhere: Sequence[Row]) -> float | None:
    """Seconds between two scrapes, from the raw samples of one member."""
    row = next((row for row in somewhere if scope.member_of(row.metric)), None)
    if row is None or not scope.place:
        return None
    labels = [matcher(label, [row.metric.get(label, "")]) for label in scope.place]
    for name in (*anchors, "up"):
        if (found := interval_of(ask.rows(promql.recent(name, scope, labels)))) is not None:
            return found
    return None
