"""The rule of the verdict, case by case; severity, what to look at first, exit codes."""

from __future__ import annotations

import pytest

from checks.model import Check, Group, Reason, Result, Status, Target, Verdict
from checks.verdict import Severity, exit_code, first_cause, judge, severity
from tests.checks.diagnoses import check, pod, result

PASS, WARN, FAIL, SKIP, ERROR = Status.PASS, Status.WARN, Status.FAIL, Status.SKIP, Status.ERROR
ROUTED = result("KV501", PASS, Group.ROUTING)
HIT = result("KV602", PASS, Group.EFFECT)
PROBED = result("KV801", PASS, Group.PROBE)
CHECKS: tuple[Check, ...] = (
    check("KV001", group=Group.ACCESS, required=True),
    check("KV201", group=Group.REGISTRATION, required=True),
    check("KV401", group=Group.IDENTITY),
    check("KV501", group=Group.ROUTING, proves=True, required=True),
    check("KV602", group=Group.EFFECT, proves=True),
    check("KV801", group=Group.PROBE, proves=True),
)
WORKERS = frozenset({pod("w-0").place, pod("w-1").place})


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        ([], "inconclusive"),
        ([ROUTED], "inconclusive"),
        ([HIT], "inconclusive"),
        ([ROUTED, HIT], "working"),
        ([PROBED], "working"),
        ([result("KV201", PASS, Group.REGISTRATION)], "inconclusive"),
        ([result("KV201", FAIL, Group.REGISTRATION)], "broken"),
        ([ROUTED, HIT, result("KV401", FAIL, Group.IDENTITY)], "broken"),
        ([PROBED, result("KV401", FAIL, Group.IDENTITY, suppressed=True)], "working"),
        ([result("KV302", FAIL, Group.LMCACHE)], "degraded"),
        ([ROUTED, HIT, result("KV311", FAIL, Group.LMCACHE)], "degraded"),
        ([result("KV305", FAIL, Group.LMCACHE)], "broken"),
        ([result("KV114", FAIL, Group.CONFIGURATION)], "degraded"),
        ([result("KV302", FAIL, Group.LMCACHE), result("KV201", FAIL, caused_by="KV302")], "degraded"),
        ([result("KV152", FAIL, Group.CONFIGURATION), result("KV302", FAIL, Group.LMCACHE)], "broken"),
        ([ROUTED, HIT, result("KV952", FAIL, Group.REGISTRATION)], "degraded"),
        ([result("KV952", FAIL, Group.REGISTRATION), result("KV955", FAIL, Group.ROUTING)], "broken"),
        ([result("KV701", FAIL, Group.METRICS)], "inconclusive"),
        ([result("KV131", FAIL, Group.CONFIGURATION)], "inconclusive"),
        ([PROBED, result("KV701", FAIL, Group.METRICS)], "degraded"),
        ([PROBED, result("KV005", WARN, Group.ACCESS)], "working"),
        ([PROBED, result("KV602", WARN, Group.EFFECT)], "degraded"),
        ([ROUTED, result("KV602", WARN, Group.EFFECT)], "degraded"),
        ([result("KV501", WARN), HIT], "degraded"),
        ([result("KV501", WARN)], "inconclusive"),
        ([result("KV501", SKIP, reason=Reason.NO_TRAFFIC)], "inconclusive"),
        ([result("KV001", ERROR, Group.ACCESS, reason=Reason.RBAC)], "inconclusive"),
        ([result("KV999", PASS, Group.PROBE)], "inconclusive"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(f"{one.id}-{one.status}" for one in value),
)
def test_the_verdict_of(results: list[Result], verdict: str) -> None:
    assert judge(results, CHECKS, WORKERS).verdict == verdict


def test_a_failure_of_one_worker_that_another_is_spared_is_degraded() -> None:
    results = [
        result("KV203", FAIL, Group.REGISTRATION, pod("w-0")),
        result("KV203", PASS, Group.REGISTRATION, pod("w-1")),
    ]
    assert judge(results, CHECKS, WORKERS).verdict is Verdict.DEGRADED


def test_the_same_failure_of_every_worker_is_broken() -> None:
    results = [result("KV203", FAIL, Group.REGISTRATION, pod(name)) for name in ("w-0", "w-1")]
    assert judge(results, CHECKS, WORKERS).verdict is Verdict.BROKEN


def test_a_worker_is_not_spared_because_the_router_is() -> None:
    results = [
        result("KV402", FAIL, Group.IDENTITY, pod("w-0")),
        result("KV402", FAIL, Group.IDENTITY, pod("w-1")),
        result("KV402", PASS, Group.IDENTITY, pod("router-0")),
    ]
    assert judge(results, CHECKS, WORKERS).verdict is Verdict.BROKEN


def test_a_failure_about_the_router_is_not_partial() -> None:
    results = [result("KV503", FAIL, target=pod("router-0")), result("KV503", PASS, target=pod("router-1"))]
    assert judge(results, CHECKS, WORKERS).verdict is Verdict.BROKEN


def test_a_worker_with_a_passing_and_a_failing_finding_of_one_check_is_not_spared_by_itself() -> None:
    results = [result("KV203", status, Group.REGISTRATION, pod("w-0")) for status in (PASS, FAIL)]
    assert judge(results, CHECKS, WORKERS).verdict is Verdict.BROKEN


