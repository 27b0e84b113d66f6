"""Runs the checks over a snapshot and makes one diagnosis of what they found.

A check that does not fit the stack is skipped; one that raises, or says nothing, is an internal error under its own id
and the rest go on. Failures that another failure explains are folded under it. Pure: no I/O, no clock; the time of the
diagnosis is the snapshot's. Costs what the checks cost, plus a sort of the results.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from checks.model import Check, Diagnosis, Evidence, Finding, Reason, Result, Status, Target, skipped
from checks.redact import clean
from checks.snapshot import Snapshot
from checks.suppress import NONE, Suppressions
from checks.verdict import judge

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""

DATA_FILES = ("causes.yaml", "compatibility.yaml", "metric_aliases.yaml", "patterns.yaml", "thresholds.yaml")
_LOG = logging.getLogger(__name__)
_EXPLAINED = frozenset({Status.FAIL, Status.WARN})


def diagnose(
    snapshot: Snapshot,
    checks: Sequence[Check],
    *,
    suppressions: Suppressions = NONE,
    progress: Progress | None = None,
) -> Diagnosis:
    """All results, sorted by (id, target), and their verdict. Never raises for what a check does."""
    results: list[Result] = []
    for done, check in enumerate(checks):
        if progress is not None:
            progress("checks", done, len(checks))
        results += (_result(check, finding) for finding in findings(check, snapshot))
    results.sort(key=lambda one: (one.id, one.target))
    results = [replace(one, suppressed=suppressions.covers(one)) for one in results]
    workers = frozenset(worker.target.place for worker in snapshot.workers)
    results = fold(results, checks, workers)
    judgement = judge(results, checks, workers, cut_short=snapshot.cut_short)
    return Diagnosis(
        verdict=judgement.verdict,
        confidence=judgement.confidence,
        why=judgement.why,
        results=tuple(results),
        stack=snapshot.stack,
        namespace=clean(snapshot.namespace),
        context=clean(snapshot.context),
        generated_at=datetime.fromtimestamp(snapshot.now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        versions=versions(snapshot),
        sampled=clean(snapshot.sampled),
        cut_short=clean(snapshot.cut_short),
    )


def findings(check: Check, snapshot: Snapshot) -> list[Finding]:
    """What one check says; at least one finding."""
    if check.stacks is not None and not snapshot.stacks & check.stacks:
        fitting = ", ".join(sorted(check.stacks))
        return [skipped(Reason.NOT_APPLICABLE, f"for {fitting}; this is {snapshot.stack}")]
    if check.needs_probe and snapshot.probe is None:
        return [skipped(Reason.DISABLED, "sends requests; give --probe to run it")]
    found: list[Finding] = []
    try:
        found.extend(check.run(snapshot))
    except Exception as error:
        _LOG.debug("check %s", check.id, exc_info=True)
        what = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        found.append(skipped(Reason.INTERNAL, f"the check itself failed ({what}): please report it with a recording"))
    if not found:
        found.append(skipped(Reason.INTERNAL, "the check said nothing: please report it with a recording"))
    return found


def fold(results: Iterable[Result], checks: Iterable[Check], workers: frozenset[Target]) -> list[Result]:
    """The same results; failures and warnings that others explain carry the id of what is at their root.

    A failure explains failures and warnings, a warning only warnings. What one worker shows explains nothing on
    another worker. What is suppressed neither explains nor is explained.
    """
    causes = {check.id: check.caused_by for check in checks}
    listed = list(results)
    bad: dict[str, _Causes] = {}
    for one in listed:
        if _explainable(one):
            bad.setdefault(one.id, _Causes()).add(one, workers)
    return [
        replace(one, caused_by=cause.id)
        if _explainable(one) and (cause := _root(one, causes, bad, workers)) is not None
        else one
        for one in listed
    ]


def versions(snapshot: Snapshot) -> Mapping[str, Any]:
    """LMCache and vLLM of each member where known (`>=` where only a bound is), and which data judged them."""
    routers = [
        {"pod": clean(router.key), "lmcache": _text(snapshot.lmcache_version(router))} for router in snapshot.routers
    ]
    workers = [
        {
            "pod": clean(worker.key),
            "lmcache": _text(snapshot.lmcache_version(worker)),
            "vllm": _text(snapshot.vllm_version(worker)),
        }
        for worker in snapshot.workers
    ]
    known = sorted({row["lmcache"] for row in routers if row["lmcache"]})
    return {
        "data_sha256": data_sha256(),
        "router_lmcache": ", ".join(known) or None,
        "routers": sorted(routers, key=lambda row: row["pod"] or ""),
        "workers": sorted(workers, key=lambda row: row["pod"] or ""),
    }


def data_sha256() -> str:
    """Of the causes, versions, metric names, patterns and thresholds that checks compare with."""
    digest = hashlib.sha256()
    for name in DATA_FILES:
        file = files("checks").joinpath("data", name)
        digest.update(name.encode() + b"\0" + (file.read_bytes() if file.is_file() else b"") + b"\0")
    return digest.hexdigest()


def _result(check: Check, finding: Finding) -> Result:
    target = finding.target
    hint = finding.hint or (check.hint if finding.status in _EXPLAINED else "")
    return Result(
        id=check.id,
        title=check.title,
        group=check.group,
        status=finding.status,
        target=Target(clean(target.kind), clean(target.namespace), clean(target.name), clean(target.container)),
        message=" ".join(clean(finding.message).split()),
        hint=clean(hint),
        evidence=tuple(
            Evidence(clean(one.source), clean(one.where), clean(one.text), clean(one.time)) for one in finding.evidence
        ),
        reason=finding.reason,
    )


class _Causes:
    """What of one check is failed or warned, by where; a failure stands before a warning."""

    def __init__(self) -> None:
        self._at_worker: dict[Target, Result] = {}
        self._elsewhere: Result | None = None
        self._anywhere: Result | None = None

    def add(self, result: Result, workers: frozenset[Target]) -> None:
        place = result.target.place
        if place in workers:
            self._at_worker[place] = _worse(self._at_worker.get(place), result)
        else:
            self._elsewhere = _worse(self._elsewhere, result)
        self._anywhere = _worse(self._anywhere, result)

    def explaining(self, effect: Result, workers: frozenset[Target]) -> Result | None:
        place = effect.target.place
        causes = (self._at_worker.get(place), self._elsewhere) if place in workers else (self._anywhere,)
        known = [one for one in causes if one is not None]
        return next((one for one in known if one.status is Status.FAIL or effect.status is Status.WARN), None)


def _root(
    result: Result, causes: Mapping[str, tuple[str, ...]], bad: Mapping[str, _Causes], workers: frozenset[Target]
) -> Result | None:
    """The last of the chain of results that explain this one; None if nothing does."""
    seen = {result.id}
    root: Result | None = None
    while True:
        here = root or result
        names = [name for name in causes.get(here.id, ()) if name not in seen and name in bad]
        found = next((cause for name in names if (cause := bad[name].explaining(here, workers)) is not None), None)
        if found is None:
            return root
        seen.add(found.id)
        root = found


def _explainable(result: Result) -> bool:
    return result.status in _EXPLAINED and not result.suppressed


def _worse(known: Result | None, new: Result) -> Result:
    return new if known is None or (known.status is Status.WARN and new.status is Status.FAIL) else known


def _text(version: object) -> str | None:
    return None if version is None else clean(str(version))
