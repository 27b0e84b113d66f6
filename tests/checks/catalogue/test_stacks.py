"""KV911, KV921, KV931, KV941: Dynamo, SGLang, TensorRT-LLM, LMCache's multi-process server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.metrics.view import Metrics, Sample
from checks.model import Reason, Stack, Status
from checks.snapshot import Member, Role, Snapshot
from tests.checks.build import NOW, kubelet_time, only, router, sample, snapshot, statuses, worker

MP = ("--kv-transfer-config", '{"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}')


def grown(name: str, value: float, member: str = "prod/w-0", **labels: str) -> Sample:
    return sample(name, value, member, increase=value, **labels)


def of_scrape(of: Snapshot) -> Snapshot:
    still = {name: tuple(replace(one, increase=0.0) for one in group) for name, group in of.metrics.samples.items()}
    return replace(of, metrics=Metrics(still, window="14s", source="scrape"))


# -- KV911 -----------------------------------------------------------------------------------------------------------


def dynamo(*samples: Sample, mode: str = "kv", members: tuple[Member, ...] = (worker(),)) -> Snapshot:
    return snapshot(router(args=("--router-mode", mode)), *members, stack=Stack.DYNAMO, samples=samples)


def served(requests: float, hit_sum: float = 0.0) -> list[Sample]:
    return [
        grown("dynamo_router_requests", requests, "prod/router-0"),
        grown("dynamo_kv_hit_rate_sum", hit_sum, "prod/router-0"),
        grown("dynamo_kv_hit_rate_count", requests, "prod/router-0"),
    ]


def applied(count: float, **labels: str) -> Sample:
    return sample("dynamo_events_applied", count, "prod/router-0", **labels)


def test_kv911_passes_where_events_arrive_and_prefixes_are_found() -> None:
    found = only("KV911", dynamo(*served(50, 10), applied(700)))
    assert (found.status, found.message) == (Status.PASS, "700 KV events applied; on average 20% of a prompt was found")


def test_kv911_fails_where_no_event_was_ever_applied() -> None:
    found = only("KV911", dynamo(*served(1)))
    assert (found.status, found.message) == (
        Status.FAIL,
        "1 requests and no KV event applied: the router only guesses what is cached",
    )


def test_kv911_counts_only_events_whose_status_is_ok() -> None:
    of = dynamo(*served(50, 10), applied(0, status="ok"), applied(9, status="parent_block_not_found"))
    assert only("KV911", of).status is Status.FAIL


def test_kv911_warns_where_fifty_requests_found_nothing() -> None:
    assert only("KV911", dynamo(*served(50), applied(700))).status is Status.WARN


def test_kv911_skips_fewer_requests_without_a_hit() -> None:
    assert only("KV911", dynamo(*served(49), applied(700))).reason is Reason.NO_TRAFFIC


@pytest.mark.parametrize("name", ["dynamo_dropped_events", "dynamo_source_mismatch"])
def test_kv911_warns_of_lost_events(name: str) -> None:
    of = dynamo(*served(50, 10), applied(700), sample(name, 3, "prod/router-0"))
    assert statuses("KV911", of) == {"fleet": Status.WARN}


def test_kv911_warns_of_another_block_size_than_the_engines() -> None:
    size = sample("dynamo_block_size", 64, "prod/router-0")
    members = (worker("w-0", args=("--block-size", "16")), worker("w-1", args=("--block-size", "64")))
    of = dynamo(*served(50, 10), applied(700), size, members=members)
    assert statuses("KV911", of) == {"fleet": Status.PASS, "w-0": Status.WARN}


def test_kv911_skips_before_the_first_request() -> None:
    assert only("KV911", dynamo(*served(0))).reason is Reason.NO_TRAFFIC


def test_kv911_skips_without_metrics() -> None:
    assert only("KV911", dynamo()).reason is Reason.NO_DATA


def test_kv911_is_not_asked_of_another_mode() -> None:
    assert only("KV911", dynamo(*served(50), mode="round-robin")).reason is Reason.NOT_APPLICABLE


def test_kv911_skips_where_the_mode_is_not_known() -> None:
    of = snapshot(router(), worker(), stack=Stack.DYNAMO, samples=served(50))
    assert only("KV911", of).reason is Reason.NO_DATA


# -- KV921 -----------------------------------------------------------------------------------------------------------


def sglang(*samples: Sample, stack: Stack = Stack.SGLANG) -> Snapshot:
    return snapshot(worker(), stack=stack, samples=samples)


def test_kv921_passes_from_ten_percent_on() -> None:
    found = only("KV921", sglang(grown("sglang_cached_tokens", 1000), grown("sglang_prompt_tokens", 10000)))
    assert (found.status, found.message) == (
        Status.PASS,
        "10% (1000 of 10000, 15m) of the prompt tokens were cached",
    )


def test_kv921_takes_a_missing_series_of_hits_for_none() -> None:
    assert only("KV921", sglang(grown("sglang_prompt_tokens", 10000))).status is Status.WARN


def test_kv921_skips_with_too_little_traffic() -> None:
    assert only("KV921", sglang(grown("sglang_prompt_tokens", 9999))).reason is Reason.NO_TRAFFIC


def test_kv921_skips_without_metrics() -> None:
    assert only("KV921", sglang()).reason is Reason.NO_DATA


def test_kv921_judges_sglang_behind_other_routers_too() -> None:
    of = sglang(grown("sglang_cached_tokens", 1000), grown("sglang_prompt_tokens", 10000), stack=Stack.LLM_D)
    assert only("KV921", of).status is Status.PASS


def test_kv921_is_not_asked_of_other_engines() -> None:
    assert only("KV921", sglang(stack=Stack.PRODUCTION_STACK)).reason is Reason.NOT_APPLICABLE


def test_kv921_skips_without_a_ready_worker() -> None:
    assert only("KV921", snapshot(worker(ready=False), stack=Stack.SGLANG)).reason is Reason.NO_DATA


# -- KV931 -----------------------------------------------------------------------------------------------------------


def trtllm(*samples: Sample, args: tuple[str, ...] = ()) -> Snapshot:
    return snapshot(router(args=args), worker(), stack=Stack.TRTLLM, samples=samples)


def blocks(reused: float, missed: float) -> list[Sample]:
    """Blocks of 32 tokens."""
    return [
        grown("trtllm_reused_blocks", reused),
        grown("trtllm_missed_blocks", missed),
        sample("trtllm_tokens_per_block", 32),
    ]


def test_kv931_passes_from_ten_percent_on() -> None:
    found = only("KV931", trtllm(*blocks(40, 360)))
    assert (found.status, found.message) == (Status.PASS, "10% (40 of 400, 15m) of the blocks were reused")


def test_kv931_warns_below() -> None:
    assert only("KV931", trtllm(*blocks(39, 361))).status is Status.WARN


def test_kv931_counts_blocks_as_tokens_before_it_judges() -> None:
    # 312 blocks of 32 tokens are 9,984 tokens, 313 are 10,016
    assert only("KV931", trtllm(*blocks(31, 281))).reason is Reason.NO_TRAFFIC
    assert only("KV931", trtllm(*blocks(32, 281))).status is Status.PASS


def test_kv931_takes_the_lifetime_where_two_scrapes_saw_nothing() -> None:
    found = only("KV931", of_scrape(trtllm(*blocks(200, 200))))
    assert found.message == "50% (200 of 400, lifetime) of the blocks were reused"


def test_kv931_takes_tokens_where_blocks_are_not_counted() -> None:
    of = trtllm(grown("trtllm_cached_tokens", 2000), grown("trtllm_prompt_tokens", 10000))
    assert only("KV931", of).message == "20% (2000 of 10000, 15m) of the prompt tokens were cached"


def test_kv931_does_not_judge_by_the_gauge() -> None:
    assert only("KV931", trtllm(sample("trtllm_hit_rate", 0.9))).reason is Reason.NO_DATA


def test_kv931_fails_where_the_router_counts_with_other_blocks() -> None:
    of = trtllm(*blocks(40, 360), args=("--kv-cache-block-size", "128"))
    assert statuses("KV931", of) == {"w-0": Status.FAIL}


def test_kv931_passes_where_the_router_counts_with_the_same_blocks() -> None:
    of = trtllm(*blocks(40, 360), args=("--kv-cache-block-size", "32"))
    assert statuses("KV931", of) == {"w-0": Status.PASS}


def test_kv931_skips_without_metrics() -> None:
    assert only("KV931", trtllm()).reason is Reason.NO_DATA


def test_kv931_is_not_asked_of_other_engines() -> None:
    assert only("KV931", snapshot(worker(), stack=Stack.DYNAMO)).reason is Reason.NOT_APPLICABLE


def test_kv931_skips_without_a_ready_worker() -> None:
    assert only("KV931", snapshot(worker(ready=False), stack=Stack.TRTLLM)).reason is Reason.NO_DATA


# -- KV941 -----------------------------------------------------------------------------------------------------------

OTHER = "LMCache INFO: Stored 512 tokens in 0.012 seconds (server.py:1:lmcache.v1.multiprocess)"
GONE = "LMCache ERROR: No GPU context registered for instance ID 7 (server.py:1:lmcache.v1.multiprocess)"
REAPED = "LMCache ERROR: instance 7: context is not registered (or reaped) (server.py:1:lmcache.v1.multiprocess)"
LATE = (
    "LMCache WARNING: LOOKUP to tcp://localhost:5555 timed out after 5.0s. Marking server as unhealthy. "
    "(client.py:1:lmcache.v1.multiprocess)"
)


def said(*messages: str, at: float = NOW - 60) -> str:
    return "\n".join(f"{kubelet_time(at)} [2026-08-01 10:29:00,000] {message}" for message in messages)


def mp(text: str, *samples: Sample) -> Snapshot:
    return snapshot(worker(args=MP, log=text), samples=samples)


def asked(hits: float, tokens: float) -> list[Sample]:
    return [
        grown("mp_lookup_hit_tokens", hits, "prod/cache"),
        grown("mp_lookup_requested_tokens", tokens, "prod/cache"),
    ]


def test_kv941_passes_where_the_server_serves() -> None:
    assert statuses("KV941", mp(said(OTHER), *asked(500, 10000))) == {"w-0": Status.PASS, "fleet": Status.PASS}


@pytest.mark.parametrize("message", [GONE, REAPED])
def test_kv941_fails_where_the_server_dropped_a_worker(message: str) -> None:
    assert statuses("KV941", mp(said(message), *asked(500, 10000)))["w-0"] is Status.FAIL


def test_kv941_warns_of_a_drop_before_the_window() -> None:
    text = said(GONE, at=NOW - 1000)
    assert statuses("KV941", mp(text, *asked(500, 10000)))["w-0"] is Status.WARN


def test_kv941_lets_a_drop_be_that_was_mended_since() -> None:
    text = said(GONE, at=NOW - 1000) + said("LMCache server is healthy again — resuming normal operation", at=NOW - 950)
    assert statuses("KV941", mp(text, *asked(500, 10000)))["w-0"] is Status.PASS


def test_kv941_reads_the_servers_own_log() -> None:
    server = replace(worker("cache", log=said(GONE)), role=Role.CACHE_SERVER)
    of = snapshot(worker(args=MP, log=said(OTHER)), server, samples=asked(500, 10000))
    assert statuses("KV941", of) == {"w-0": Status.PASS, "cache": Status.FAIL, "fleet": Status.PASS}


def test_kv941_warns_of_timeouts_in_the_log() -> None:
    assert statuses("KV941", mp(said(LATE), *asked(500, 10000)))["w-0"] is Status.WARN


@pytest.mark.parametrize("name", ["mp_timeouts", "mp_l1_allocation_failures", "mp_l2_prefetch_failures"])
def test_kv941_warns_of_failures_that_the_server_counts(name: str) -> None:
    of = mp(said(OTHER), *asked(500, 10000), grown(name, 2, "prod/cache"))
    assert statuses("KV941", of)["fleet"] is Status.WARN


def test_kv941_warns_where_little_is_found() -> None:
    assert statuses("KV941", mp(said(OTHER), *asked(499, 10000)))["fleet"] is Status.WARN


def test_kv941_skips_the_ratio_with_too_little_traffic() -> None:
    assert statuses("KV941", mp(said(OTHER), *asked(0, 9999)))["fleet"] is Status.SKIP


def test_kv941_skips_what_was_not_read() -> None:
    of = snapshot(worker(args=MP, log=None))
    assert statuses("KV941", of) == {"w-0": Status.SKIP, "fleet": Status.SKIP}


def test_kv941_is_not_asked_without_such_a_server() -> None:
    assert only("KV941", snapshot(worker())).reason is Reason.NOT_APPLICABLE
