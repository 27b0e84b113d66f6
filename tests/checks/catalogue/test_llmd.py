"""KV901-KV905: endpoint pickers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.metrics.view import Metrics, Page, Sample
from checks.model import Reason, Stack, Status
from checks.snapshot import Member, Resources, Snapshot
from tests.checks.build import NOW, kubelet_time, only, router, sample, snapshot, statuses, worker

CHECK_IDS = ("KV901", "KV902", "KV903", "KV904", "KV905")
CONFIG = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: precise-prefix-cache-scorer
  parameters:
    indexerConfig: {}
    tokenProcessorConfig: {blockSize: 64, hashSeed: "42"}
"""


def epp(**more: object) -> Member:
    return router("epp-0", **more)  # type: ignore[arg-type]


def llmd(*members: Member, samples: tuple[Sample, ...] | list[Sample] = (), **more: object) -> Snapshot:
    return snapshot(*members, stack=Stack.LLM_D, samples=samples, **more)  # type: ignore[arg-type]


def own(name: str, value: float, **labels: str) -> Sample:
    return sample(name, value, "prod/epp-0", increase=value, **labels)


def of_scrape(of: Snapshot) -> Snapshot:
    """The same numbers as totals of two scrapes between which nothing moved."""
    still = {name: tuple(replace(one, increase=0.0) for one in group) for name, group in of.metrics.samples.items()}
    return replace(of, metrics=Metrics(still, window="14s", source="scrape"))


@pytest.mark.parametrize("check", CHECK_IDS)
def test_other_stacks_are_not_judged(check: str) -> None:
    assert statuses(check, snapshot(epp(), worker(), stack=Stack.HYPERPOD)) == {"fleet": Status.SKIP}


@pytest.mark.parametrize("check", ["KV901", "KV902", "KV904"])
def test_without_a_picker_there_is_no_data(check: str) -> None:
    assert only(check, llmd(worker())).reason is Reason.NO_DATA


# -- KV901 -----------------------------------------------------------------------------------------------------------


def index(size: float, ratio_sum: float, requests: float, *more: Sample) -> Snapshot:
    samples = [
        sample("epp_index_size", size, "prod/epp-0"),
        own("epp_hit_ratio_sum", ratio_sum),
        own("epp_hit_ratio_count", requests),
        own("epp_requests", requests),
        *more,
    ]
    return llmd(epp(), worker(), samples=samples)


def test_kv901_passes_where_prefixes_were_found() -> None:
    found = only("KV901", index(10, 20, 80, own("epp_cached_tokens", 300), own("epp_input_tokens", 1000)))
    assert found.status is Status.PASS
    assert found.message == (
        "on average 25% of a prompt was found in its index; the engines reported 30% of the tokens cached"
    )


def test_kv901_fails_at_no_hit_in_51_requests_with_an_empty_index() -> None:
    assert statuses("KV901", index(0, 0, 51)) == {"epp-0": Status.FAIL}


def test_kv901_warns_where_the_index_is_not_empty() -> None:
    assert statuses("KV901", index(7, 0, 51)) == {"epp-0": Status.WARN}


def test_kv901_only_warns_over_the_pickers_lifetime() -> None:
    assert statuses("KV901", of_scrape(index(0, 0, 51))) == {"epp-0": Status.WARN}


def test_kv901_skips_at_fifty_requests() -> None:
    assert only("KV901", index(0, 0, 50)).reason is Reason.NO_TRAFFIC


def test_kv901_skips_without_its_metrics() -> None:
    assert only("KV901", llmd(epp(), worker())).reason is Reason.NO_DATA


def test_kv901_judges_all_pickers_together_where_series_have_no_pod() -> None:
    of = index(10, 20, 80)
    found = only("KV901", replace(of, metrics=replace(of.metrics, by_member=False)))
    assert (found.status, found.target.kind) == (Status.PASS, "Fleet")


# -- KV902 -----------------------------------------------------------------------------------------------------------


