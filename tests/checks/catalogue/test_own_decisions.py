"""KV954-KV956: what kvctl's own router decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checks.metrics.view import Metrics, Sample
from checks.model import Reason, Stack, Status
from checks.probe_evidence import ProbeEvidence, ProbeStep
from checks.snapshot import Snapshot
from tests.checks.build import findings, only, router, sample, snapshot, statuses, worker

PROBED = ProbeEvidence((ProbeStep("cold", "a", 200), ProbeStep("repeat", "b", 200)))


def grown(name: str, value: float, **labels: str) -> Sample:
    return sample(name, value, "prod/router-0", increase=value, **labels)


def own(decisions: list[dict[str, Any]], *samples: Sample, mode: str = "kv", **more: Any) -> Snapshot:
    answers = {
        "/workers": {"workers": [{"id": f"gpu-{at}", "url": f"http://10.0.0.{at + 1}:8000"} for at in range(3)]},
        "/config": {"dispatch": {"mode": mode}},
        "/decisions": {"decisions": decisions, "kept": len(decisions)},
    }
    workers = [worker(f"w-{at}", ip=f"10.0.0.{at + 1}", url=f"http://10.0.0.{at + 1}:8000") for at in range(3)]
    return snapshot(router(answers=answers), *workers, stack=Stack.KVCTL, samples=samples, **more)


def decided(predicted: int, reported: int | None = None) -> dict[str, Any]:
    return {
        "winner": {"worker": "gpu-0", "dp_rank": 0},
        "prompt_tokens": 1000,
        "predicted_cached_tokens": predicted,
        "engine_cached_tokens": reported,
    }


def of_scrape(of: Snapshot) -> Snapshot:
    still = {name: tuple(replace(one, increase=0.0) for one in group) for name, group in of.metrics.samples.items()}
    return replace(of, metrics=Metrics(still, window="14s", source="scrape"))


@pytest.mark.parametrize("check", ["KV954", "KV955", "KV956"])
def test_other_routers_are_not_judged(check: str) -> None:
    assert statuses(check, snapshot(router(), worker())) == {"fleet": Status.SKIP}


@pytest.mark.parametrize("check", ["KV954", "KV955"])
def test_a_mode_that_does_not_look_at_caches_is_not_judged_by_them(check: str) -> None:
    assert only(check, own([decided(512, 512)] * 50, mode="random")).reason is Reason.NOT_APPLICABLE


@pytest.mark.parametrize("check", ["KV954", "KV955"])
def test_without_the_routers_mode_there_is_no_data(check: str) -> None:
    assert only(check, snapshot(router(), worker(), stack=Stack.KVCTL)).reason is Reason.NO_DATA


# -- KV954 -----------------------------------------------------------------------------------------------------------


def test_kv954_passes_where_differences_add_up_to_a_fifth() -> None:
    # 16 right, 4 predicted 500 where the engine had none: 2,000 of 10,000
    found = only("KV954", own([decided(500, 500)] * 16 + [decided(500, 0)] * 4))
    assert (found.status, found.message) == (
        Status.PASS,
        "10000 cached tokens predicted, 8000 reported by the engines (20 decisions): off by 20%",
    )


def test_kv954_warns_above_a_fifth() -> None:
    assert only("KV954", own([decided(500, 500)] * 15 + [decided(500, 0)] * 5)).status is Status.WARN


def test_kv954_does_not_let_too_much_and_too_little_cancel() -> None:
    assert only("KV954", own([decided(500, 0), decided(0, 500)] * 10)).status is Status.WARN


def loaded(tokens: float) -> Sample:
    return sample("external_prefix_cache_hits", tokens, "prod/w-0", increase=tokens)


def test_kv954_does_not_blame_the_prediction_for_what_a_connector_loaded() -> None:
    # 2,000 more than predicted, of which 1,000 were loaded: 1,000 of 10,000
    found = only("KV954", own([decided(400, 500)] * 20, loaded(1000)))
    assert (found.status, found.message) == (
        Status.PASS,
        "8000 cached tokens predicted, 10000 reported by the engines, 1000 of them loaded by a connector"
        " (20 decisions): off by 10%",
    )


def test_kv954_does_not_excuse_too_high_predictions_by_what_a_connector_loaded() -> None:
    assert only("KV954", own([decided(500, 300)] * 20, loaded(10_000))).status is Status.WARN


def test_kv954_takes_what_a_connector_loaded_off_the_routers_counters_too() -> None:
    samples = [*joined(5000, 10_000, 100), loaded(5000)]
    assert only("KV954", own([], *samples)).status is Status.PASS
    assert only("KV954", own([], *samples[:3])).status is Status.WARN


def test_kv954_skips_where_nothing_was_cached() -> None:
    assert only("KV954", own([decided(0, 0)] * 20)).reason is Reason.NO_TRAFFIC


def joined(predicted: float, reported: float, requests: float) -> list[Sample]:
    return [
        grown("kvctl_joined_predicted_tokens", predicted),
        grown("kvctl_engine_reused_tokens", reported),
        grown("kvctl_joined_requests", requests),
    ]


def test_kv954_takes_the_counters_where_too_few_decisions_are_kept() -> None:
    found = only("KV954", own([decided(500, 500)] * 19, *joined(10000, 9000, 30)))
    assert (found.status, found.message) == (
        Status.PASS,
        "10000 cached tokens predicted, 9000 reported by the engines (30 requests, 15m): off by 10%",
    )


def test_kv954_warns_by_the_counters_too() -> None:
    assert only("KV954", own([], *joined(10000, 7999, 30))).status is Status.WARN


def test_kv954_skips_below_twenty_answers() -> None:
    assert only("KV954", own([], *joined(10000, 10000, 19))).reason is Reason.NO_TRAFFIC


def test_kv954_says_how_engines_are_made_to_report() -> None:
    found = only("KV954", own([decided(500)] * 30, *joined(0, 0, 0)))
    assert (found.reason, found.hint) == (Reason.NO_DATA, "Start vLLM with --enable-prompt-tokens-details")


def test_kv954_skips_without_decisions_and_counters() -> None:
    assert only("KV954", own([])).reason is Reason.NO_DATA


# -- KV955 -----------------------------------------------------------------------------------------------------------


def test_kv955_passes_from_five_percent_on() -> None:
    found = only("KV955", own([decided(512)] + [decided(0)] * 19))
    assert (found.status, found.message) == (
        Status.PASS,
        "1 of 20 decisions (5.0%) went to a worker with a cached prefix",
    )


def test_kv955_warns_below() -> None:
    assert only("KV955", own([decided(512)] + [decided(0)] * 20)).status is Status.WARN


def test_kv955_fails_where_none_did_and_the_engines_reused_tokens() -> None:
    of = own([decided(0)] * 50, grown("kvctl_engine_reused_tokens", 4096))
    assert only("KV955", of).status is Status.FAIL


def test_kv955_fails_where_none_did_and_the_probe_repeated() -> None:
    assert only("KV955", own([decided(0)] * 50, probe=PROBED)).status is Status.FAIL


def test_kv955_cannot_tell_where_nothing_shows_that_prompts_repeat() -> None:
    assert only("KV955", own([decided(0)] * 50)).reason is Reason.NO_DATA


def test_kv955_needs_fifty_decisions_before_none_is_a_failure() -> None:
    assert only("KV955", own([decided(0)] * 49, probe=PROBED)).reason is Reason.NO_TRAFFIC


def tokens(chosen: float, prompt: float, requests: float = 60) -> list[Sample]:
    return [
        grown("kvctl_selected_cached_tokens", chosen),
        grown("kvctl_prompt_tokens", prompt),
        grown("kvctl_requests", requests),
        grown("kvctl_best_eligible_cached_tokens", 2 * chosen),
    ]


def test_kv955_takes_the_counters_where_too_few_decisions_are_kept() -> None:
    found = only("KV955", own([], *tokens(500, 10000)))
    assert (found.status, found.message) == (
        Status.PASS,
        "5.0% (500 of 10000, 15m) of the prompt tokens were cached on the worker that was chosen",
    )
    assert found.evidence[-1].text == "the chosen workers had 50% of the most that any had (15m)"


def test_kv955_warns_by_the_counters_too() -> None:
    assert only("KV955", own([], *tokens(499, 10000))).status is Status.WARN


def test_kv955_fails_by_the_counters_too_but_only_warns_over_the_lifetime() -> None:
    of = own([], *tokens(0, 10000), probe=PROBED)
    assert only("KV955", of).status is Status.FAIL
    assert only("KV955", of_scrape(of)).status is Status.WARN


def test_kv955_skips_below_twenty_decisions() -> None:
    assert only("KV955", own([decided(512)] * 19)).reason is Reason.NO_TRAFFIC


def test_kv955_skips_without_decisions_and_counters() -> None:
    assert only("KV955", own([])).reason is Reason.NO_DATA


# -- KV956 -----------------------------------------------------------------------------------------------------------


def legs(*counts: float, failed: float = 0, outcome: str = "connect_failed") -> list[Sample]:
    """Answers of gpu-0, gpu-1, …, and failed attempts at gpu-0."""
    ok = [grown("kvctl_legs", count, worker=f"gpu-{at}", outcome="ok") for at, count in enumerate(counts)]
    bad = [grown("kvctl_legs", failed, worker="gpu-0", outcome=outcome)] if failed else []
    return [grown("kvctl_requests", sum(counts)), *ok, *bad]


def test_kv956_passes_where_the_load_is_even() -> None:
    assert [one.status for one in findings("KV956", own([], *legs(10, 10, 10)))] == [Status.PASS, Status.PASS]


@pytest.mark.parametrize("code", ["no_worker", "all_workers_busy"])
def test_kv956_warns_of_requests_that_nobody_could_take(code: str) -> None:
    found = findings("KV956", own([], *legs(10, 10, 10), grown("kvctl_refused", 3, code=code)))
    assert found[0].status is Status.WARN
    assert found[0].message == f"3 requests were refused with {code} (15m)"


def test_kv956_does_not_mind_requests_refused_for_the_clients_own_mistake() -> None:
    of = own([], *legs(10, 10, 10), grown("kvctl_refused", 3, code="model_not_found"))
    assert statuses("KV956", of) == {"fleet": Status.PASS}


def test_kv956_warns_of_a_worker_at_which_more_than_a_twentieth_fails() -> None:
    found = findings("KV956", own([], *legs(93, 93, 93, failed=7)))
    assert (found[0].status, found[0].message) == (
        Status.WARN,
        "7.0% of 100 attempts at worker gpu-0 failed: 7 connect_failed",
    )


@pytest.mark.parametrize(("failed", "outcome"), [(5, "reset"), (95, "client_gone")])
def test_kv956_lets_few_failures_and_clients_that_left_be(failed: float, outcome: str) -> None:
    assert statuses("KV956", own([], *legs(95, 95, 95, failed=failed, outcome=outcome))) == {"fleet": Status.PASS}


def test_kv956_warns_where_one_worker_is_overrun_and_another_idles() -> None:
    queues = [sample("requests_waiting", 4, "prod/w-0"), sample("requests_running", 0, "prod/w-1")]
    of = own([], *legs(31, 10, 10), *queues)
    assert statuses("KV956", of)["w-0"] is Status.WARN


def test_kv956_skips_without_the_routers_counters() -> None:
    assert only("KV956", own([decided(1)] * 30)).reason is Reason.NO_DATA
