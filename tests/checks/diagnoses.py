"""Checks, results and diagnoses made by hand, for tests of the runner, the verdict and the reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from checks.model import (
    Check,
    Diagnosis,
    Evidence,
    Finding,
    Group,
    Result,
    Stack,
    Status,
    Target,
    Verdict,
)
from checks.snapshot import Snapshot


def check(id: str, *findings: Finding, group: Group = Group.ROUTING, **more: Any) -> Check:
    """A check that always says the same."""
    return Check(
        id=id,
        title=more.pop("title", f"title of {id}"),
        group=group,
        worst=more.pop("worst", Status.FAIL),
        reads="what it reads",
        rule="how it judges",
        hint=more.pop("hint", f"do this about {id}"),
        run=more.pop("run", lambda snapshot: findings),
        **more,
    )


def raising(error: Exception, *before: Finding) -> Callable[[Snapshot], Iterable[Finding]]:
    """Yields the findings, then raises."""

    def run(snapshot: Snapshot) -> Iterable[Finding]:
        yield from before
        raise error

    return run


def pod(name: str, namespace: str = "prod", container: str = "vllm") -> Target:
    return Target("Pod", namespace, name, container)


def result(id: str, status: Status, group: Group = Group.ROUTING, target: Target | None = None, **more: Any) -> Result:
    return Result(
        id=id,
        title=f"title of {id}",
        group=group,
        status=status,
        target=target or Target(),
        message=more.pop("message", f"message of {id}"),
        hint=more.pop("hint", f"do this about {id}"),
        **more,
    )


def diagnosis(*results: Result, verdict: Verdict = Verdict.BROKEN, **more: Any) -> Diagnosis:
    return Diagnosis(
        verdict=verdict,
        confidence=more.pop("confidence", "high"),
        why=more.pop("why", "Routing by cache does not work: because"),
        results=tuple(sorted(results, key=lambda one: (one.id, one.target))),
        stack=more.pop("stack", Stack.PRODUCTION_STACK),
        namespace=more.pop("namespace", "prod"),
        context=more.pop("context", "test"),
        generated_at="2026-08-01T10:30:00Z",
        **more,
    )


def mixed() -> Diagnosis:
    """One result of each kind that a report has to show."""
    from checks.model import Reason

    seen = Evidence("log", "prod/w-0", "Failed to initialize <LMCacheManager> & co", "2026-08-01T10:00:01.000000000Z")
    return diagnosis(
        result("KV002", Status.PASS, Group.ACCESS, message="1 ready router"),
        result("KV004", Status.WARN, Group.ACCESS, pod("w-1"), message="restarted 3 times"),
        result("KV152", Status.FAIL, Group.CONFIGURATION, message="router W2, workers W3"),
        result("KV203", Status.FAIL, Group.REGISTRATION, pod("w-0"), caused_by="KV152"),
        result("KV302", Status.FAIL, Group.LMCACHE, pod("w-0"), message="did not start", evidence=(seen,)),
        result("KV312", Status.FAIL, Group.LMCACHE, pod("w-0"), suppressed=True),
        result("KV501", Status.SKIP, Group.ROUTING, message="3 requests", reason=Reason.NO_TRAFFIC),
        result("KV704", Status.ERROR, Group.METRICS, message="no answer", reason=Reason.UNREACHABLE),
        result("KV901", Status.SKIP, Group.OTHER_STACKS, message="for llm-d", reason=Reason.NOT_APPLICABLE),
    )