@pytest.mark.parametrize(
    ("results", "cut_short", "confidence"),
    [
        ([PROBED], "", "high"),
        ([PROBED, result("KV201", SKIP, Group.REGISTRATION, reason=Reason.LOG_TRUNCATED)], "", "high"),
        ([ROUTED, HIT], "", "high"),
        ([ROUTED, HIT, result("KV201", SKIP, Group.REGISTRATION, reason=Reason.LOG_TRUNCATED)], "", "medium"),
        ([ROUTED, HIT, result("KV201", SKIP, Group.REGISTRATION, reason=Reason.NOT_APPLICABLE)], "", "high"),
        ([PROBED], "timeout", "low"),
        ([result("KV401", FAIL, Group.IDENTITY)], "", "high"),
        ([result("KV401", FAIL, Group.IDENTITY)], "timeout", "medium"),
        ([result("KV401", FAIL, Group.IDENTITY), result("KV001", ERROR, Group.ACCESS)], "", "medium"),
        ([PROBED, result("KV602", WARN, Group.EFFECT)], "", "medium"),
        ([ROUTED], "", "low"),
    ],
)
def test_confidence_is_how_much_could_be_read(results: list[Result], cut_short: str, confidence: str) -> None:
    assert judge(results, CHECKS, WORKERS, cut_short=cut_short).confidence == confidence


def test_an_inconclusive_verdict_says_what_was_missing() -> None:
    results = [result("KV501", SKIP, reason=Reason.NO_TRAFFIC), result("KV901", SKIP, reason=Reason.NOT_APPLICABLE)]
    why = judge(results, CHECKS, WORKERS, cut_short="timeout").why
    assert "what was missing: traffic (1)" in why
    assert "timeout" in why
    assert "not applicable" not in why


def test_a_working_verdict_quotes_its_proof() -> None:
    assert judge([ROUTED, HIT], CHECKS, WORKERS).why.endswith("message of KV501; message of KV602")


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (result("KV401", FAIL, Group.IDENTITY), Severity.HIGH),
        (result("KV302", FAIL, Group.LMCACHE), Severity.MEDIUM),
        (result("KV704", FAIL, Group.METRICS), Severity.MEDIUM),
        (result("KV401", WARN, Group.IDENTITY), Severity.LOW),
        (result("KV401", PASS, Group.IDENTITY), Severity.NONE),
        (result("KV401", ERROR, Group.IDENTITY), Severity.NONE),
    ],
)
def test_severity(one: Result, expected: Severity) -> None:
    assert severity(one) is expected


def test_the_first_cause_is_the_worst_then_what_explains_most() -> None:
    warned = result("KV001", WARN, Group.ACCESS)
    first, second = result("KV152", FAIL, Group.CONFIGURATION), result("KV401", FAIL, Group.IDENTITY)
    explained = [result("KV203", FAIL, target=pod(name), caused_by="KV401") for name in ("w-0", "w-1")]
    assert first_cause([warned, first, second]) is first
    assert first_cause([warned, first, second, *explained]) is second
    assert first_cause([result("KV401", FAIL, suppressed=True), warned]) is warned
    assert first_cause([ROUTED]) is None


@pytest.mark.parametrize(
    ("results", "fail_on", "strict", "code"),
    [
        ([ROUTED, HIT], FAIL, True, 0),
        ([ROUTED], FAIL, False, 0),
        ([ROUTED], FAIL, True, 4),
        ([result("KV401", FAIL)], FAIL, False, 1),
        ([result("KV401", FAIL, suppressed=True)], FAIL, False, 0),
        ([result("KV401", WARN)], FAIL, False, 0),
        ([result("KV401", WARN)], WARN, False, 1),
        ([result("KV001", ERROR, Group.ACCESS, reason=Reason.RBAC)], FAIL, False, 3),
        ([result("KV201", ERROR, Group.REGISTRATION, reason=Reason.TIMEOUT)], FAIL, False, 3),
        ([result("KV704", ERROR, Group.METRICS, reason=Reason.UNREACHABLE)], FAIL, False, 0),
        ([result("KV001", ERROR, Group.ACCESS), result("KV401", FAIL)], FAIL, False, 1),
        ([ROUTED, HIT, result("KV201", SKIP, reason=Reason.LOG_TRUNCATED)], FAIL, True, 4),
        ([ROUTED, HIT, result("KV201", SKIP, reason=Reason.NOT_APPLICABLE)], FAIL, True, 0),
        ([ROUTED, HIT, result("KV201", SKIP, reason=Reason.LOG_TRUNCATED)], FAIL, False, 0),
    ],
)
def test_exit_code(results: list[Result], fail_on: Status, strict: bool, code: int) -> None:
    verdict = judge(results, CHECKS, WORKERS).verdict
    assert exit_code(results, CHECKS, verdict, fail_on=fail_on, strict=strict) == code


def test_without_known_workers_nothing_is_partial() -> None:
    results = [
        result("KV203", FAIL, Group.REGISTRATION, Target("Process", "", "a")),
        result("KV203", PASS, Group.REGISTRATION, Target("Process", "", "b")),
    ]
    assert judge(results, CHECKS, frozenset()).verdict is Verdict.BROKEN


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        ([Target()], "KV401 message"),
        ([pod("w-0")], "KV401 on w-0: message"),
        ([pod("w-0"), pod("w-1"), pod("w-2")], "KV401 on w-0 and 2 more: message"),
    ],
)
def test_the_sentence_tells_where(targets: list[Target], told: str) -> None:
    found = [result("KV401", FAIL, Group.IDENTITY, one) for one in targets]
    assert told in judge(found, CHECKS, WORKERS).why
