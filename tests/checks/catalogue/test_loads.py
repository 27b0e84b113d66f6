from __future__ import annotations

import pytest

from checks.metrics.view import Sample
from checks.model import Reason, Status
from checks.snapshot import Snapshot
from tests.checks.build import NOW, kubelet_time, only, router, sample, snapshot, statuses, worker

CONNECTOR = ("--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}')
TWO_RANKS = (*CONNECTOR, "--tensor-parallel-size", "2")
FULL = "LMCache WARNING: No eviction candidates found in local cpu backend (a.py:1:b)"
SHORT = "LMCache ERROR: The number of retrieved tokens is less than the expected number of tokens (a.py:1:b)"
LOST = "LMCache WARNING: failed to load 256 tokens across 16 blocks (a.py:1:b)"
LOADED = "LMCache INFO: [req_id=r] Retrieved 512 out of 512 required tokens (from 713 total tokens) (a.py:1:b)"
STORED = "LMCache INFO: [req_id=r] Stored 512 out of total 713 tokens. size: 0.0625 GB (a.py:1:b)"
REQUEST = "LMCache INFO: Reqid: cmpl-1-0, Total tokens 713, LMCache hit tokens: 512, need to load: 0 (a.py:1:b)"
DIFFER = "LMCache WARNING: Lookup results (number of hit tokens) differ across (TP and PP) ranks: [0, 256] (a.py:1:b)"
CHECK_IDS = ("KV313", "KV314", "KV315", "KV316")


def ago(seconds: float, message: str) -> str:
    return f"{kubelet_time(NOW - seconds)} [2026-08-01 10:20:00,000] {message}\n"


def of(*lines: str, samples: tuple[Sample, ...] = (), **more: object) -> Snapshot:
    more = {"args": CONNECTOR, **more}
    return snapshot(worker(log="".join(lines), **more), samples=samples)  # type: ignore[arg-type]


def status(check: str, *lines: str, samples: tuple[Sample, ...] = (), **more: object) -> Status:
    return statuses(check, of(*lines, samples=samples, **more))["w-0"]


def reason(check: str, *lines: str, samples: tuple[Sample, ...] = (), **more: object) -> Reason | None:
    return only(check, of(*lines, samples=samples, **more)).reason


@pytest.mark.parametrize("check", CHECK_IDS)
def test_a_worker_without_lmcache_is_not_judged(check: str) -> None:
    assert only(check, snapshot(worker())).reason is Reason.NOT_APPLICABLE


@pytest.mark.parametrize("check", CHECK_IDS)
def test_a_fleet_without_workers_has_no_data(check: str) -> None:
    assert only(check, snapshot(router())).reason is Reason.NO_DATA


@pytest.mark.parametrize("check", CHECK_IDS)
def test_no_log_and_no_metrics_have_no_data(check: str) -> None:
    assert only(check, snapshot(worker(log=None, args=TWO_RANKS))).reason is Reason.NO_DATA


@pytest.mark.parametrize("check", ["KV313", "KV314", "KV315"])
def test_a_log_that_hides_the_lines_says_nothing(check: str) -> None:
    hidden = of(ago(30, REQUEST), args=TWO_RANKS, env={"LMCACHE_LOG_LEVEL": "CRITICAL"})
    assert only(check, hidden).reason is Reason.LOG_LEVEL_HIDES


class TestBuffer:
    def test_ten_lines_in_a_minute_are_a_warning(self) -> None:
        assert status("KV313", *(ago(100 - at, FULL) for at in range(10))) is Status.WARN

    def test_ten_lines_in_ten_minutes_pass(self) -> None:
        assert status("KV313", *(ago(700 - 65 * at, FULL) for at in range(10)), ago(30, STORED)) is Status.PASS

    def test_lines_before_the_window_do_not_count(self) -> None:
        assert status("KV313", *(ago(1200 - at, FULL) for at in range(20)), ago(30, STORED)) is Status.PASS

    def test_without_stores_there_is_no_traffic(self) -> None:
        assert reason("KV313", ago(30, REQUEST)) is Reason.NO_TRAFFIC

    def test_failed_evictions_are_a_warning(self) -> None:
        assert status("KV313", samples=(sample("lmcache_local_cpu_evict_failed", 7, increase=2),)) is Status.WARN

    def test_a_full_buffer_and_an_engine_that_stands_still_fail(self) -> None:
        samples = (
            sample("lmcache_local_cpu_evict_failed", 7, increase=2),
            sample("generation_tokens", 900, increase=0),
            sample("requests_running", 3),
        )
        assert status("KV313", samples=samples) is Status.FAIL

    def test_an_engine_without_requests_does_not_stand_still(self) -> None:
        samples = (
            sample("lmcache_local_cpu_evict_failed", 7, increase=2),
            sample("generation_tokens", 900, increase=0),
            sample("requests_running", 0),
        )
        assert status("KV313", samples=samples) is Status.WARN

    def test_evictions_that_succeed_pass(self) -> None:
        samples = (sample("lmcache_local_cpu_evict_failed", 7, increase=0),)
        assert status("KV313", samples=samples) is Status.PASS


class TestPartialLoads:
    @pytest.mark.parametrize("line", [SHORT, LOST])
    def test_a_load_that_came_short_is_a_warning(self, line: str) -> None:
        assert status("KV314", ago(60, line), ago(30, LOADED)) is Status.WARN

    def test_whole_loads_pass(self) -> None:
        assert status("KV314", ago(30, LOADED)) is Status.PASS

    def test_without_loads_there_is_no_traffic(self) -> None:
        assert reason("KV314", ago(30, REQUEST)) is Reason.NO_TRAFFIC


class TestRanks:
    def test_ranks_that_differ_are_a_warning(self) -> None:
        assert status("KV315", ago(60, DIFFER), args=TWO_RANKS) is Status.WARN

    def test_ranks_that_agree_pass(self) -> None:
        assert status("KV315", ago(60, REQUEST), args=TWO_RANKS) is Status.PASS

    def test_one_rank_is_not_judged(self) -> None:
        assert reason("KV315", ago(60, REQUEST)) is Reason.NOT_APPLICABLE

    def test_without_look_ups_there_is_no_traffic(self) -> None:
        assert (
            reason("KV315", ago(60, "LMCache INFO: Registering KV caches (a.py:1:b)"), args=TWO_RANKS)
            is Reason.NO_TRAFFIC
        )


def speeds(mean: float, loads: int = 10) -> tuple[Sample, ...]:
    return (
        sample("lmcache_retrieve_speed_sum", mean * loads, increase=mean * loads),
        sample("lmcache_retrieve_speed_count", loads, increase=loads),
    )


class TestSpeed:
    # 900 s of window: 1.8 million tokens are 2000 tokens/s
    def test_loads_slower_than_the_prefill_are_a_warning(self) -> None:
        assert status("KV316", samples=(*speeds(1900), sample("prompt_tokens", 2e6, increase=1.8e6))) is Status.WARN

    def test_loads_quicker_than_the_prefill_pass(self) -> None:
        assert status("KV316", samples=(*speeds(2100), sample("prompt_tokens", 2e6, increase=1.8e6))) is Status.PASS

    def test_cached_tokens_are_not_computed(self) -> None:
        samples = (
            *speeds(1900),
            sample("prompt_tokens", 2e6, increase=1.8e6),
            sample("prefix_cache_hits", 1e6, increase=0.9e6),
        )
        assert status("KV316", samples=samples) is Status.PASS

    def test_tokens_that_the_engine_says_it_computed_count(self) -> None:
        samples = (
            *speeds(900),
            sample("prompt_tokens_by_source", 1e6, increase=0.9e6, source="local_compute"),
            sample("prompt_tokens_by_source", 9e6, increase=9e6, source="external_kv_transfer"),
        )
        assert status("KV316", samples=samples) is Status.WARN

    def test_slow_loads_of_unknown_speed_are_a_warning(self) -> None:
        assert status("KV316", samples=(sample("lmcache_slow_retrieval_by_time", 4, increase=4),)) is Status.WARN

    def test_without_loads_there_is_no_traffic(self) -> None:
        assert reason("KV316", samples=(*speeds(0, 0),)) is Reason.NO_TRAFFIC

    def test_the_mean_time_of_a_get_of_the_second_tier_is_shown(self) -> None:
        gets = (
            sample("lmcache_remote_time_to_get_sum", 500, increase=500),
            sample("lmcache_remote_time_to_get_count", 20, increase=20),
        )
        of = snapshot(worker(args=CONNECTOR), samples=(*speeds(2100), *gets))
        assert "a get of the second tier takes 25.0 ms on average" in [one.text for one in only("KV316", of).evidence]
