"""What the traffic of a snapshot shows: requests routed by cache, prompts that share prefixes, and ratios.

Asked by several checks, so that each is answered in one way. Pure; costs a pass over the matches it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from checks.compatibility import Version
from checks.hyperpod import endpoints
from checks.metrics.view import Metrics, Reading, window_text
from checks.model import FLEET, Evidence, Finding, Reason, Target, failed, skipped, warned
from checks.serving import block_tokens
from checks.snapshot import Member, Snapshot

COUNTS_TOKENS = Version.parse("0.9.0")
"""Up to 0.8 vLLM counted its prefix cache's queries and hits in blocks, since then in tokens."""

DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Routed:
    """What the routers' logs tell of their decisions: `total` requests, of which `by_cache` had a cache found.

    A router that logs no line a request (HyperPod's) tells hits and misses only; the total is then their sum.
    """

    by_cache: int
    total: int
    span: str
    evidence: tuple[Evidence, ...]

    @property
    def share(self) -> float:
        """0..1; 0 without requests. One request may log more than one match when it is retried."""
        return min(1.0, self.by_cache / self.total) if self.total else 0.0


def routed(snapshot: Snapshot) -> Routed:
    """Counts over the window; over all that was read of the logs where the window holds too few requests."""
    window = _routed(snapshot, snapshot.now - snapshot.window_s, window_text(snapshot.window_s))
    if window.total >= snapshot.thresholds.routed_requests_min:
        return window
    return _routed(snapshot, float("-inf"), "the whole log")


def _routed(snapshot: Snapshot, since: float, span: str) -> Routed:
    by_cache, routes, missed, shown = 0, 0, 0, list[Evidence]()
    for log in (router.log for router in snapshot.routers if router.log is not None):
        kinds = [log.since(since, kind) for kind in ("router-kv-hit", "router-route", "aws-matched-none")]
        by_cache, routes, missed = by_cache + len(kinds[0]), routes + len(kinds[1]), missed + len(kinds[2])
        shown += [log.evidence(found[-1]) for found in kinds if found]
    return Routed(by_cache, routes or by_cache + missed, span, tuple(shown[:4]))


def routed_repeats(snapshot: Snapshot) -> Evidence | None:
    """Proof that prompts share prefixes, from routing or the probe: a cache was found, or kvctl itself repeated."""
    if snapshot.probe is not None:
        answered = [step for step in snapshot.probe.named("repeat") if step.status == 200]
        if answered and any(step.status == 200 for step in snapshot.probe.named("cold")):
            return Evidence("probe", "fleet", f"the probe sent one prompt {len(answered) + 1} times")
    for log in (router.log for router in snapshot.routers if router.log is not None):
        if (found := log.last("router-kv-hit")) is not None:
            return log.evidence(found)
    return None


def prefixes_repeat(snapshot: Snapshot) -> Evidence | None:
    """Proof that prompts share prefixes: what `routed_repeats` says, or an engine or LMCache that was hit often.

    None does not mean that they are unique, only that nothing shows that they repeat.
    """
    if (found := routed_repeats(snapshot)) is not None:
        return found
    limit = snapshot.thresholds.hit_ratio_repeats
    for ratio_of in (engine_ratio, lookup_ratio):
        for _target, ratio in enough_traffic(snapshot, ratio_of):
            if ratio.value > limit:
                return ratio.evidence()[0]
    return None


@dataclass(frozen=True, slots=True)
class Ratio:
    """Numerator, denominator and number of requests of one span; the division is done here and nowhere else."""

    part: Reading
    whole: Reading
    requests: Reading
    unit_tokens: float = 1.0
    """Tokens that one count of `whole` stands for."""

    @property
    def missing(self) -> Reason | None:
        return self.whole.missing or self.part.missing

    @property
    def value(self) -> float:
        """0..1; 0 without a denominator. A hit that is counted before its query can not make more than 1."""
        whole = self.whole.or_zero()
        return min(1.0, self.part.or_zero() / whole) if whole > 0 else 0.0

    @property
    def lifetime(self) -> bool:
        return self.whole.lifetime

    def enough(self, snapshot: Snapshot) -> bool:
        """Tokens and, where they are counted, requests are above the floor below which a ratio says nothing."""
        limits = snapshot.thresholds
        tokens = self.whole.or_zero() * self.unit_tokens
        counted = self.requests.value
        return tokens >= limits.traffic_tokens_min and (counted is None or counted >= limits.traffic_requests_min)

    def evidence(self) -> tuple[Evidence, ...]:
        shown = (self.part, self.whole, self.requests) if self.requests else (self.part, self.whole)
        return tuple(reading.evidence() for reading in shown)

    def __str__(self) -> str:
        """`45% (4500 of 10000, 15m)`."""
        return (
            f"{percent(self.value)} ({self.part.or_zero():.0f} of {self.whole.or_zero():.0f}"
            f"{', ' + self.whole.window if self.whole.window else ''})"
        )


