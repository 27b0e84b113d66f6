"""KV801 to KV808 on evidence that was written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from checks.model import Group, Reason, Stack, Status
from checks.probe_evidence import ProbeEvidence, ProbeStep
from checks.runner import diagnose
from checks.snapshot import Snapshot
from tests.checks.build import find_check, only, router, snapshot, statuses, worker

IDS = [f"KV80{number}" for number in range(1, 9)]
TOKENS = 897


def step(name: str, served: str = "prod/w-0", **more: Any) -> ProbeStep:
    told = {"status": 200, "how": "header", "prompt_tokens": TOKENS}
    return ProbeStep(name=name, request_id=f"kvctl-1-{name}", served_by=served, **told | more)


def bad(name: str, error: str, status: int = 500, reason: Reason = Reason.UNREACHABLE) -> ProbeStep:
    return ProbeStep(name, f"kvctl-1-{name}", status, error=error, reason=reason)


def repeats(*served: str, **more: Any) -> list[ProbeStep]:
    return [step("repeat", name, **more) for name in served]


def control(*served: str) -> list[ProbeStep]:
    return [step("control", name) for name in served]


W0, W1 = "prod/w-0", "prod/w-1"
MIXED = control(W0, W1, W0, W1, W1, W0, W1)


def seen(
    *steps: ProbeStep | list[ProbeStep], strategy: str = "", stack: Stack = Stack.PRODUCTION_STACK, **more: Any
) -> Snapshot:
    listed = [one for part in steps for one in (part if isinstance(part, list) else [part])]
    args = ("--routing-logic", strategy) if strategy else ()
    members = (router(args=args), worker("w-0"), worker("w-1", ip="10.0.0.2"))
    evidence = ProbeEvidence(tuple(listed), **{"prompt_tokens": TOKENS, "unit_tokens": 16, "choices": 2} | more)
    return snapshot(*members, stack=stack).with_probe(evidence)


def state(check_id: str, of: Snapshot) -> Status:
    return statuses(check_id, of)["fleet"]


# -- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check_id", IDS)
def test_a_probe_that_was_refused_says_why(check_id: str) -> None:
    finding = only(check_id, seen(refused="3 requests wait at prod/w-0"))
    assert (finding.reason, finding.message) == (Reason.DISABLED, "3 requests wait at prod/w-0")


@pytest.mark.parametrize("check_id", IDS)
def test_a_first_request_that_failed_is_an_error(check_id: str) -> None:
    finding = only(check_id, seen(bad("size", "HTTP 500: no"), cut_short="http://r/v1/completions: HTTP 500: no"))
    assert finding.status is Status.ERROR
    assert "HTTP 500: no" in finding.message


@pytest.mark.parametrize("check_id", IDS)
def test_a_probe_that_was_interrupted_leaves_it_open(check_id: str) -> None:
    assert only(check_id, seen(step("size"), cut_short="interrupted with Ctrl-C")).reason is Reason.NO_DATA


@pytest.mark.parametrize("check_id", IDS)
def test_without_a_probe_it_is_skipped_as_disabled(check_id: str) -> None:
    (result,) = diagnose(snapshot(router(), worker()), [find_check(check_id)]).results
    assert (result.status, result.reason, result.group) == (Status.SKIP, Reason.DISABLED, Group.PROBE)


def test_only_where_the_prompt_goes_proves_routing() -> None:
    assert [check_id for check_id in IDS if find_check(check_id).proves] == ["KV801"]


# -- KV801 -----------------------------------------------------------------------------------------------------------


def test_kv801_passes_where_all_repeats_go_to_one_worker_and_others_do_not() -> None:
    assert state("KV801", seen(step("cold"), repeats(*[W0] * 7), MIXED)) is Status.PASS


@pytest.mark.parametrize(
    ("kept", "expected"),
    [(0, Status.FAIL), (3, Status.FAIL), (5, Status.FAIL), (6, Status.WARN)],
)
def test_kv801_of_seven_repeats_over_two_workers(kept: int, expected: Status) -> None:
    """Chance of at least 5 of 7 with one half: 0.23; of at least 6: 0.06."""
    mixed = control(W0, W1, W0, W1, W0, W1)
    assert state("KV801", seen(step("cold"), repeats(*[W0] * kept, *[W1] * (7 - kept)), mixed)) is expected


def test_kv801_compares_with_how_often_that_worker_is_taken_anyway() -> None:
    """Six of seven is no more than a worker gets that takes five of six of all prompts."""
    mostly = control(W0, W0, W0, W0, W0, W1)
    assert state("KV801", seen(step("cold"), repeats(*[W0] * 6, W1), mostly)) is Status.FAIL


def test_kv801_names_a_strategy_that_looks_at_no_cache() -> None:
    found = only("KV801", seen(step("cold"), repeats(W0, W1, W1), control(W0, W1, W1), strategy="roundrobin"))
    assert found.status is Status.FAIL
    assert "roundrobin" in found.hint


def test_kv801_is_open_where_every_prompt_goes_to_that_worker() -> None:
    assert only("KV801", seen(step("cold"), repeats(*[W0] * 7), control(*[W0] * 7))).reason is Reason.NO_DATA


def test_kv801_passes_there_too_if_the_router_names_a_cache() -> None:
    routed = repeats(*[W0] * 7, kv_routed=True)
    assert state("KV801", seen(step("cold"), routed, control(*[W0] * 7))) is Status.PASS


@pytest.mark.parametrize(
    ("routed", "expected", "reason"),
    [
        ([True, True, True], Status.PASS, None),
        ([True, False, True], Status.WARN, None),
        ([False, False, False], Status.FAIL, None),
        ([None, None, None], Status.SKIP, Reason.NO_DATA),
    ],
)
def test_kv801_of_kvaware_needs_a_line_for_each_repeat(
    routed: list[bool | None], expected: Status, reason: Reason | None
) -> None:
    kept = [step("repeat", kv_routed=one) for one in routed]
    finding = only("KV801", seen(step("cold"), kept, MIXED, strategy="kvaware"))
    assert (finding.status, finding.reason) == (expected, reason)


@pytest.mark.parametrize(
    "steps",
    [
        [step("cold", ""), *repeats(W0, W0, W0), *MIXED],
        [step("cold"), *repeats(W0, "", W0), *MIXED],
        [step("cold"), *repeats(W0, W0, W0), *control(W0, W1, "")],
    ],
    ids=["the cold one", "a repeat", "one of the control arm"],
)
def test_kv801_is_open_where_it_is_not_known_who_served(steps: list[ProbeStep]) -> None:
    assert only("KV801", seen(steps)).reason is Reason.NO_DATA


def test_kv801_does_not_fit_one_worker() -> None:
    found = seen(step("cold"), repeats(W0, W0, W0), control(W0, W0, W0), choices=1)
    assert only("KV801", found).reason is Reason.NOT_APPLICABLE


def test_kv801_counts_workers_that_it_saw_where_none_is_known() -> None:
    served = [f"10.0.0.{number}:8000" for number in range(1, 5)]
    found = seen(step("cold", served[0]), repeats(*served), control(*served), choices=0)
    assert state("KV801", found) is Status.FAIL


# -- KV802 -----------------------------------------------------------------------------------------------------------

WHOLE = 896
"""Whole blocks of 16 in the first 896 of 897 tokens."""


@pytest.mark.parametrize(
    ("cached", "expected"),
    [
        ([WHOLE, WHOLE, WHOLE], Status.PASS),
        ([816, WHOLE, WHOLE], Status.PASS),
        ([800, WHOLE, WHOLE], Status.WARN),
        ([0, WHOLE, WHOLE], Status.WARN),
        ([16, 16, 16], Status.WARN),
        ([0, 0, 0], Status.FAIL),
    ],
)
def test_kv802_compares_with_nine_tenths_of_the_whole_blocks(cached: list[int], expected: Status) -> None:
    warm = [step("repeat", cached_tokens=one, cached_from="usage") for one in cached]
    assert state("KV802", seen(step("cold"), warm)) is expected


def test_kv802_takes_a_missing_number_as_unknown() -> None:
    assert only("KV802", seen(step("cold"), repeats(W0, W0, W0))).reason is Reason.NO_DATA


def test_kv802_judges_those_repeats_that_tell() -> None:
    warm = [step("repeat"), step("repeat", cached_tokens=WHOLE, cached_from="log")]
    assert state("KV802", seen(step("cold"), warm)) is Status.PASS


def test_kv802_leaves_out_repeats_that_went_elsewhere() -> None:
    there = step("repeat", W0, cached_tokens=WHOLE, cached_from="usage")
    elsewhere = step("repeat", W1, cached_tokens=0, cached_from="usage")
    assert state("KV802", seen(step("cold"), there, elsewhere)) is Status.PASS


def test_kv802_does_not_fit_where_no_repeat_came_back() -> None:
    elsewhere = repeats(W1, W1, cached_tokens=0, cached_from="usage")
    assert only("KV802", seen(step("cold"), elsewhere)).reason is Reason.NOT_APPLICABLE


def test_kv802_counts_in_chunks_where_only_lmcache_can_reuse() -> None:
    warm = repeats(W0, W0, cached_tokens=768, cached_from="log")
    assert state("KV802", seen(step("cold"), warm, unit_tokens=256)) is Status.PASS
    assert state("KV802", seen(step("cold"), warm, unit_tokens=16)) is Status.WARN


# -- KV803 -----------------------------------------------------------------------------------------------------------


def test_kv803_passes_where_all_are_known() -> None:
    assert state("KV803", seen(step("cold"), repeats(W0, W1))) is Status.PASS


def test_kv803_warns_where_some_are_known() -> None:
    assert state("KV803", seen(step("cold"), repeats(W0, ""))) is Status.WARN


def test_kv803_is_open_where_none_is_known() -> None:
    assert only("KV803", seen(step("cold", ""), repeats("", ""))).reason is Reason.NO_DATA


def test_kv803_leaves_out_what_was_not_sent_to_the_router() -> None:
    direct = step("other-instance", W1, how="direct")
    assert only("KV803", seen(step("cold", ""), direct)).reason is Reason.NO_DATA


# -- KV804 -----------------------------------------------------------------------------------------------------------

OTHER = step("other-instance", W1, how="direct")


@pytest.mark.parametrize(
    ("found", "expected"),
    [(768.0, Status.PASS), (0.0, Status.FAIL), (None, Status.SKIP)],
    ids=["some", "none", "unknown"],
)
def test_kv804_asks_what_lmcache_had_there(found: float | None, expected: Status) -> None:
    assert statuses("KV804", seen(step("cold"), OTHER, external_hit_tokens=found)) == {"w-1": expected}


def test_kv804_does_not_fit_where_it_was_not_sent() -> None:
    found = only("KV804", seen(step("cold"), skipped={"other-instance": "no two workers share a second tier"}))
    assert found.reason is Reason.NOT_APPLICABLE
    assert "second tier" in found.message


def test_kv804_is_an_error_where_the_engine_did_not_answer() -> None:
    failed = bad("other-instance", "http://10.0.0.2:8000: connection refused", 0)
    assert only("KV804", seen(step("cold"), failed)).status is Status.ERROR


# -- KV805, KV806 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("served", "expected"),
    [(W0, Status.PASS), (W1, Status.WARN), ("", Status.SKIP)],
    ids=["there", "elsewhere", "unknown"],
)
def test_kv805_follows_the_beginning(served: str, expected: Status) -> None:
    assert state("KV805", seen(step("cold"), step("suffix", served))) is expected


def test_kv805_counts_the_instance_that_was_given_the_beginning_too() -> None:
    assert state("KV805", seen(step("cold"), step("other-instance", W1), step("suffix", W1))) is Status.PASS
    assert state("KV805", seen(step("cold"), bad("other-instance", "refused"), step("suffix", W1))) is Status.WARN


def test_kv805_does_not_fit_one_worker() -> None:
    assert only("KV805", seen(step("cold"), step("suffix"), choices=1)).reason is Reason.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("served", "expected"),
    [((W1, W1), Status.PASS), ((W1, W0), Status.WARN), ((W1, ""), Status.SKIP), ((W1,), Status.SKIP)],
)
def test_kv806_expects_a_chat_to_come_back(served: tuple[str, ...], expected: Status) -> None:
    chats = [step("chat", name) for name in served]
    assert state("KV806", seen(step("cold"), chats, strategy="prefixaware")) is expected


def test_kv806_of_kvaware_expects_a_miss() -> None:
    chats = [step("chat", W1), step("chat", W0, kv_routed=False)]
    finding = only("KV806", seen(step("cold"), chats, strategy="kvaware"))
    assert finding.status is Status.PASS
    assert "no cache was found" in finding.message


def test_kv806_of_our_own_kvaware_expects_a_hit() -> None:
    chats = [step("chat", W1), step("chat", W0)]
    found = seen(step("cold"), chats, strategy="kvaware", stack=Stack.KVCTL)
    assert state("KV806", found) is Status.WARN


def test_kv806_does_not_fit_a_model_without_chats() -> None:
    found = seen(step("cold"), bad("chat", "HTTP 400: no chat template", 400))
    assert only("KV806", found).reason is Reason.NOT_APPLICABLE


def test_kv806_does_not_fit_one_worker() -> None:
    assert only("KV806", seen(step("cold"), step("chat"), choices=1)).reason is Reason.NOT_APPLICABLE


# -- KV807 -----------------------------------------------------------------------------------------------------------


def pair(cold: float | None, *warm: float | None, tokens: int = 2300, served: str = W0) -> list[ProbeStep]:
    later = [step("stream-warm", served, ttft_s=one, prompt_tokens=tokens) for one in warm]
    return [step("cold"), step("stream-cold", ttft_s=cold, prompt_tokens=tokens), *later]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (pair(0.4, 0.1), Status.PASS),
        (pair(0.1, 0.4), Status.WARN),
        (pair(0.1, 0.4, 0.05), Status.PASS),
        (pair(0.1, 0.4, tokens=896), Status.PASS),
    ],
    ids=["quicker", "slower", "quicker the second time", "too short to tell"],
)
def test_kv807_warns_where_a_long_warm_prompt_is_not_quicker(steps: list[ProbeStep], expected: Status) -> None:
    assert state("KV807", seen(steps)) is expected


def test_kv807_compares_one_worker_only() -> None:
    assert only("KV807", seen(pair(0.1, 0.4, served=W1))).reason is Reason.NOT_APPLICABLE


def test_kv807_is_open_where_nothing_was_streamed() -> None:
    assert only("KV807", seen(pair(None, None))).reason is Reason.NO_DATA


# -- KV808 -----------------------------------------------------------------------------------------------------------


def waited(before: float | None, after: float | None, routed: bool | None = None, was: bool | None = None) -> Snapshot:
    return seen(
        step("cold"),
        repeats(W0, W0, kv_routed=was),
        step("expiry", kv_routed=routed),
        registered_before_expiry=before,
        registered_after_expiry=after,
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (waited(2, 2), Status.PASS),
        (waited(2, 1), Status.FAIL),
        (waited(2, 0, routed=True, was=True), Status.FAIL),
        (waited(2, 2, routed=False, was=True), Status.FAIL),
        (waited(None, None, routed=False, was=True), Status.FAIL),
        (waited(None, None, routed=True, was=True), Status.PASS),
        (waited(None, None, routed=False, was=False), Status.SKIP),
        (waited(None, None), Status.SKIP),
    ],
)
def test_kv808_counts_registrations_and_looks_for_the_prompt(found: Snapshot, expected: Status) -> None:
    assert state("KV808", found) is expected


def test_kv808_is_off_unless_asked_for() -> None:
    found = seen(step("cold"), skipped={"expiry": "asked for with --probe-heartbeat"})
    assert only("KV808", found).reason is Reason.DISABLED
