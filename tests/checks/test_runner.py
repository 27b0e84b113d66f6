"""The runner: every check gets its say, causes fold their consequences, what is printed is clean."""

from __future__ import annotations

import pytest

from checks.model import Evidence, Finding, Group, Reason, Result, Stack, Status, failed, passed, skipped, warned
from checks.runner import data_sha256, diagnose, findings, fold
from checks.suppress import parse
from tests.checks.build import router, snapshot, worker
from tests.checks.diagnoses import check, pod, raising, result

EMPTY = snapshot()
WORKERS = frozenset({pod("w-0").place, pod("w-1").place})


def test_results_are_sorted_by_id_and_target() -> None:
    checks = [check("KV401", failed("b", pod("w-1")), failed("a", pod("w-0"))), check("KV201", passed("c"))]
    assert [(one.id, one.target.name) for one in diagnose(EMPTY, checks).results] == [
        ("KV201", ""),
        ("KV401", "w-0"),
        ("KV401", "w-1"),
    ]


def test_a_check_for_another_stack_is_skipped_without_being_run() -> None:
    other = check("KV901", run=raising(RuntimeError("was run")), stacks=frozenset({Stack.LLM_D}))
    (one,) = findings(other, EMPTY)
    assert (one.status, one.reason) == (Status.SKIP, Reason.NOT_APPLICABLE)
    assert "llm-d" in one.message


def test_a_check_for_this_stack_is_run() -> None:
    mine = check("KV201", passed("good"), stacks=frozenset({Stack.PRODUCTION_STACK}))
    assert findings(mine, EMPTY) == [passed("good")]


def test_a_check_that_needs_the_probe_says_so_when_there_was_none() -> None:
    (one,) = findings(check("KV801", passed("good"), needs_probe=True), EMPTY)
    assert (one.status, one.reason) == (Status.SKIP, Reason.DISABLED)


def test_a_check_that_raises_is_an_internal_error_and_the_rest_goes_on() -> None:
    broken = check("KV201", run=raising(ZeroDivisionError("by zero\nand more"), passed("before")))
    results = diagnose(EMPTY, [broken, check("KV202", passed("after"))]).results
    assert [(one.id, one.status) for one in results] == [
        ("KV201", Status.PASS),
        ("KV201", Status.ERROR),
        ("KV202", Status.PASS),
    ]
    assert results[1].reason is Reason.INTERNAL
    assert "ZeroDivisionError: by zero" in results[1].message
    assert "\n" not in results[1].message


def test_a_check_that_says_nothing_is_an_internal_error() -> None:
    (one,) = diagnose(EMPTY, [check("KV201")]).results
    assert (one.status, one.reason) == (Status.ERROR, Reason.INTERNAL)


def test_an_interrupt_is_no_finding() -> None:
    def interrupted(_: object) -> list[Finding]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        diagnose(EMPTY, [check("KV201", run=interrupted)])


def test_a_finding_has_the_checks_hint_unless_it_brings_its_own_or_passed() -> None:
    one = check("KV201", failed("a", pod("w-0")), failed("b", pod("w-1"), hint="own"), passed("c", pod("w-2")))
    assert [found.hint for found in diagnose(EMPTY, [one]).results] == ["do this about KV201", "own", ""]


def test_what_could_not_be_read_is_an_error_with_its_reason() -> None:
    (one,) = diagnose(EMPTY, [check("KV201", skipped(Reason.RBAC, "denied"))]).results
    assert (one.status, one.reason) == (Status.ERROR, Reason.RBAC)


def test_control_characters_never_reach_a_result() -> None:
    escape = "\x1b]0;owned\x07\x1b[31mred"
    seen = Evidence("log", f"prod/{escape}", escape, escape)
    made = diagnose(
        snapshot(namespace=f"a{escape}", context=f"b{escape}"),
        [check("KV201", failed(escape, pod(escape), seen, hint=escape))],
    )
    assert "\x1b" not in repr(made).replace("\\x1b", "\x1b")
    assert "\x07" not in repr(made).replace("\\x07", "\x07")


def caused(*results: Result, **causes: tuple[str, ...]) -> list[str]:
    """Which id each result is folded under."""
    checks = [check(id, caused_by=names) for id, names in causes.items()]
    return [one.caused_by for one in fold(results, checks, WORKERS)]


