from __future__ import annotations

from pathlib import Path

import pytest

from checks.model import Reason, Status
from checks.snapshot import Snapshot
from tests.checks.build import NOW, kubelet_time, only, router, said, sample, snapshot, statuses, worker

CONNECTOR = ("--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}')
MP_CONNECTOR = ("--kv-transfer-config", '{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both"}')
SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "logs"

WORKER = said(
    "LMCache initialized for role KVConnectorRole.WORKER with version {0}, vllm version 0.19.1, metadata: None"
)
SCHEDULER = WORKER.replace("WORKER", "SCHEDULER")
MONITOR = said("Health monitor initialized and started")
ONE_LINE_FAILURE = said(
    "Failed to initialize LMCacheManager components: {0}. System will operate in degraded mode (recompute).", "ERROR"
)
MANY_LINES_FAILURE = said(
    "Failed to initialize LMCacheManager components: Traceback (most recent call last):\n"
    '  File "/opt/venv/lib/python3.12/site-packages/lmcache/v1/manager.py", line 94, in __init__\n'
    "    self._lmcache_engine = factory.get_or_create_lmcache_engine()\n"
    "{0}\n"
    ". System will operate in degraded mode (recompute).",
    "ERROR",
)
UNHEALTHY = said("HealthMonitor: System unhealthy, entering degraded mode", "WARNING")
RECOVERED = said("HealthMonitor: System recovered")
DEAD = "(APIServer pid=1) ERROR 08-01 10:05:00 [async_llm.py:700] EngineDeadError: EngineCore encountered an issue.\n"
CHATTER = "(APIServer pid=1) INFO 08-01 10:04:00 [loggers.py:1] nothing to see\n"


def at(seconds_ago: float, line: str) -> str:
    return f"{kubelet_time(NOW - seconds_ago)} {line}"


def of(log: str | None = "", **more: object) -> Snapshot:
    more.setdefault("args", CONNECTOR)
    return snapshot(worker(log=log, **more))  # type: ignore[arg-type]


def status(check: str, log: str | None = "", **more: object) -> Status:
    return statuses(check, of(log, **more))["w-0"]


def reason(check: str, log: str | None = "", **more: object) -> Reason | None:
    return only(check, of(log, **more)).reason


CHECK_IDS = ("KV301", "KV302", "KV303", "KV304", "KV305")


@pytest.mark.parametrize("check", CHECK_IDS)
def test_a_worker_without_lmcache_is_not_judged(check: str) -> None:
    assert reason(check, args=()) is Reason.NOT_APPLICABLE


@pytest.mark.parametrize("check", [one for one in CHECK_IDS if one != "KV303"])
def test_lmcache_in_a_process_of_its_own_is_not_judged(check: str) -> None:
    assert reason(check, args=MP_CONNECTOR) is Reason.NOT_APPLICABLE


@pytest.mark.parametrize("check", CHECK_IDS)
def test_a_fleet_without_workers_has_no_data(check: str) -> None:
    assert only(check, snapshot(router())).reason is Reason.NO_DATA


class TestStarted:
    def test_worker_and_scheduler_are_proof(self) -> None:
        assert status("KV301", WORKER.format("0.3.11") + SCHEDULER.format("0.3.11")) is Status.PASS

    def test_the_health_monitor_is_proof(self) -> None:
        assert status("KV301", WORKER.format("0.4.3") + MONITOR) is Status.PASS

    def test_awss_line_is_proof(self) -> None:
        assert status("KV301", "INFO: LMCacheManager initialized successfully\n") is Status.PASS

    def test_the_line_with_the_version_is_no_proof_beside_a_failure(self) -> None:
        log = ONE_LINE_FAILURE.format("boom") + WORKER.format("0.3.14") + SCHEDULER.format("0.3.14") + MONITOR
        assert status("KV301", log) is Status.FAIL

    def test_an_engine_that_only_tried_fails(self) -> None:
        log = said("Creating LMCacheEngine instance vllm-instance")
        assert status("KV301", log) is Status.FAIL

    def test_silence_of_a_complete_log_fails(self) -> None:
        assert status("KV301", CHATTER) is Status.FAIL

    def test_silence_of_a_log_whose_start_is_gone_says_nothing(self) -> None:
        assert reason("KV301", CHATTER, head_complete=False) is Reason.LOG_TRUNCATED

    def test_silence_of_a_log_at_warning_level_says_nothing(self) -> None:
        assert reason("KV301", CHATTER, env={"LMCACHE_LOG_LEVEL": "WARNING"}) is Reason.LOG_LEVEL_HIDES

    def test_a_log_that_was_not_read_says_nothing(self) -> None:
        assert reason("KV301", None) is Reason.NO_DATA

    def test_why_a_log_was_not_read_is_told(self) -> None:
        assert reason("KV301", None, log_missing=Reason.RBAC) is Reason.RBAC

    def test_a_rank_that_never_started_fails(self) -> None:
        log = WORKER.format("0.4.3") + SCHEDULER.format("0.4.3")
        assert status("KV301", log, args=(*CONNECTOR, "--tensor-parallel-size", "2")) is Status.FAIL

    def test_all_ranks_together_pass(self) -> None:
        log = WORKER.format("0.4.3") * 4 + SCHEDULER.format("0.4.3")
        args = (*CONNECTOR, "--tensor-parallel-size=2", "--pipeline-parallel-size", "2")
        assert status("KV301", log, args=args) is Status.PASS

    def test_data_parallel_engines_in_one_pod_count_too(self) -> None:
        log = WORKER.format("0.4.3") + SCHEDULER.format("0.4.3")
        assert status("KV301", log, args=(*CONNECTOR, "--data-parallel-size", "2")) is Status.FAIL

    def test_the_sizes_are_read_from_the_log_where_no_arguments_are_known(self) -> None:
        banner = "(APIServer pid=1) INFO 08-01 10:00:00 [utils.py:286] non-default args: {'tensor_parallel_size': 2}\n"
        assert status("KV301", banner + WORKER.format("0.4.3") + SCHEDULER.format("0.4.3"), args=()) is Status.FAIL

    def test_ranks_missing_from_a_log_whose_start_is_gone_say_nothing(self) -> None:
        log = WORKER.format("0.4.3") + SCHEDULER.format("0.4.3")
        args = (*CONNECTOR, "--tensor-parallel-size", "2")
        assert reason("KV301", log, args=args, head_complete=False) is Reason.LOG_TRUNCATED

    def test_a_pod_that_starts_is_waited_for(self) -> None:
        assert reason("KV301", CHATTER, ready=False) is Reason.NO_DATA

    def test_a_young_pod_is_waited_for(self) -> None:
        assert reason("KV301", CHATTER, started_at=NOW - 60) is Reason.NO_DATA

    def test_ranks_without_their_scheduler_are_a_warning(self) -> None:
        assert status("KV301", WORKER.format("0.3.11")) is Status.WARN


class TestFailedStart:
    def test_a_failure_on_one_line_fails(self) -> None:
        found = only("KV302", of(ONE_LINE_FAILURE.format("boom") + WORKER.format("0.3.14")))
        assert found.status is Status.FAIL
        assert "boom" in found.message

    def test_an_empty_reason_is_called_so_and_explained(self) -> None:
        found = only("KV302", of(ONE_LINE_FAILURE.format("") + WORKER.format("0.3.14")))
        assert "gave no reason" in found.message
        assert "LMCache#2907" in found.hint
        assert "LMCACHE_LMCACHE_INSTANCE_ID" in found.hint

    def test_a_failure_on_many_lines_fails_with_its_last_line(self) -> None:
        found = only(
            "KV302",
            of(
                MANY_LINES_FAILURE.format("ValueError: controller_reply_url is required when enable_controller=True")
                + WORKER.format("0.4.4")
            ),
        )
        assert found.status is Status.FAIL
        assert "ValueError: controller_reply_url is required" in found.message
        assert "LMCACHE_CONTROLLER_REPLY_URL" in found.hint

    def test_the_reason_of_many_lines_is_shown_as_evidence(self) -> None:
        found = only("KV302", of(MANY_LINES_FAILURE.format("RuntimeError: boom")))
        assert "RuntimeError: boom" in [one.text for one in found.evidence]

    def test_a_bare_assertion_is_an_incomplete_configuration(self) -> None:
        found = only("KV302", of(MANY_LINES_FAILURE.format("AssertionError") + WORKER.format("0.4.3")))
        assert "controller's configuration is incomplete" in found.hint

    @pytest.mark.parametrize(
        "line",
        [
            "LMCache ERROR: Failed during post_init: boom (manager.py:1:lmcache.v1.manager)",
            "LMCache ERROR: LMCacheEngine marked as init failed: boom (cache_engine.py:1:lmcache.v1.cache_engine)",
            "LMCache WARNING: Skipping post_init due to previous initialization failure (a.py:1:b)",
        ],
    )
    def test_each_way_of_failing_fails(self, line: str) -> None:
        assert status("KV302", f"[2026-08-01 10:00:29,000] {line}\n") is Status.FAIL

    def test_the_end_of_a_record_whose_beginning_is_gone_fails_without_a_cause(self) -> None:
        found = only(
            "KV302",
            of(
                "AssertionError\n. System will operate in degraded mode (recompute). (a.py:1:b)\n",
                head_complete=False,
            ),
        )
        assert found.status is Status.FAIL
        assert "not in what was read" in found.message
        assert "LMCache#2907" not in found.hint

    @pytest.mark.parametrize(
        ("version", "crashes"), [("0.4.3", True), ("0.5.0", True), ("0.5.1", False), ("0.5.6", False)]
    )
    def test_up_to_0_5_0_the_hint_warns_of_crashes(self, version: str, crashes: bool) -> None:
        found = only("KV302", of(MANY_LINES_FAILURE.format("RuntimeError: boom") + WORKER.format(version)))
        assert ("may crash under load" in found.hint) is crashes

    def test_a_failure_of_the_last_instance_is_a_warning(self) -> None:
        assert (
            status("KV302", WORKER.format("0.4.3") + MONITOR, previous=ONE_LINE_FAILURE.format("boom")) is Status.WARN
        )

    def test_a_complete_log_without_a_failure_passes(self) -> None:
        assert status("KV302", WORKER.format("0.4.3")) is Status.PASS

    def test_a_started_health_monitor_passes_even_where_the_start_is_gone(self) -> None:
        assert status("KV302", MONITOR, head_complete=False) is Status.PASS

    def test_a_version_that_cannot_tell_is_not_judged(self) -> None:
        assert reason("KV302", WORKER.format("0.3.11")) is Reason.NOT_APPLICABLE

    def test_an_unknown_version_is_not_judged(self) -> None:
        assert reason("KV302", CHATTER) is Reason.VERSION_UNKNOWN

    def test_a_bound_of_the_version_is_not_enough(self) -> None:
        log = said("Received heartbeat_url from controller: tcp://10.0.0.9:9002")
        assert reason("KV302", log) is Reason.VERSION_UNKNOWN

    def test_a_log_whose_start_is_gone_is_not_judged(self) -> None:
        assert reason("KV302", WORKER.format("0.4.3"), head_complete=False) is Reason.LOG_TRUNCATED

    def test_a_log_that_hides_errors_is_not_judged(self) -> None:
        assert reason("KV302", WORKER.format("0.4.3"), env={"LMCACHE_LOG_LEVEL": "CRITICAL"}) is Reason.LOG_LEVEL_HIDES

    def test_a_log_that_was_not_read_is_not_judged(self) -> None:
        assert reason("KV302", None) is Reason.NO_DATA


class TestHealth:
    def test_a_gauge_of_one_passes(self) -> None:
        s = snapshot(worker(args=CONNECTOR), samples=[sample("lmcache_is_healthy", 1)])
        assert statuses("KV303", s) == {"w-0": Status.PASS}

    def test_a_gauge_of_zero_on_one_rank_fails(self) -> None:
        gauges = [sample("lmcache_is_healthy", value, worker_id=str(value)) for value in (0, 1)]
        assert statuses("KV303", snapshot(worker(args=CONNECTOR), samples=gauges)) == {"w-0": Status.FAIL}

    def test_an_unhealthy_monitor_fails(self) -> None:
        assert status("KV303", WORKER.format("0.4.3") + UNHEALTHY) is Status.FAIL

    def test_skipped_operations_fail(self) -> None:
        line = said("LMCache is unhealthy, skipping lookup operation", "WARNING")
        assert status("KV303", WORKER.format("0.4.3") + line) is Status.FAIL

    def test_a_recovery_within_the_window_is_a_warning(self) -> None:
        assert status("KV303", WORKER.format("0.4.3") + at(600, UNHEALTHY) + at(540, RECOVERED)) is Status.WARN

    def test_a_recovery_before_the_window_passes(self) -> None:
        assert status("KV303", WORKER.format("0.4.3") + at(1600, UNHEALTHY) + at(1500, RECOVERED)) is Status.PASS

    def test_a_relapse_after_a_recovery_fails(self) -> None:
        assert status("KV303", WORKER.format("0.4.3") + UNHEALTHY + RECOVERED + UNHEALTHY) is Status.FAIL

    def test_a_log_and_a_gauge_that_disagree_are_a_warning(self) -> None:
        s = snapshot(worker(args=CONNECTOR, log=UNHEALTHY), samples=[sample("lmcache_is_healthy", 1)])
        assert statuses("KV303", s) == {"w-0": Status.WARN}

    def test_a_complete_silent_log_passes(self) -> None:
        assert status("KV303", WORKER.format("0.4.3")) is Status.PASS

    def test_an_lmcache_that_did_not_start_has_no_health(self) -> None:
        assert reason("KV303", ONE_LINE_FAILURE.format("boom") + WORKER.format("0.4.3")) is Reason.NOT_APPLICABLE

    def test_a_version_without_a_monitor_is_not_judged(self) -> None:
        assert reason("KV303", WORKER.format("0.3.11")) is Reason.NOT_APPLICABLE

    def test_a_log_whose_start_is_gone_is_not_judged(self) -> None:
        assert reason("KV303", WORKER.format("0.4.3"), head_complete=False) is Reason.LOG_TRUNCATED


class TestOldStart:
    TRACEBACK = """\
(EngineCore_0 pid=9) ERROR 08-01 10:00:29 [core.py:700] Traceback (most recent call last):
(EngineCore_0 pid=9) ERROR 08-01 10:00:29 [core.py:700]   File "/opt/{0}/v1/config.py", line 1, in load
(EngineCore_0 pid=9) ERROR 08-01 10:00:29 [core.py:700]     raise ValueError("bad chunk")
(EngineCore_0 pid=9) ERROR 08-01 10:00:29 [core.py:700] ValueError: bad chunk
"""

    def test_a_traceback_of_lmcache_fails(self) -> None:
        found = only("KV304", of(WORKER.format("0.3.11"), previous=self.TRACEBACK.format("lmcache"), restarts=1))
        assert found.status is Status.FAIL
        assert "ValueError: bad chunk" in found.message

    def test_a_traceback_of_vllm_alone_passes(self) -> None:
        log = WORKER.format("0.3.11")
        assert status("KV304", log, previous=self.TRACEBACK.format("vllm"), restarts=1) is Status.PASS

    def test_no_traceback_passes(self) -> None:
        assert status("KV304", WORKER.format("0.3.13")) is Status.PASS

    def test_versions_with_a_manager_are_not_judged(self) -> None:
        assert reason("KV304", WORKER.format("0.3.14")) is Reason.NOT_APPLICABLE

    def test_an_unknown_version_is_not_judged(self) -> None:
        assert reason("KV304", CHATTER) is Reason.VERSION_UNKNOWN

    def test_a_restart_whose_log_was_not_read_is_not_judged(self) -> None:
        assert reason("KV304", WORKER.format("0.3.11"), restarts=1) is Reason.NO_DATA

    def test_a_log_whose_start_is_gone_is_not_judged(self) -> None:
        assert reason("KV304", WORKER.format("0.3.11"), head_complete=False) is Reason.LOG_TRUNCATED


class TestEngineDeath:
    ASSERT = """\
(EngineCore_0 pid=9) ERROR 08-01 10:09:00 [core.py:700]     assert self.lmcache_engine is not None
(EngineCore_0 pid=9) ERROR 08-01 10:09:00 [core.py:700] AssertionError
"""

    def test_an_assertion_of_the_missing_engine_fails(self) -> None:
        assert (
            status(
                "KV305",
                WORKER.format("0.4.3"),
                previous=ONE_LINE_FAILURE.format("") + CHATTER * 200 + self.ASSERT,
                restarts=1,
            )
            is Status.FAIL
        )

    def test_a_death_soon_after_the_failed_start_fails(self) -> None:
        previous = ONE_LINE_FAILURE.format("boom") + CHATTER * 10 + DEAD
        assert status("KV305", WORKER.format("0.4.3"), previous=previous, restarts=1) is Status.FAIL

    def test_a_death_long_after_the_failed_start_is_a_warning(self) -> None:
        previous = ONE_LINE_FAILURE.format("boom") + CHATTER * 60 + DEAD
        assert status("KV305", WORKER.format("0.4.3"), previous=previous, restarts=1) is Status.WARN

    def test_the_failure_itself_is_not_a_death(self) -> None:
        assert status("KV305", MANY_LINES_FAILURE.format("AssertionError") + WORKER.format("0.4.3")) is Status.PASS

    def test_a_death_without_a_failed_start_passes(self) -> None:
        assert status("KV305", WORKER.format("0.4.3"), previous=CHATTER + DEAD, restarts=1) is Status.PASS

    def test_an_engine_that_never_ended_passes(self) -> None:
        assert status("KV305", WORKER.format("0.4.3")) is Status.PASS

    def test_a_restart_whose_log_was_not_read_is_not_judged(self) -> None:
        assert reason("KV305", WORKER.format("0.4.3"), restarts=2) is Reason.NO_DATA

    def test_a_worker_without_any_log_is_not_judged(self) -> None:
        assert reason("KV305", None) is Reason.NO_DATA


class TestRealLogs:
    @staticmethod
    def read(name: str) -> Snapshot:
        path = SHARED / name
        if not path.is_file():
            pytest.skip(f"the recorded log {name} is not here")
        return snapshot(worker(log=path.read_text(encoding="utf-8", errors="replace")), cluster=False)

    def test_the_degraded_log_tells_the_reason(self) -> None:
        found = only("KV302", self.read("vllm-lmcache-degraded.log"))
        assert found.status is Status.FAIL
        assert "No supported cpu connector found" in found.message

    def test_the_degraded_log_is_not_called_started(self) -> None:
        assert statuses("KV301", self.read("vllm-lmcache-degraded.log")) == {"w-0": Status.FAIL}

    def test_the_degraded_engine_lives_on(self) -> None:
        assert statuses("KV305", self.read("vllm-lmcache-degraded.log")) == {"w-0": Status.PASS}

    @pytest.mark.parametrize("check", CHECK_IDS)
    def test_the_plain_log_has_no_lmcache_to_judge(self, check: str) -> None:
        assert only(check, self.read("vllm-plain.log")).reason is Reason.NOT_APPLICABLE


def test_kv301_shows_the_furthest_step_of_a_start_that_never_ended() -> None:
    log = said("Creating LMCacheEngine instance vllm-instance") + said("Post initializing LMCacheEngine")
    found = only("KV301", snapshot(worker(args=CONNECTOR, image="lmcache/vllm-openai:v0.4.3", log=log)))
    assert (found.status, found.message) == (Status.FAIL, "LMCache tried to start but never finished")
    assert "Post initializing" in found.evidence[0].text
