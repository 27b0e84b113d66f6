"""What the results of all checks amount to: verdict, confidence and why, in one sentence. Pure.

A result counts if it is neither suppressed nor folded under its cause. Then, in this order:

1. `broken`: a failure of high severity that is not a part of the fleet only. Severity is that of the table below; a
   failure about one worker is *partial* if another worker passed (or was only warned by) the same check.
2. `degraded`: any other failure that counts. LMCache that could not start, or a second tier that cannot be reached,
   belongs here: requests are served, prompts are computed again. Not here, if nothing else failed and there is no
   proof: failures that only hide what happens (the metrics pipeline); the verdict is then `inconclusive`.
3. `degraded`: proof exists, but a check of those that prove was only a warning.
4. `working`: proof exists.
5. `inconclusive`: all else. Nothing failed, yet nothing proves that routing by cache works.

Proof is a pass of checks with `proves`: of one probe; or of one check about routing *and* one about the cache's effect
(a decision alone does not show that the engine had the blocks, and hits alone also come about by chance).

Confidence. broken, degraded: high, because a failure is something that was read; medium if the run was cut short,
something could not be read, or only warnings speak. working: high if a probe proved it or all that is required was
read, medium otherwise, low if the run was cut short. inconclusive: low.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from checks.model import Check, Group, Reason, Result, Status, Target, Verdict


class Severity(StrEnum):
    """How bad a result is for routing by cache."""

    HIGH = "high"
    """It does not work."""
    MEDIUM = "medium"
    """It works less, in part, or unseen."""
    LOW = "low"
    """A warning."""
    NONE = "none"


_ORDER = tuple(Severity)

HIDING = frozenset({"KV130", "KV131", "KV132"})
"""Their failure hides what happens and breaks nothing; so do all of the group Trust in the metrics."""

_LESSER = frozenset({"KV111", "KV112", "KV113", "KV114", "KV115", "KV151", "KV804", "KV807", "KV952"})
"""Their failure costs the second tier, or LMCache, but not routing; so do those of the group LMCache. Without KV events
kvctl guesses what workers hold, and KV955 tells whether that is enough."""

_FATAL = frozenset({"KV305"})
"""Of the group LMCache: the engine itself died."""

_REQUIRED_GAPS = frozenset({Reason.NO_DATA, Reason.NO_TRAFFIC, Reason.LOG_TRUNCATED})


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict, confidence (high · medium · low) and the verdict in one sentence."""

    verdict: Verdict
    confidence: str
    why: str


def severity(result: Result) -> Severity:
    """Of a failure as the tables above say; low for a warning, none for the rest."""
    if result.status is Status.WARN:
        return Severity.LOW
    if result.status is not Status.FAIL:
        return Severity.NONE
    lesser = (result.group is Group.LMCACHE and result.id not in _FATAL) or result.id in _LESSER or hides(result)
    return Severity.MEDIUM if lesser else Severity.HIGH


def hides(result: Result) -> bool:
    return result.group is Group.METRICS or result.id in HIDING


def counts(result: Result) -> bool:
    return not result.suppressed and not result.caused_by


def judge(
    results: Sequence[Result], checks: Iterable[Check], workers: Collection[Target], *, cut_short: str = ""
) -> Judgement:
    """`workers` are the targets of the workers without containers; which results are partial depends on them."""
    by_id = {check.id: check for check in checks}
    counted = [result for result in results if counts(result)]
    failures = [result for result in counted if result.status is Status.FAIL]
    partial = _partial(failures, results, workers)
    proof = _proof(counted, by_id, {Status.PASS})
    weak = [one for one in counted if one.status is Status.WARN and one.id in by_id and by_id[one.id].proves]
    unread = any(one.status is Status.ERROR for one in counted)

    if any(severity(one) is Severity.HIGH and one not in partial for one in failures):
        verdict, why = Verdict.BROKEN, "Routing by cache does not work"
    elif any(not hides(one) for one in failures) or (failures and proof):
        verdict, why = Verdict.DEGRADED, "Requests are served, but the cache is not used as it should be"
    elif weak and _proof(counted, by_id, {Status.PASS, Status.WARN}):
        verdict, why = Verdict.DEGRADED, "Routing by cache works, but achieves little"
    elif proof:
        told = "; ".join(dict.fromkeys(_one_line(one.message) for one in proof[:2]))
        return Judgement(Verdict.WORKING, _sure(proof, counted, by_id, cut_short), f"Routing by cache works: {told}")
    else:
        return Judgement(Verdict.INCONCLUSIVE, "low", _unknown(counted, cut_short))
    cause = first_cause(failures or weak)
    assert cause is not None
    sure = bool(failures) and not unread and not cut_short
    found = f"{cause.id}{_where(cause, counted)} {_one_line(cause.message)}"
    return Judgement(verdict, "high" if sure else "medium", f"{why}: {found}")