def test_a_failure_folds_the_failures_and_warnings_that_it_explains() -> None:
    results = (
        result("KV152", Status.FAIL),
        result("KV203", Status.FAIL),
        result("KV204", Status.WARN),
        result("KV205", Status.PASS),
        result("KV206", Status.ERROR),
    )
    names = {one.id: ("KV152",) for one in results[1:]}
    assert caused(*results, **names) == ["", "KV152", "KV152", "", ""]


def test_a_passing_cause_explains_nothing() -> None:
    assert caused(result("KV152", Status.PASS), result("KV203", Status.FAIL), KV203=("KV152",)) == ["", ""]


def test_a_warning_explains_warnings_but_no_failure() -> None:
    results = (result("KV152", Status.WARN), result("KV203", Status.FAIL), result("KV204", Status.WARN))
    assert caused(*results, KV203=("KV152",), KV204=("KV152",)) == ["", "", "KV152"]


def test_of_a_chain_the_root_is_named() -> None:
    results = (result("KV152", Status.FAIL), result("KV203", Status.FAIL), result("KV501", Status.FAIL))
    assert caused(*results, KV203=("KV152",), KV501=("KV203",)) == ["", "KV152", "KV152"]


def test_one_worker_explains_nothing_on_another() -> None:
    results = (
        result("KV302", Status.FAIL, target=pod("w-0")),
        result("KV203", Status.FAIL, target=pod("w-0", container="other")),
        result("KV203", Status.FAIL, target=pod("w-1")),
    )
    assert caused(*results, KV203=("KV302",)) == ["", "KV302", ""]


def test_a_router_explains_workers_and_workers_explain_the_fleet() -> None:
    results = (
        result("KV207", Status.FAIL, target=pod("router-0")),
        result("KV202", Status.FAIL, target=pod("w-1")),
        result("KV501", Status.FAIL),
    )
    assert caused(*results, KV202=("KV207",), KV501=("KV202",)) == ["", "KV207", "KV207"]


def test_what_is_suppressed_neither_explains_nor_is_explained() -> None:
    results = (result("KV152", Status.FAIL, suppressed=True), result("KV203", Status.FAIL))
    assert caused(*results, KV203=("KV152",)) == ["", ""]
    results = (result("KV152", Status.FAIL), result("KV203", Status.FAIL, suppressed=True))
    assert caused(*results, KV203=("KV152",)) == ["", ""]


def test_a_suppressed_failure_stays_and_is_marked() -> None:
    checks = [check("KV401", failed("a"))]
    made = diagnose(EMPTY, checks, suppressions=parse(["KV401"], {"KV401"}))
    assert [(one.status, one.suppressed) for one in made.results] == [(Status.FAIL, True)]
    assert made.verdict == "inconclusive"


def test_a_worker_that_fails_alone_makes_the_fleet_degraded() -> None:
    read_of = snapshot(worker("w-0"), worker("w-1", ip="10.0.0.2"), router())
    checks = [check("KV203", failed("no ack", pod("w-0")), passed("ack", pod("w-1")), group=Group.REGISTRATION)]
    assert diagnose(read_of, checks).verdict == "degraded"


def test_the_diagnosis_carries_the_time_of_the_snapshot_and_the_versions() -> None:
    read_of = snapshot(worker("w-0", version_line="0.4.3/0.19.1"), router(image="lmcache/vllm-openai:v0.4.7"), now=0.0)
    made = diagnose(read_of, [check("KV201", warned("x"))])
    assert made.generated_at == "1970-01-01T00:00:00Z"
    assert made.versions["workers"] == [{"pod": "prod/w-0", "lmcache": "0.4.3", "vllm": "0.19.1"}]
    assert made.versions["router_lmcache"] == "0.4.7"
    assert made.versions["data_sha256"] == data_sha256()


def test_progress_names_what_is_done() -> None:
    told: list[tuple[str, int, int]] = []
    diagnose(
        EMPTY, [check("KV201", passed("a")), check("KV202", passed("b"))], progress=lambda *step: told.append(step)
    )
    assert told == [("checks", 0, 2), ("checks", 1, 2)]