def percent(share: float) -> str:
    """`45%`; one digit more where it is small and not 0."""
    return f"{share:.1%}" if 0 < share < 0.1 else f"{share:.0%}"


def ratio(
    snapshot: Snapshot, part: str, whole: str, requests: str, member: str | None = None, *, unit_tokens: float = 1.0
) -> Ratio:
    """Two counters of one member (all: None) and the requests behind them, over one span.

    The seconds between two direct scrapes seldom hold enough traffic: the lifetime then speaks, and says so.
    """
    names = (part, requests, whole)
    one, count, other = snapshot.metrics.grown(names, member)
    found = Ratio(one, other, count, unit_tokens)
    if snapshot.metrics.source == "scrape" and not found.enough(snapshot):
        one, count, other = lifetime(snapshot.metrics, names, member)
        return Ratio(one, other, count, unit_tokens)
    return found


def grown_to(snapshot: Snapshot, names: tuple[str, ...], member: str | None, floor: float) -> tuple[Reading, ...]:
    """`Metrics.grown`, and the lifetime also where direct scrapes saw the last name grow by less than `floor`."""
    readings = snapshot.metrics.grown(names, member)
    if snapshot.metrics.source == "scrape" and readings[-1].or_zero() < floor:
        return lifetime(snapshot.metrics, names, member)
    return readings


def lifetime(metrics: Metrics, names: tuple[str, ...], member: str | None) -> tuple[Reading, ...]:
    """The totals of counters since their process started."""
    totals = (metrics.now(name, member) for name in names)
    return tuple(replace(one, window="lifetime" if one else one.window) for one in totals)


def engine_ratio(snapshot: Snapshot, member: str | None) -> Ratio:
    """Hits of vLLM's own prefix cache over its queries."""
    unit = engine_unit(snapshot, member)
    return ratio(snapshot, "prefix_cache_hits", "prefix_cache_queries", "request_success", member, unit_tokens=unit)


def lookup_ratio(snapshot: Snapshot, member: str | None) -> Ratio:
    """Tokens that LMCache found over tokens it was asked for, by its counters."""
    return ratio(snapshot, "lmcache_lookup_hits", "lmcache_lookup_tokens", "lmcache_lookup_requests", member)


def engine_unit(snapshot: Snapshot, member: str | None) -> float:
    """Tokens that one query of the prefix cache stands for; of the whole fleet 1, unless all workers count blocks."""
    members = [worker for worker in snapshot.workers if member in (None, worker.key)]
    units = []
    for worker in members:
        version = snapshot.vllm_version(worker)
        blocks = version is not None and version.exact and version < COUNTS_TOKENS
        units.append(float(block_tokens(snapshot, worker) or DEFAULT_BLOCK_SIZE) if blocks else 1.0)
    return min(units, default=1.0)


def enough_traffic(
    snapshot: Snapshot, ratio_of: Callable[[Snapshot, str | None], Ratio], workers: Sequence[Member] | None = None
) -> list[tuple[Target, Ratio]]:
    """Each of the workers (default: all ready) with enough traffic; the whole fleet where only all together have it."""
    if snapshot.metrics.by_member:
        chosen = snapshot.ready_workers if workers is None else workers
        found = [(worker.target, ratio_of(snapshot, worker.key)) for worker in chosen]
        if enough := [(target, one) for target, one in found if one.missing is None and one.enough(snapshot)]:
            return enough
    whole = ratio_of(snapshot, None)
    return [(FLEET, whole)] if whole.missing is None and whole.enough(snapshot) else []