def first_cause(results: Iterable[Result]) -> Result | None:
    """What to look at first: the worst that counts; of equals the one that explains most, then the lowest id."""
    listed = list(results)
    explains = Counter(one.caused_by for one in listed if one.caused_by)
    failing = [one for one in listed if counts(one) and one.status in (Status.FAIL, Status.WARN)]
    return min(
        failing, key=lambda one: (_ORDER.index(severity(one)), -explains[one.id], one.id, one.target), default=None
    )


def exit_code(
    results: Iterable[Result], checks: Iterable[Check], verdict: Verdict, *, fail_on: Status, strict: bool
) -> int:
    """0 nothing at or above `fail_on` (fail or warn) · 1 something · 3 could not be evaluated · 4 with strict: open.

    Findings beat what could not be evaluated: they were read. Not evaluated means that a check about access, or a
    required one, ended in error. With `strict` an inconclusive verdict, or a required check that was skipped for want
    of data, traffic or the log's beginning, is 4.
    """
    required = {check.id for check in checks if check.required}
    counted = [one for one in results if counts(one)]
    bad = {Status.FAIL} if fail_on is Status.FAIL else {Status.FAIL, Status.WARN}
    if any(one.status in bad for one in counted):
        return 1
    if any(one.status is Status.ERROR and (one.group is Group.ACCESS or one.id in required) for one in counted):
        return 3
    gap = any(one.status is Status.SKIP and one.id in required and one.reason in _REQUIRED_GAPS for one in counted)
    return 4 if strict and (gap or verdict is Verdict.INCONCLUSIVE) else 0


def _partial(failures: list[Result], results: Sequence[Result], workers: Collection[Target]) -> list[Result]:
    """Failures about a worker of which another worker is spared."""
    spared: dict[str, set[Target]] = {}
    for one in results:
        if one.status in (Status.PASS, Status.WARN) and (place := one.target.place) in workers:
            spared.setdefault(one.id, set()).add(place)
    failed = {(one.id, one.target.place) for one in failures}
    return [
        one
        for one in failures
        if (place := one.target.place) in workers
        and any((one.id, other) not in failed for other in spared.get(one.id, ()) if other != place)
    ]


def _proof(counted: list[Result], by_id: Mapping[str, Check], states: set[Status]) -> list[Result]:
    """The results that together prove that routing by cache works; empty if they do not."""
    proving = [one for one in counted if one.status in states and one.id in by_id and by_id[one.id].proves]
    if probes := [one for one in proving if one.group is Group.PROBE]:
        return probes
    routing = [one for one in proving if one.group is Group.ROUTING]
    effect = [one for one in proving if one.group is Group.EFFECT]
    return [routing[0], effect[0]] if routing and effect else []


def _sure(proof: list[Result], counted: list[Result], by_id: Mapping[str, Check], cut_short: str) -> str:
    if cut_short:
        return "low"
    gaps = any(
        by_id[one.id].required and (one.status is Status.ERROR or one.reason in _REQUIRED_GAPS)
        for one in counted
        if one.id in by_id
    )
    return "high" if proof[0].group is Group.PROBE or not gaps else "medium"


_MISSING: Mapping[Reason | None, str] = {
    Reason.NO_DATA: "data",
    Reason.NO_TRAFFIC: "traffic",
    Reason.LOG_TRUNCATED: "the logs' beginnings",
    Reason.LOG_LEVEL_HIDES: "lines that the log level hides",
    Reason.VERSION_UNKNOWN: "versions",
    Reason.RBAC: "permissions",
    Reason.UNREACHABLE: "answers",
    Reason.TIMEOUT: "answers in time",
    Reason.PARSE: "answers that can be read",
}
"""What a reason says was missing."""


def _unknown(counted: list[Result], cut_short: str) -> str:
    """Why nothing can be said."""
    reasons = Counter(
        one.reason
        for one in counted
        if one.status in (Status.SKIP, Status.ERROR)
        and one.reason not in (None, Reason.NOT_APPLICABLE, Reason.DISABLED)
    )
    why = ", ".join(f"{_MISSING.get(reason, reason)} ({count})" for reason, count in reasons.most_common(3))
    parts = ["Nothing proves that routing by cache works, and nothing that it does not"]
    if why:
        parts.append(f"what was missing: {why}")
    if cut_short:
        parts.append(f"the run ended early: {cut_short}")
    return "; ".join(parts)


def _where(cause: Result, counted: Iterable[Result]) -> str:
    """` on w-0 and 2 more`; '' where it is about the whole fleet."""
    same = {one.target.place for one in counted if one.id == cause.id and one.status is cause.status}
    if cause.target.kind == "Fleet":
        return ""
    others = len(same - {cause.target.place})
    return f" on {cause.target.name}" + (f" and {others} more" if others else "") + ":"


def _one_line(text: str) -> str:
    return text.split("\n", 1)[0].rstrip(".")