def precise(admitted: float, lookups: float, hits: float) -> Snapshot:
    samples = [
        own("llmd_admissions", admitted),
        own("llmd_lookup_requests", lookups),
        own("llmd_lookup_hits", hits),
    ]
    return llmd(epp(), worker(), samples=samples)


def test_kv902_passes_where_lookups_hit() -> None:
    found = only("KV902", precise(900, 60, 12))
    assert (found.status, found.message) == (Status.PASS, "12 hits in 60 lookups, 900 admissions")


def test_kv902_fails_where_no_block_was_ever_admitted() -> None:
    found = only("KV902", precise(0, 1, 0))
    assert (found.status, found.message) == (
        Status.FAIL,
        "no KV event has arrived: the index never admitted a block",
    )


def test_kv902_fails_at_51_lookups_without_a_hit() -> None:
    assert statuses("KV902", precise(900, 51, 0)) == {"epp-0": Status.FAIL}


def test_kv902_only_warns_of_it_over_the_pickers_lifetime() -> None:
    assert statuses("KV902", of_scrape(precise(900, 51, 0))) == {"epp-0": Status.WARN}


def test_kv902_skips_at_fifty_lookups() -> None:
    assert only("KV902", precise(900, 50, 0)).reason is Reason.NO_TRAFFIC


def test_kv902_skips_before_the_first_request() -> None:
    assert only("KV902", precise(0, 0, 0)).reason is Reason.NO_TRAFFIC


def test_kv902_skips_where_its_metrics_are_not_enabled() -> None:
    assert only("KV902", llmd(epp(), worker(), samples=[own("epp_requests", 9)])).reason is Reason.NO_DATA


# -- KV903 -----------------------------------------------------------------------------------------------------------


def configured(*workers: Member, text: str = CONFIG) -> Snapshot:
    return llmd(epp(args=("--config-text", text)), *workers)


SEED = {"PYTHONHASHSEED": "42"}


def test_kv903_passes_where_blocks_and_seed_agree() -> None:
    found = only("KV903", configured(worker(args=("--block-size", "64"), env=SEED)))
    assert (found.status, found.message) == (
        Status.PASS,
        "agrees with the endpoint picker: blocks of 64 tokens, hash seed 42",
    )


def test_kv903_fails_other_blocks() -> None:
    of = configured(worker(args=("--block-size", "16"), env=SEED))
    assert statuses("KV903", of) == {"w-0": Status.FAIL}


def test_kv903_warns_of_another_seed() -> None:
    of = configured(worker(args=("--block-size", "64"), env={"PYTHONHASHSEED": "1"}))
    assert statuses("KV903", of) == {"w-0": Status.WARN}


def test_kv903_reads_a_config_map_and_the_newer_key() -> None:
    text = "kind: EndpointPickerConfig\nplugins:\n- parameters: {blockSizeTokens: 16}\n"
    config = {"metadata": {"name": "epp"}, "data": {"epp.yaml": text, "other": "blockSize: 99"}}
    of = llmd(epp(), worker(args=("--block-size", "64")), resources=Resources({"configmaps": (config,)}))
    found = only("KV903", of)
    assert (found.status, found.evidence[0].where) == (Status.FAIL, "ConfigMap epp/epp.yaml")


def test_kv903_skips_an_engine_whose_block_size_is_not_known() -> None:
    of = configured(worker(), text="kind: EndpointPickerConfig\nblockSize: 64")
    assert only("KV903", of).reason is Reason.NO_DATA


def test_kv903_skips_a_seed_that_was_not_read() -> None:
    of = configured(worker(env={"PYTHONHASHSEED": "<from:secret/x>"}), text="hashSeed: 42\nkind: EndpointPickerConfig")
    assert only("KV903", of).reason is Reason.NO_DATA


@pytest.mark.parametrize("text", ["kind: EndpointPickerConfig", "kind: [unclosed", "blockSize: 64\n" * 90_000])
def test_kv903_skips_a_configuration_that_says_nothing(text: str) -> None:
    assert only("KV903", configured(worker(), text=text)).reason is Reason.NO_DATA