def judge_ratio(
    snapshot: Snapshot,
    workers: Sequence[Member],
    ratio_of: Callable[[Snapshot, str | None], Ratio],
    what: str,
    judge: Callable[[Target, Ratio], Finding],
) -> Iterator[Finding]:
    """What `judge` says of each worker with enough traffic, or of the fleet; and why the others are not judged."""
    judged = enough_traffic(snapshot, ratio_of, workers)
    for target, one in judged:
        yield judge(target, one)
    done = {target for target, _one in judged}
    if not judged:
        yield too_little(snapshot, ratio_of(snapshot, None), what)
    elif FLEET not in done:
        for worker in workers:
            if worker.target not in done:
                yield too_little(snapshot, ratio_of(snapshot, worker.key), what, worker.target)


def subjects(snapshot: Snapshot, workers: Sequence[Member]) -> list[tuple[Target, str | None]]:
    """Whom metrics are judged of: each worker, or the fleet where series can not be put to workers."""
    if not snapshot.metrics.by_member:
        return [(FLEET, None)]
    return [(worker.target, worker.key) for worker in workers]


def collapsed(findings: Iterable[Finding]) -> list[Finding]:
    """The findings; one about the fleet where all are skips for one reason, in the same words."""
    found = list(findings)
    kinds = {(one.status, one.reason, one.message) for one in found}
    if len(found) < 2 or len(kinds) > 1 or found[0].reason is None:
        return found
    return [replace(found[0], target=FLEET, message=f"{found[0].message} ({len(found)} workers)")]


def first_rank(metrics: Metrics, reading: Reading, member: str | None) -> Reading:
    """LMCache's counter of one rank over the same span: under tensor parallelism each rank counts the same tokens."""
    labels = metrics.one_rank(reading.name, member) if reading else {}
    if not labels:
        return reading
    read = metrics.now if reading.lifetime else metrics.increase
    return replace(read(reading.name, member, **labels), window=reading.window)


def too_little(snapshot: Snapshot, one: Ratio, what: str, target: Target = FLEET) -> Finding:
    """Skip for a ratio that is missing, or that too little traffic stands behind."""
    if one.missing is not None:
        return no_metric(snapshot, one.missing, what, target)
    limits = snapshot.thresholds
    return skipped(
        Reason.NO_TRAFFIC,
        f"too little traffic to judge: {one.whole.or_zero() * one.unit_tokens:.0f} tokens"
        + (f", {one.requests.or_zero():.0f} requests" if one.requests else "")
        + f" (needs {limits.traffic_tokens_min} tokens and {limits.traffic_requests_min} requests)",
        target,
        *one.evidence(),
    )


def no_metric(snapshot: Snapshot, missing: Reason, what: str, target: Target = FLEET) -> Finding:
    """Skip or error for a metric that is not there; `disabled` where a resource turns metrics off."""
    if missing is Reason.NO_DATA and (off := metrics_off(snapshot)) is not None:
        return skipped(Reason.DISABLED, f"metrics are turned off (spec.metrics.enabled: false of {off})", target)
    return skipped(missing, f"{what} could not be read", target)


def metrics_off(snapshot: Snapshot) -> str | None:
    """Name of a HyperPod resource that turns metrics off; None if none does."""
    return next((one.name for one in endpoints(snapshot) if not one.metrics_enabled), None)


def bad(message: str, target: Target, *evidence: Evidence, lifetime: bool, hint: str = "") -> Finding:
    """A failure; only a warning where the numbers span the engine's lifetime, since old traffic dilutes them."""
    judge = warned if lifetime else failed
    return judge(message, target, *evidence, hint=hint)


def names_by_member(metrics: Metrics) -> dict[str, frozenset[str]]:
    """Metric names of each member as spelled: on its page, else those under which its samples were found."""
    found: dict[str, set[str]] = {}
    for samples in metrics.samples.values():
        for sample in samples:
            if sample.spelled:
                found.setdefault(sample.member, set()).add(sample.spelled)
    names = {member: frozenset(spelled) for member, spelled in found.items()}
    return names | {member: page.families for member, page in metrics.pages.items() if page.families}
