"""KV601-KV604, KV606: is the cache really hit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.metrics.view import Metrics, Sample
from checks.model import Reason, Stack, Status
from checks.probe_evidence import ProbeEvidence, ProbeStep
from checks.snapshot import Member, Resources, Snapshot
from tests.checks.build import NOW, kubelet_time, only, router, sample, snapshot, statuses, worker

KVAWARE = ("--routing-logic", "kvaware")
LMC = ("--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}')
MP = ("--kv-transfer-config", '{"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}')
HIT = (
    "INFO: Routing request to lmcacheengineconfig_ab12 found by kvaware router (routing_logic.py:6:vllm_router.routers)"
)
PROBED = ProbeEvidence((ProbeStep("cold", "a", 200), ProbeStep("repeat", "b", 200)))


def found_by_router() -> Member:
    return router(args=KVAWARE, log=f"{kubelet_time(NOW - 60)} [2026-08-01 10:29:00,000] {HIT}")


def lmcache(name: str = "w-0", **more: object) -> Member:
    return worker(name, **{"args": LMC, **more})  # type: ignore[arg-type]


def grown(name: str, value: float, member: str = "prod/w-0", **labels: str) -> Sample:
    """A counter that grew by its whole value in the window."""
    return sample(name, value, member, increase=value, **labels)


def engine(hits: float, queries: float, requests: float = 50, member: str = "prod/w-0") -> list[Sample]:
    return [
        grown("prefix_cache_hits", hits, member),
        grown("prefix_cache_queries", queries, member),
        grown("request_success", requests, member),
    ]


def still(samples: list[Sample]) -> list[Sample]:
    """The same totals, none of which moved between two scrapes."""
    return [replace(one, increase=0.0) for one in samples]


# -- KV601 -----------------------------------------------------------------------------------------------------------


def test_kv601_passes_from_ten_percent_on() -> None:
    found = only("KV601", snapshot(worker(), samples=engine(1000, 10000)))
    assert found.status is Status.PASS
    assert found.message == "the engine's prefix cache had 10% (1000 of 10000, 15m) of the prompt tokens"


def test_kv601_warns_below() -> None:
    assert only("KV601", snapshot(worker(), samples=engine(999, 10000))).status is Status.WARN


def test_kv601_fails_at_no_hit_where_the_router_found_caches() -> None:
    found = only("KV601", snapshot(found_by_router(), worker(), samples=engine(0, 10000)))
    assert found.status is Status.FAIL
    assert "although prompts share prefixes" in found.message


def test_kv601_fails_at_no_hit_where_the_probe_repeated() -> None:
    assert only("KV601", snapshot(worker(), samples=engine(0, 10000), probe=PROBED)).status is Status.FAIL


def test_kv601_only_warns_at_no_hit_where_prompts_may_be_unique() -> None:
    assert only("KV601", snapshot(worker(), samples=engine(0, 10000))).status is Status.WARN


def test_kv601_only_warns_at_no_hit_over_the_lifetime() -> None:
    of = snapshot(worker(), samples=still(engine(0, 10000)), probe=PROBED, source="scrape", window="14s")
    found = only("KV601", of)
    assert found.status is Status.WARN
    assert "(0 of 10000, lifetime)" in found.message


def test_kv601_takes_the_lifetime_where_two_scrapes_saw_too_little() -> None:
    few = [replace(one, increase=one.value / 100) for one in engine(5000, 10000)]
    found = only("KV601", snapshot(worker(), samples=few, source="scrape", window="14s"))
    assert found.message == "the engine's prefix cache had 50% (5000 of 10000, lifetime) of the prompt tokens"


@pytest.mark.parametrize(("queries", "requests"), [(9999, 50), (10000, 49)])
def test_kv601_skips_with_too_little_traffic(queries: float, requests: float) -> None:
    found = only("KV601", snapshot(worker(), samples=engine(0, queries, requests), probe=PROBED))
    assert found.reason is Reason.NO_TRAFFIC


def test_kv601_judges_the_fleet_where_only_all_workers_together_have_enough() -> None:
    samples = engine(2000, 6000, 30) + engine(0, 6000, 30, "prod/w-1")
    found = only("KV601", snapshot(worker("w-0"), worker("w-1", ip="10.0.0.2"), samples=samples))
    assert found.message == "the engine's prefix cache had 17% (2000 of 12000, 15m) of the prompt tokens"
    assert found.target.kind == "Fleet"


def test_kv601_judges_each_worker_that_has_enough() -> None:
    samples = engine(5000, 10000) + engine(100, 10000, 50, "prod/w-1") + engine(0, 10, 1, "prod/w-2")
    of = snapshot(worker("w-0"), worker("w-1"), worker("w-2"), samples=samples)
    assert statuses("KV601", of) == {"w-0": Status.PASS, "w-1": Status.WARN, "w-2": Status.SKIP}


def test_kv601_judges_the_fleet_where_series_have_no_worker() -> None:
    metrics = Metrics(
        {one.name: (replace(one, member=""),) for one in engine(1000, 10000)},
        window="15m",
        source="prometheus",
        by_member=False,
    )
    assert statuses("KV601", snapshot(worker(), metrics=metrics)) == {"fleet": Status.PASS}


def test_kv601_counts_blocks_up_to_vllm_08() -> None:
    block = sample("cache_config_info", 1, block_size="16")
    of = snapshot(worker(image="vllm/vllm-openai:v0.8.5"), samples=[*engine(100, 625), block])
    assert only("KV601", of).status is Status.PASS


def test_kv601_skips_blocks_that_are_fewer_tokens_than_needed() -> None:
    block = sample("cache_config_info", 1, block_size="16")
    of = snapshot(worker(image="vllm/vllm-openai:v0.8.5"), samples=[*engine(100, 624), block])
    assert only("KV601", of).reason is Reason.NO_TRAFFIC


def test_kv601_skips_an_engine_without_prefix_caching() -> None:
    off = sample("cache_config_info", 1, enable_prefix_caching="False")
    assert only("KV601", snapshot(worker(), samples=[*engine(0, 10000), off])).reason is Reason.DISABLED


def test_kv601_skips_without_metrics() -> None:
    assert only("KV601", snapshot(worker())).reason is Reason.NO_DATA


def test_kv601_says_that_metrics_are_turned_off() -> None:
    custom = {"metadata": {"name": "llama"}, "spec": {"metrics": {"enabled": False}}}
    of = snapshot(worker(), stack=Stack.HYPERPOD, resources=Resources({"inferenceendpointconfigs": (custom,)}))
    assert only("KV601", of).reason is Reason.DISABLED


def test_kv601_is_an_error_where_prometheus_could_not_be_reached() -> None:
    found = only("KV601", snapshot(worker(), metrics=Metrics(missing=Reason.UNREACHABLE)))
    assert (found.status, found.reason) == (Status.ERROR, Reason.UNREACHABLE)


# -- KV602 -----------------------------------------------------------------------------------------------------------


def lookups(hits: float, tokens: float, stored: float = 0, requests: float = 50) -> list[Sample]:
    return [
        grown("lmcache_lookup_hits", hits),
        grown("lmcache_lookup_tokens", tokens),
        grown("lmcache_lookup_requests", requests),
        grown("lmcache_stored_tokens", stored),
    ]


def test_kv602_passes_from_five_percent_on() -> None:
    found = only("KV602", snapshot(lmcache(), samples=lookups(500, 10000)))
    assert (found.status, found.message) == (
        Status.PASS,
        "LMCache found 5.0% (500 of 10000, 15m) of the tokens it was asked for",
    )


def test_kv602_warns_below() -> None:
    assert only("KV602", snapshot(lmcache(), samples=lookups(499, 10000))).status is Status.WARN


def test_kv602_fails_where_what_was_stored_is_never_found() -> None:
    of = snapshot(lmcache(), samples=lookups(0, 100000, stored=4096), probe=PROBED)
    found = only("KV602", of)
    assert found.status is Status.FAIL
    assert "although it stored 4096 tokens and prompts share prefixes" in found.message


def test_kv602_takes_the_engines_hits_for_proof_that_prompts_repeat() -> None:
    of = snapshot(lmcache(), samples=lookups(0, 100000, stored=4096) + engine(2000, 10000))
    assert only("KV602", of).status is Status.FAIL


@pytest.mark.parametrize(
    ("tokens", "stored", "probe"), [(99999, 4096, PROBED), (100000, 0, PROBED), (100000, 4096, None)]
)
def test_kv602_only_warns_where_one_part_of_the_proof_is_missing(
    tokens: float, stored: float, probe: ProbeEvidence | None
) -> None:
    assert only("KV602", snapshot(lmcache(), samples=lookups(0, tokens, stored), probe=probe)).status is Status.WARN


def test_kv602_only_warns_over_the_lifetime() -> None:
    samples = still(lookups(0, 100000, stored=4096))
    of = snapshot(lmcache(), samples=samples, probe=PROBED, source="scrape", window="14s")
    assert only("KV602", of).status is Status.WARN


def requests_log(hits: list[int], total: int = 1000) -> str:
    rows = [
        f"[2026-08-01 10:10:00,000] LMCache INFO: Reqid: cmpl-{at}, Total tokens {total}, LMCache hit tokens: {hit}, "
        "need to load: 0 (vllm_v1_adapter.py:1034:lmcache.integration.vllm.vllm_v1_adapter)"
        for at, hit in enumerate(hits)
    ]
    return "\n".join([*rows, *rows[:5]])


def test_kv602_reads_the_log_where_there_is_no_metric_and_counts_a_request_once() -> None:
    found = only("KV602", snapshot(lmcache(log=requests_log([256] * 20))))
    assert (found.status, found.message) == (
        Status.PASS,
        "LMCache found 26% (5120 of 20000, log) of the tokens it was asked for",
    )


def test_kv602_fails_by_the_log_where_what_was_stored_is_never_found() -> None:
    stored = (
        "\n[2026-08-01 10:10:00,000] LMCache INFO: Stored 512 out of total 713 tokens. size: 0.0625 gb, cost 12.3 ms "
        "(cache_engine.py:1:lmcache.v1.cache_engine)"
    )
    of = snapshot(lmcache(log=requests_log([0] * 20, total=5000) + stored), probe=PROBED)
    assert only("KV602", of).status is Status.FAIL


def test_kv602_does_not_judge_fewer_than_twenty_requests_of_a_log() -> None:
    assert only("KV602", snapshot(lmcache(log=requests_log([256] * 19)))).reason is Reason.NO_DATA


def test_kv602_skips_with_too_little_traffic() -> None:
    assert only("KV602", snapshot(lmcache(), samples=lookups(0, 9999))).reason is Reason.NO_TRAFFIC


@pytest.mark.parametrize("check", ["KV602", "KV603", "KV604", "KV605", "KV606"])
def test_lmcache_is_not_judged_where_no_worker_runs_it(check: str) -> None:
    assert only(check, snapshot(worker(), samples=engine(1, 10000))).reason is Reason.NOT_APPLICABLE


@pytest.mark.parametrize("check", ["KV602", "KV603", "KV604", "KV605"])
def test_lmcache_of_another_process_is_not_judged_by_the_engines_page(check: str) -> None:
    assert only(check, snapshot(worker(args=MP))).reason is Reason.NOT_APPLICABLE


@pytest.mark.parametrize("check", ["KV602", "KV603", "KV604", "KV605", "KV606"])
def test_lmcache_is_not_judged_without_its_metrics(check: str) -> None:
    assert only(check, snapshot(lmcache("w-0"), lmcache("w-1"))).reason is Reason.NO_DATA


# -- KV603 -----------------------------------------------------------------------------------------------------------


def loads(found: float, delivered: float, *more: Sample) -> Snapshot:
    samples = [
        grown("lmcache_lookup_hits", found),
        grown("lmcache_hit_tokens", delivered),
        grown("lmcache_lookup_tokens", 20000),
        *more,
    ]
    return snapshot(lmcache(), samples=samples)


def test_kv603_passes_where_tokens_were_delivered() -> None:
    asked, prompt = grown("lmcache_requested_tokens", 1000), grown("prompt_tokens", 3600)
    found = only("KV603", loads(1200, 900, asked, prompt))
    assert found.status is Status.PASS
    assert found.message == (
        "LMCache delivered 900 tokens, 25% of all prompt tokens, 90% of those it was asked to load"
    )


def test_kv603_counts_one_rank_of_several() -> None:
    samples = (
        [grown("lmcache_lookup_hits", 500, worker_id=rank) for rank in ("0", "1")]
        + [grown("lmcache_hit_tokens", 500, worker_id=rank) for rank in ("0", "1")]
        + [grown("lmcache_lookup_tokens", 1000, worker_id=rank) for rank in ("0", "1")]
    )
    found = only("KV603", snapshot(lmcache(), samples=[*samples, grown("prompt_tokens", 1000)]))
    assert found.message == "LMCache delivered 500 tokens, 50% of all prompt tokens"


def test_kv603_warns_where_nothing_that_was_found_was_delivered() -> None:
    found = only("KV603", loads(1200, 0))
    assert (found.status, found.message) == (Status.WARN, "LMCache found 1200 tokens and delivered none of them")


def test_kv603_shows_the_line_that_says_why() -> None:
    text = (
        "[2026-08-01 10:10:00,000] LMCache INFO: Reqid: cmpl-1, LMCache hit tokens: 256, but need to load: 100 < "
        "min_retrieve 512, skip retrieve but record for save skip (vllm_v1_adapter.py:1:lmcache)"
    )
    of = loads(1200, 0)
    found = only("KV603", replace(of, members=(lmcache(log=text),)))
    assert found.evidence[-1].text.startswith("Reqid: cmpl-1, LMCache hit tokens: 256, but need to load: 100")


def test_kv603_does_not_warn_where_the_engine_had_all_that_was_found() -> None:
    assert only("KV603", loads(1200, 0, grown("lmcache_vllm_hit_tokens", 1200))).reason is Reason.NO_TRAFFIC


def test_kv603_warns_where_the_engine_had_only_a_part() -> None:
    assert only("KV603", loads(1200, 0, grown("lmcache_vllm_hit_tokens", 1199))).status is Status.WARN


def test_kv603_skips_where_nothing_was_found() -> None:
    assert only("KV603", loads(0, 0)).reason is Reason.NO_TRAFFIC


# -- KV604 -----------------------------------------------------------------------------------------------------------


def rates(zeros: float, buckets: list[tuple[str, float]], total: float) -> Snapshot:
    name = "lmcache_request_cache_hit_rate"
    samples = [grown("lmcache_lookup_0_hit_requests", zeros)]
    samples += [grown(f"{name}_bucket", count, le=bound) for bound, count in buckets]
    if buckets:
        samples += [grown(f"{name}_count", buckets[-1][1]), grown(f"{name}_sum", total)]
    return snapshot(lmcache(), samples=samples)


def test_kv604_puts_the_missing_zeros_back_into_the_mean() -> None:
    # 20 requests without a hit, 60 with one, all in 0.5..0.6, their rates sum to 32: 32 / 80 = 40 %
    found = only("KV604", rates(20, [("0.5", 0), ("0.6", 60), ("+Inf", 60)], 32))
    assert found.status is Status.PASS
    # the median is the 40th of 80: the 20th of 60 in 0.5..0.6, at 0.5 + 0.1 * 20 / 60
    assert found.message == (
        "25% of 80 requests hit nothing in LMCache; on average 40% of a prompt was found, in the median 53%"
    )


def test_kv604_warns_where_more_than_95_percent_hit_nothing() -> None:
    assert only("KV604", rates(96, [("0.5", 4), ("+Inf", 4)], 1)).status is Status.WARN


def test_kv604_passes_at_exactly_95_percent() -> None:
    assert only("KV604", rates(95, [("0.5", 5), ("+Inf", 5)], 1)).status is Status.PASS


def test_kv604_warns_where_the_histogram_has_no_sample_because_all_missed() -> None:
    found = only("KV604", rates(50, [], 0))
    assert (found.status, found.message) == (Status.WARN, "100% of 50 requests hit nothing in LMCache")


def test_kv604_skips_below_fifty_lookups() -> None:
    assert only("KV604", rates(49, [], 0)).reason is Reason.NO_TRAFFIC


def test_kv604_skips_where_nothing_was_looked_up() -> None:
    assert only("KV604", rates(0, [("+Inf", 0)], 0)).reason is Reason.NO_TRAFFIC


def test_kv604_judges_the_fleet_where_only_all_workers_together_have_enough() -> None:
    samples = [grown("lmcache_lookup_0_hit_requests", 30, f"prod/w-{at}") for at in (0, 1)]
    found = only("KV604", snapshot(lmcache("w-0"), lmcache("w-1"), samples=samples))
    assert found.message == "100% of 60 requests hit nothing in LMCache"


# -- KV606 -----------------------------------------------------------------------------------------------------------


def external(hits: float, queries: float, *more: Sample) -> Snapshot:
    samples = [
        grown("external_prefix_cache_hits", hits),
        grown("external_prefix_cache_queries", queries),
        *more,
    ]
    return snapshot(lmcache(), samples=samples)


def test_kv606_passes_with_the_ratio_and_that_of_both_caches() -> None:
    found = only("KV606", external(1000, 5000, *engine(5000, 10000)))
    assert found.status is Status.PASS
    assert found.message == (
        "the connector had 20% (1000 of 5000, 15m) of the tokens that the engine lacked; with the engine's own cache "
        "60% of all prompt tokens were found"
    )


def test_kv606_shows_where_prompt_tokens_came_from() -> None:
    source = grown("prompt_tokens_by_source", 700, source="external_kv_transfer")
    assert only("KV606", external(1000, 5000, source)).evidence[-1].text == (
        "prompt tokens from external_kv_transfer: 700"
    )


def test_kv606_warns_where_lmcache_found_what_the_engine_lacked_and_no_hit_is_counted() -> None:
    more = [grown("lmcache_lookup_hits", 900), grown("lmcache_vllm_hit_tokens", 200)]
    found = only("KV606", external(0, 5000, *more))
    assert found.status is Status.WARN
    assert found.message == ("LMCache found 700 tokens that the engine lacked, and the engine counts no hit of them")


def test_kv606_skips_where_lmcache_found_nothing_either() -> None:
    assert only("KV606", external(0, 5000, grown("lmcache_lookup_hits", 0))).reason is Reason.NO_TRAFFIC


def test_kv606_skips_where_the_connector_was_not_asked() -> None:
    assert only("KV606", external(0, 0)).reason is Reason.NO_TRAFFIC


def test_kv606_asks_workers_with_lmcache_beside_them_too() -> None:
    of = external(1000, 5000)
    assert statuses("KV606", replace(of, members=(worker(args=MP),))) == {"w-0": Status.PASS}