def test_kv903_skips_without_workers() -> None:
    assert only("KV903", configured()).reason is Reason.NO_DATA


# -- KV904 -----------------------------------------------------------------------------------------------------------


def lines(count: int, at: float = NOW - 600, first: float = NOW - 1200) -> Snapshot:
    text = "\n".join(
        [
            f"{kubelet_time(first)} started",
            *[f"{kubelet_time(at)} PrefixCacheMatchInfo not found for endpoint, assigning score 0"] * count,
        ]
    )
    return llmd(epp(log=text), worker())


def test_kv904_passes_below_one_line_a_minute() -> None:
    found = only("KV904", lines(14))
    assert (found.status, found.message) == (Status.PASS, "14 lines of lost events or scores in 15 min")


def test_kv904_warns_from_one_line_a_minute_on() -> None:
    found = only("KV904", lines(15))
    assert (found.status, found.message) == (Status.WARN, "15 lines in 15 min say that events or scores are lost")


def test_kv904_counts_over_what_the_log_covers() -> None:
    assert statuses("KV904", lines(5, at=NOW - 60, first=NOW - 300)) == {"epp-0": Status.WARN}


def test_kv904_leaves_out_what_is_older_than_the_window() -> None:
    assert statuses("KV904", lines(99, at=NOW - 1000)) == {"epp-0": Status.PASS}


def test_kv904_skips_a_log_that_was_not_read() -> None:
    assert only("KV904", llmd(epp(log=None, log_missing=Reason.TIMEOUT), worker())).reason is Reason.TIMEOUT


# -- KV905 -----------------------------------------------------------------------------------------------------------

VLLM = ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:cache_config_info")


def exposing(*names: str, picker: Member | None = None, **more: object) -> Snapshot:
    page = Page("prod/w-0", 200, frozenset(names))
    metrics = Metrics(pages={"prod/w-0": page}, source="scrape")
    return llmd(picker or epp(), worker(**more), metrics=metrics)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "names",
    [
        VLLM,
        tuple(name.replace(":", "_") for name in VLLM),
        ("sglang:num_queue_reqs", "sglang:num_running_reqs", "sglang:token_usage"),
        ("trtllm_num_requests_waiting", "trtllm_num_requests_running", "trtllm_kv_cache_utilization"),
    ],
)
def test_kv905_passes_where_an_engine_exposes_the_names(names: tuple[str, ...]) -> None:
    assert statuses("KV905", exposing(*names)) == {"w-0": Status.PASS}


def test_kv905_fails_and_names_what_is_missing() -> None:
    found = only(
        "KV905", exposing("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:gpu_cache_usage_perc")
    )
    assert found.status is Status.FAIL
    assert found.message == (
        "does not expose vllm:kv_cache_usage_perc, vllm:cache_config_info, which the endpoint picker reads"
    )


def test_kv905_reads_the_names_that_the_picker_was_told() -> None:
    old = (*VLLM[:2], "vllm:gpu_cache_usage_perc", VLLM[3])
    told = epp(args=("--kv-cache-usage-percentage-metric", 'vllm:gpu_cache_usage_perc{engine="0"}'))
    assert statuses("KV905", exposing(*old, picker=told)) == {"w-0": Status.PASS}


def test_kv905_reads_the_names_of_prometheus_where_there_is_no_page() -> None:
    samples = [Sample(name, "prod/w-0", {}, 1.0, spelled=name) for name in VLLM]
    assert statuses("KV905", llmd(epp(), worker(), samples=samples)) == {"w-0": Status.PASS}


def test_kv905_is_not_asked_of_an_unknown_engine() -> None:
    assert only("KV905", exposing("http_requests_total")).reason is Reason.NOT_APPLICABLE


def test_kv905_skips_without_metrics() -> None:
    assert only("KV905", llmd(epp(), worker())).reason is Reason.NO_DATA


def test_kv905_skips_without_workers() -> None:
    assert only("KV905", llmd(epp())).reason is Reason.NO_DATA
