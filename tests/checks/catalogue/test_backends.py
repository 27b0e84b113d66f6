from __future__ import annotations

import pytest

from checks.metrics.view import Sample
from checks.model import Reason, Stack, Status
from checks.snapshot import Snapshot
from tests.checks.build import NOW, kubelet_time, only, router, sample, snapshot, statuses, worker

CONNECTOR = ("--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}')
REDIS = {"LMCACHE_REMOTE_URL": "redis://redis.prod.svc:6379"}
HYPERPOD = {"LMCACHE_REMOTE_URL": "sagemaker-hyperpod://10.0.0.5:9200"}
CONNECTED = "LMCache INFO: Connected to remote storage at redis://redis.prod.svc:6379 (a.py:1:b)"
FAILED = "LMCache WARNING: Remote connection failed in contains: Connection reset by peer (a.py:1:b)"
REQUEST = "LMCache INFO: Reqid: cmpl-1-0, Total tokens 713, LMCache hit tokens: 512, need to load: 0 (a.py:1:b)"
SHM_MISSING = """\
[2026-08-01 10:20:00,000] LMCache ERROR: Failed during post_init: Traceback (most recent call last):
  File "/opt/lmcache/v1/storage_backend/connector/sagemaker_hyperpod_connector.py", line 1, in open
FileNotFoundError: Shared memory segment 'ai_toolkit_cache' not found. Ensure ai-toolkit daemon is running.
. System will operate in degraded mode (recompute). (manager.py:107:lmcache.v1.manager)
"""
SHM_OPENED = "LMCache INFO: Shared memory opened: ai_toolkit_cache (a.py:1:b)"
HTTP = "LMCache WARNING: HTTP GET timeout for key x (a.py:1:b)"


def ago(seconds: float, message: str) -> str:
    """A line as the kubelet shows it, that many seconds before the snapshot."""
    return f"{kubelet_time(NOW - seconds)} [2026-08-01 10:20:00,000] {message}\n"


def of(
    *lines: str, samples: tuple[Sample, ...] = (), stack: Stack = Stack.PRODUCTION_STACK, **more: object
) -> Snapshot:
    more = {"args": CONNECTOR, "env": REDIS, **more}
    return snapshot(worker(log="".join(lines), **more), samples=samples, stack=stack)  # type: ignore[arg-type]


def status(check: str, *lines: str, **more: object) -> Status:
    return statuses(check, of(*lines, **more))["w-0"]  # type: ignore[arg-type]


def reason(check: str, *lines: str, **more: object) -> Reason | None:
    return only(check, of(*lines, **more)).reason  # type: ignore[arg-type]


@pytest.mark.parametrize("check", ["KV310", "KV311"])
def test_a_worker_without_lmcache_is_not_judged(check: str) -> None:
    assert only(check, snapshot(worker())).reason is Reason.NOT_APPLICABLE


@pytest.mark.parametrize("check", ["KV310", "KV311"])
def test_a_fleet_without_workers_has_no_data(check: str) -> None:
    assert only(check, snapshot(router())).reason is Reason.NO_DATA


class TestConnectedLine:
    def test_alone_it_proves_nothing(self) -> None:
        assert reason("KV310", ago(60, CONNECTED)) is Reason.NO_DATA

    def test_beside_failures_it_is_a_warning(self) -> None:
        assert status("KV310", ago(60, CONNECTED), ago(50, FAILED)) is Status.WARN

    def test_beside_bytes_that_moved_it_passes(self) -> None:
        moved = (sample("lmcache_remote_write_bytes", 9e6, increase=4096),)
        assert status("KV310", ago(60, CONNECTED), samples=moved) is Status.PASS

    def test_without_the_line_there_is_nothing_to_say(self) -> None:
        assert reason("KV310", ago(60, REQUEST)) is Reason.NOT_APPLICABLE


class TestSecondTier:
    def test_no_second_tier_is_not_judged(self) -> None:
        assert reason("KV311", ago(60, REQUEST), env={}) is Reason.NOT_APPLICABLE

    @pytest.mark.parametrize(
        "line",
        [
            FAILED,
            "LMCache WARNING: Connection is None in contains, returning False (a.py:1:b)",
            "LMCache WARNING: Failed to initialize/re-establish remote connection: Connection refused (a.py:1:b)",
            "LMCache WARNING: Connection will not be re-established yet (a.py:1:b)",
            "LMCache WARNING: Error occurred in get_blocking: boom (a.py:1:b)",
            "LMCache ERROR: Put task failed for key k: [Errno 32] Broken pipe (a.py:1:b)",
            "LMCache WARNING: Ping timeout (a.py:1:b)",
            "LMCache WARNING: Health check failed: RemoteBackendHealthCheck(RemoteBackend) (a.py:1:b)",
        ],
    )
    def test_three_failures_of_a_kind_fail(self, line: str) -> None:
        assert status("KV311", *(ago(at, line) for at in (60, 50, 40))) is Status.FAIL

    def test_the_health_check_of_another_backend_is_not_a_failure(self) -> None:
        line = "LMCache WARNING: Health check failed: LocalDiskHealthCheck(x) (a.py:1:b)"
        assert status("KV311", *(ago(at, line) for at in (60, 50, 40)), ago(30, REQUEST)) is Status.PASS

    def test_two_failures_are_a_warning(self) -> None:
        assert status("KV311", ago(60, FAILED), ago(50, FAILED)) is Status.WARN

    def test_the_reason_of_the_last_failure_is_told(self) -> None:
        assert "Connection reset by peer" in only("KV311", of(ago(60, FAILED))).message

    def test_failures_before_the_window_do_not_count(self) -> None:
        assert status("KV311", *(ago(at, FAILED) for at in (1300, 1200, 1100)), ago(30, REQUEST)) is Status.PASS

    def test_a_failed_ping_fails_without_any_line(self) -> None:
        assert status("KV311", samples=(sample("lmcache_remote_ping_error_code", -2),)) is Status.FAIL

    def test_one_rank_whose_ping_fails_is_enough(self) -> None:
        codes = tuple(sample("lmcache_remote_ping_error_code", code, worker_id=str(code)) for code in (0, -1))
        assert status("KV311", samples=codes) is Status.FAIL

    def test_ping_errors_in_the_window_fail(self) -> None:
        assert status("KV311", samples=(sample("lmcache_remote_ping_errors", 9, increase=3),)) is Status.FAIL

    def test_failures_of_a_tier_that_answers_now_are_a_warning(self) -> None:
        lines = [ago(at, FAILED) for at in (60, 50, 40)]
        assert status("KV311", *lines, samples=(sample("lmcache_remote_ping_error_code", 0),)) is Status.WARN

    def test_pings_that_succeed_pass(self) -> None:
        good = (sample("lmcache_remote_ping_successes", 90, increase=30), sample("lmcache_remote_ping_error_code", 0))
        assert status("KV311", samples=good) is Status.PASS

    def test_bytes_that_moved_before_the_window_are_no_proof(self) -> None:
        old = (sample("lmcache_remote_read_bytes", 9e6, increase=0),)
        assert reason("KV311", ago(60, CONNECTED), samples=old) is Reason.NO_TRAFFIC

    @pytest.mark.parametrize(
        ("stored", "written", "expected"),
        [(5120, 0, Status.WARN), (5119, 0, Status.PASS), (5120, 4096, Status.PASS)],
    )
    def test_a_tier_that_is_never_written_to_warns(self, stored: int, written: int, expected: Status) -> None:
        samples = (
            sample("lmcache_stored_tokens", stored, increase=0),
            sample("lmcache_remote_write_bytes", written, increase=0),
            sample("lmcache_remote_ping_successes", 9, increase=9),
        )
        assert status("KV311", samples=samples) is expected

    def test_look_ups_without_a_complaint_pass(self) -> None:
        assert status("KV311", ago(30, REQUEST)) is Status.PASS

    def test_the_connected_line_alone_does_not_pass(self) -> None:
        assert reason("KV311", ago(60, CONNECTED)) is Reason.NO_TRAFFIC

    def test_the_connected_line_shows_that_there_is_a_second_tier(self) -> None:
        assert status("KV311", ago(60, CONNECTED), *(ago(at, FAILED) for at in (50, 40, 30)), env={}) is Status.FAIL

    def test_a_log_that_hides_warnings_says_nothing(self) -> None:
        env = {**REDIS, "LMCACHE_LOG_LEVEL": "ERROR"}
        assert reason("KV311", ago(30, REQUEST), env=env) is Reason.LOG_LEVEL_HIDES

    def test_no_log_and_no_metrics_say_nothing(self) -> None:
        assert only("KV311", snapshot(worker(log=None, args=CONNECTOR, env=REDIS))).reason is Reason.NO_DATA


class TestTieredStorage:
    def test_missing_shared_memory_fails_and_names_the_segment(self) -> None:
        found = only("KV312", of(SHM_MISSING, env=HYPERPOD, stack=Stack.HYPERPOD))
        assert found.status is Status.FAIL
        assert "ai_toolkit_cache" in found.message

    def test_the_evidence_is_the_line_of_the_traceback_that_says_so(self) -> None:
        found = only("KV312", of(SHM_MISSING, env=HYPERPOD, stack=Stack.HYPERPOD))
        assert found.evidence[0].text.startswith("FileNotFoundError: Shared memory segment")

    def test_opened_shared_memory_passes(self) -> None:
        assert status("KV312", ago(60, SHM_OPENED), env=HYPERPOD, stack=Stack.HYPERPOD) is Status.PASS

    def test_the_last_word_counts(self) -> None:
        assert status("KV312", ago(60, SHM_OPENED), SHM_MISSING, env=HYPERPOD, stack=Stack.HYPERPOD) is Status.FAIL

    def test_three_failed_calls_fail(self) -> None:
        calls = [ago(at, HTTP) for at in (50, 40, 30)]
        assert status("KV312", ago(60, SHM_OPENED), *calls, env=HYPERPOD, stack=Stack.HYPERPOD) is Status.FAIL

    def test_one_failed_call_is_a_warning(self) -> None:
        assert status("KV312", ago(60, SHM_OPENED), ago(50, HTTP), env=HYPERPOD, stack=Stack.HYPERPOD) is Status.WARN

    def test_missing_where_the_resource_asks_for_redis_is_found_too(self) -> None:
        assert status("KV312", SHM_MISSING, env=REDIS, stack=Stack.HYPERPOD) is Status.FAIL

    def test_redis_without_a_word_of_the_daemon_is_not_judged(self) -> None:
        assert reason("KV312", ago(60, REQUEST), env=REDIS, stack=Stack.HYPERPOD) is Reason.NOT_APPLICABLE

    def test_silence_has_no_data(self) -> None:
        assert reason("KV312", ago(60, REQUEST), env=HYPERPOD, stack=Stack.HYPERPOD) is Reason.NO_DATA

    def test_silence_of_a_log_whose_start_is_gone_says_so(self) -> None:
        gone = of(ago(60, REQUEST), env=HYPERPOD, stack=Stack.HYPERPOD, head_complete=False)
        assert only("KV312", gone).reason is Reason.LOG_TRUNCATED

    def test_an_unread_log_says_so(self) -> None:
        unread = worker(log=None, log_missing=Reason.RBAC, args=CONNECTOR, env=HYPERPOD)
        assert statuses("KV312", snapshot(unread, stack=Stack.HYPERPOD)) == {"w-0": Status.ERROR}

    def test_it_is_not_for_the_production_stack(self) -> None:
        assert statuses("KV312", of(SHM_MISSING)) == {"fleet": Status.SKIP}
