from __future__ import annotations

import pytest

from checks.model import Reason, Stack, Status
from checks.snapshot import Member, Snapshot
from tests.checks.build import NOW, STARTED, kubelet_time, only, router, sample, snapshot, statuses, worker

CONNECTOR = ("--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}')
MP_CONNECTOR = ("--kv-transfer-config", '{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both"}')
KVAWARE = ("--routing-logic", "kvaware")
CHECK_IDS = ("KV201", "KV202", "KV203", "KV204", "KV205", "KV206")
PULL = "LMCache INFO: Starting pull request handler on 0.0.0.0:9000 (a.py:1:b)"


def line(message: str, at: float = STARTED + 60) -> str:
    """A line as the kubelet shows it, at an epoch second."""
    return f"{kubelet_time(at)} [2026-08-01 10:01:00,000] {message}\n"


def registered(instance: str = "i-0", ip: str = "10.0.0.1", rank: int = 0, at: float = STARTED + 60) -> str:
    return line(f"LMCache INFO: Registered instance-worker ('{instance}', {rank}) with URL {ip}:8001 (a.py:1:b)", at)


def reaped(instance: str = "i-0", rank: int = 0, at: float = STARTED + 100) -> str:
    seen = "last heartbeat time: 1785578400.0, current time: 1785578440.0, more than 30 seconds"
    return line(f"LMCache WARNING: Worker {instance}_{rank} {seen} (a.py:1:b)", at) + deregistered(instance, rank, at)


def deregistered(instance: str = "i-0", rank: int = 0, at: float = STARTED + 100) -> str:
    return line(f"LMCache INFO: Deregistered instance-worker ('{instance}', {rank}) (a.py:1:b)", at)


def attempt(instance: str = "i-0", rank: int = 0, at: float = STARTED + 40) -> str:
    return line(f"LMCache INFO: Registering lmcache instance-worker: ('{instance}', {rank}) (a.py:1:b)", at)


def answered(at: float = STARTED + 41) -> str:
    return line("LMCache INFO: Received heartbeat_url from controller: tcp://10.0.0.9:9002 (a.py:1:b)", at)


def version(text: str) -> str:
    words = (
        f"LMCache INFO: LMCache initialized for role KVConnectorRole.WORKER with version {text}, vllm version 0.19.1, x"
    )
    return line(words + " (a.py:1:b)", STARTED + 30)


def w(name: str = "w-0", *, log: str | None = "", **more: object) -> Member:
    return worker(name, log=log, **{"args": CONNECTOR, **more})  # type: ignore[arg-type]


def r(*lines: str, **more: object) -> Member:
    return router(log="".join(lines), **{"args": KVAWARE, **more})  # type: ignore[arg-type]


TWO = (w(), w("w-1", ip="10.0.0.2"))
BOTH = registered() + registered("i-1", "10.0.0.2")


def reason(check: str, of: Snapshot) -> Reason | None:
    return only(check, of).reason


class TestWhereItApplies:
    @pytest.mark.parametrize("check", CHECK_IDS)
    def test_other_strategies_do_not_ask_the_controller(self, check: str) -> None:
        assert reason(check, snapshot(w(), router(args=("--routing-logic", "session")))) is Reason.NOT_APPLICABLE

    @pytest.mark.parametrize("check", CHECK_IDS)
    def test_nothing_that_tells_of_a_controller_is_not_judged(self, check: str) -> None:
        assert reason(check, snapshot(w(), router(), stack=Stack.UNKNOWN)) is Reason.NOT_APPLICABLE

    @pytest.mark.parametrize("check", CHECK_IDS)
    def test_kvctls_own_router_needs_no_registration(self, check: str) -> None:
        own = router(log="INFO: Worker registered: w-0\nINFO: Routing request to w-0 found by kvaware router\n")
        assert statuses(check, snapshot(w(), own, stack=Stack.KVCTL)) == {"fleet": Status.SKIP}

    @pytest.mark.parametrize("check", ["KV202", "KV203", "KV206"])
    def test_lmcache_in_a_process_of_its_own_registers_nothing(self, check: str) -> None:
        assert reason(check, snapshot(w(args=MP_CONNECTOR), r())) is Reason.NOT_APPLICABLE

    def test_the_count_expects_nothing_of_them_either(self) -> None:
        assert reason("KV201", snapshot(w(args=MP_CONNECTOR), r())) is Reason.NOT_APPLICABLE

    def test_a_router_that_speaks_of_kvaware_is_enough(self) -> None:
        found = snapshot(*TWO, router(log=BOTH), stack=Stack.UNKNOWN)
        assert statuses("KV201", found) == {"fleet": Status.PASS}


class TestCount:
    @pytest.mark.parametrize(
        ("count", "expected"), [(2, Status.PASS), (1, Status.WARN), (0, Status.FAIL), (3, Status.WARN)]
    )
    def test_the_gauge_against_the_workers(self, count: int, expected: Status) -> None:
        gauge = sample("controller_registered_workers", count, "prod/router-0")
        assert statuses("KV201", snapshot(*TWO, r(), samples=[gauge])) == {"fleet": expected}

    def test_each_rank_counts(self) -> None:
        big = w(args=(*CONNECTOR, "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"))
        gauge = sample("controller_registered_workers", 4, "prod/router-0")
        assert statuses("KV201", snapshot(big, r(), samples=[gauge])) == {"fleet": Status.PASS}

    def test_a_model_with_latent_attention_registers_one_rank(self) -> None:
        shape = "LMCache INFO: num_layer: 2, chunk_size: 64, head_size: 8, use mla: True, kv shape: x (a.py:1:b)"
        big = w(args=(*CONNECTOR, "-tp", "8"), log=line(shape))
        gauge = sample("controller_registered_workers", 1, "prod/router-0")
        assert statuses("KV201", snapshot(big, r(), samples=[gauge])) == {"fleet": Status.PASS}

    def test_so_does_one_known_by_its_architecture(self) -> None:
        arch = "(APIServer pid=1) INFO 08-01 10:00:10 [model.py:1] Resolved architecture: DeepseekV3ForCausalLM\n"
        gauge = sample("controller_registered_workers", 1, "prod/router-0")
        found = snapshot(w(args=(*CONNECTOR, "-tp", "8"), log=arch), r(), samples=[gauge])
        assert statuses("KV201", found) == {"fleet": Status.PASS}

    def test_listed_worker_ids_are_all_that_register(self) -> None:
        big = w(args=(*CONNECTOR, "-tp", "8"), env={"LMCACHE_LMCACHE_WORKER_IDS": "0,1"})
        gauge = sample("controller_registered_workers", 2, "prod/router-0")
        assert statuses("KV201", snapshot(big, r(), samples=[gauge])) == {"fleet": Status.PASS}

    def test_a_pod_that_is_not_ready_is_not_expected(self) -> None:
        gauge = sample("controller_registered_workers", 1, "prod/router-0")
        found = snapshot(w(), w("w-1", ip="10.0.0.2", ready=False), r(), samples=[gauge])
        assert statuses("KV201", found) == {"fleet": Status.PASS}

    @pytest.mark.parametrize("count", [1, 2])
    def test_a_young_pod_may_be_missing(self, count: int) -> None:
        gauge = sample("controller_registered_workers", count, "prod/router-0")
        found = snapshot(w(), w("w-1", ip="10.0.0.2", started_at=NOW - 30), r(), samples=[gauge])
        assert statuses("KV201", found) == {"fleet": Status.PASS}

    def test_only_young_pods_are_waited_for(self) -> None:
        gauge = sample("controller_registered_workers", 0, "prod/router-0")
        assert reason("KV201", snapshot(w(started_at=NOW - 30), r(), samples=[gauge])) is Reason.NO_DATA

    def test_the_controllers_api_tells_too(self) -> None:
        api = r(answers={"/controller/workers": {"workers": [{"instance_id": "i-0"}]}})
        assert statuses("KV201", snapshot(*TWO, api)) == {"fleet": Status.WARN}

    def test_the_routers_log_tells_too(self) -> None:
        assert statuses("KV201", snapshot(*TWO, r(BOTH))) == {"fleet": Status.PASS}

    def test_who_was_dropped_does_not_count(self) -> None:
        assert statuses("KV201", snapshot(*TWO, r(BOTH, reaped()))) == {"fleet": Status.WARN}

    def test_a_registration_again_is_not_a_second_worker(self) -> None:
        assert statuses("KV201", snapshot(*TWO, r(BOTH, registered()))) == {"fleet": Status.PASS}

    def test_a_complete_silent_log_fails(self) -> None:
        assert statuses("KV201", snapshot(*TWO, r(line(PULL)))) == {"fleet": Status.FAIL}

    def test_a_log_whose_start_is_gone_is_never_a_failure(self) -> None:
        assert reason("KV201", snapshot(*TWO, r(line(PULL), head_complete=False))) is Reason.LOG_TRUNCATED

    def test_some_workers_in_such_a_log_are_no_warning_either(self) -> None:
        assert reason("KV201", snapshot(*TWO, r(registered(), head_complete=False))) is Reason.LOG_TRUNCATED

    def test_all_workers_in_such_a_log_pass(self) -> None:
        assert statuses("KV201", snapshot(*TWO, r(BOTH, head_complete=False))) == {"fleet": Status.PASS}

    def test_a_level_that_hides_registrations_says_so(self) -> None:
        quiet = r(line(PULL), env={"LMCACHE_LOG_LEVEL": "WARNING"})
        assert reason("KV201", snapshot(*TWO, quiet)) is Reason.LOG_LEVEL_HIDES

    def test_awss_lines_count_workers(self) -> None:
        lines = "INFO: Worker registered: lmcacheengineconfig_a\nINFO: Worker registered: lmcacheengineconfig_b\n"
        found = snapshot(*TWO, router(log=lines, args=KVAWARE), stack=Stack.HYPERPOD)
        assert statuses("KV201", found) == {"fleet": Status.PASS}

    def test_one_of_awss_lines_for_two_workers_is_a_warning(self) -> None:
        lines = "INFO: Worker registered: lmcacheengineconfig_a\n"
        found = snapshot(*TWO, router(log=lines, args=KVAWARE), stack=Stack.HYPERPOD)
        assert statuses("KV201", found) == {"fleet": Status.WARN}

    def test_a_silent_router_of_aws_is_not_a_failure(self) -> None:
        found = snapshot(*TWO, router(log="INFO: started\n", args=KVAWARE), stack=Stack.HYPERPOD)
        assert reason("KV201", found) is Reason.NO_DATA


class TestLastEvent:
    def test_a_registration_last_passes(self) -> None:
        assert statuses("KV202", snapshot(*TWO, r(BOTH))) == {"w-0": Status.PASS, "w-1": Status.PASS}

    @pytest.mark.parametrize("lost", [reaped(), deregistered()])
    def test_a_loss_last_fails(self, lost: str) -> None:
        found = snapshot(*TWO, r(BOTH, lost))
        assert statuses("KV202", found) == {"w-0": Status.FAIL, "w-1": Status.PASS}

    def test_a_duplicate_registration_is_one(self) -> None:
        again = line("LMCache WARNING: Instance-worker ('i-0', 0) already registered, skip registration (a.py:1:b)")
        assert statuses("KV202", snapshot(w(), r(registered(), again))) == {"w-0": Status.PASS}

    def test_a_pod_that_is_not_ready_may_be_lost(self) -> None:
        assert reason("KV202", snapshot(w(ready=False), r(registered(), reaped()))) is Reason.NO_DATA

    def test_an_instance_that_restarted_under_a_new_id_is_not_lost(self) -> None:
        log = registered("old") + registered("new", at=STARTED + 90) + reaped("old")
        assert statuses("KV202", snapshot(w(), r(log))) == {"w-0": Status.PASS}

    def test_two_losses_within_ten_minutes_are_a_warning(self) -> None:
        log = "".join(registered(at=STARTED + at) + reaped(at=STARTED + at + 40) for at in (60, 200)) + registered(
            at=STARTED + 300
        )
        assert statuses("KV202", snapshot(w(), r(log))) == {"w-0": Status.WARN}

    def test_two_losses_half_an_hour_apart_pass(self) -> None:
        log = "".join(registered(at=STARTED + at) + reaped(at=STARTED + at + 40) for at in (60, 1500)) + registered(
            at=STARTED + 1600
        )
        assert statuses("KV202", snapshot(w(), r(log))) == {"w-0": Status.PASS}

    def test_one_lost_rank_of_two_fails(self) -> None:
        log = registered() + registered(rank=1) + reaped(rank=1)
        assert statuses("KV202", snapshot(w(args=(*CONNECTOR, "-tp", "2")), r(log))) == {"w-0": Status.FAIL}

    def test_a_worker_that_a_complete_log_never_names_fails(self) -> None:
        found = snapshot(*TWO, r(registered()))
        assert statuses("KV202", found) == {"w-0": Status.PASS, "w-1": Status.FAIL}

    def test_a_worker_that_a_cut_log_never_names_is_unknown(self) -> None:
        found = snapshot(*TWO, r(registered(), head_complete=False))
        assert statuses("KV202", found) == {"w-0": Status.PASS, "w-1": Status.SKIP}

    def test_the_answer_in_the_workers_own_log_is_as_good(self) -> None:
        cut = r(line(PULL), head_complete=False, started_at=STARTED - 100)
        assert statuses("KV202", snapshot(w(log=attempt() + answered()), cut)) == {"w-0": Status.PASS}

    def test_an_answer_of_a_router_that_is_gone_is_not(self) -> None:
        cut = r(line(PULL), head_complete=False, started_at=STARTED + 500)
        assert reason("KV202", snapshot(w(log=attempt() + answered()), cut)) is Reason.LOG_TRUNCATED

    def test_a_young_worker_is_waited_for(self) -> None:
        assert reason("KV202", snapshot(w(started_at=NOW - 30), r(line(PULL)))) is Reason.NO_DATA

    def test_awss_names_are_put_to_workers_by_their_own_logs(self) -> None:
        log = line("LMCache INFO: Starting lmcache worker 0for instance lmcacheengineconfig_a (a.py:1:b)")
        aws = router(log="INFO: Worker registered: lmcacheengineconfig_a\n", args=KVAWARE)
        assert statuses("KV202", snapshot(w(log=log), aws, stack=Stack.HYPERPOD)) == {"w-0": Status.PASS}

    def test_workers_behind_one_address_are_told_apart_by_their_ids(self) -> None:
        one = w(log=attempt("i-0"))
        other = w("w-1", log=attempt("i-1"))
        found = snapshot(one, other, r(registered("i-0") + registered("i-1") + reaped("i-1")))
        assert statuses("KV202", found) == {"w-0": Status.PASS, "w-1": Status.FAIL}


class TestWorkerSide:
    def test_an_answer_passes(self) -> None:
        assert statuses("KV203", snapshot(w(log=attempt() + answered()), r())) == {"w-0": Status.PASS}

    def test_a_router_without_heartbeats_answers_too(self) -> None:
        log = attempt() + line("LMCache INFO: No dedicated heartbeat_url provided by controller (a.py:1:b)")
        assert statuses("KV203", snapshot(w(log=log), r())) == {"w-0": Status.PASS}

    @pytest.mark.parametrize(
        "text",
        [
            "LMCache ERROR: Failed to register with controller: Resource temporarily unavailable (a.py:1:b)",
            "LMCache ERROR: Instance i-0, worker 0 error: no attribute 'req_socket' (a.py:1:b)",
        ],
    )
    def test_a_failed_registration_fails_with_its_reason(self, text: str) -> None:
        found = only("KV203", snapshot(w(log=attempt() + line(text)), r()))
        assert found.status is Status.FAIL
        assert text.split(": ")[2].removesuffix(" (a.py:1:b)") in found.message

    def test_an_attempt_without_an_answer_is_a_warning(self) -> None:
        assert statuses("KV203", snapshot(w(log=version("0.4.3") + attempt()), r())) == {"w-0": Status.WARN}

    def test_one_answer_for_two_ranks_is_a_warning(self) -> None:
        log = version("0.4.3") + attempt() + attempt(rank=1) + answered()
        assert statuses("KV203", snapshot(w(log=log), r())) == {"w-0": Status.WARN}

    def test_an_attempt_just_now_is_waited_for(self) -> None:
        log = version("0.4.3") + attempt(at=NOW - 20)
        assert reason("KV203", snapshot(w(log=log), r())) is Reason.NO_DATA

    def test_old_versions_get_no_answer(self) -> None:
        assert reason("KV203", snapshot(w(log=version("0.3.11") + attempt()), r())) is Reason.NOT_APPLICABLE

    def test_unknown_versions_may_get_none(self) -> None:
        assert reason("KV203", snapshot(w(log=attempt()), r())) is Reason.VERSION_UNKNOWN

    def test_no_attempt_in_a_complete_log_fails(self) -> None:
        assert statuses("KV203", snapshot(w(log=version("0.4.3")), r())) == {"w-0": Status.FAIL}

    def test_a_controller_that_is_off_fails_even_in_a_cut_log(self) -> None:
        off = w(log=version("0.4.3"), env={"LMCACHE_ENABLE_CONTROLLER": "False"}, head_complete=False)
        assert statuses("KV203", snapshot(off, r())) == {"w-0": Status.FAIL}

    def test_no_attempt_in_a_cut_log_says_nothing(self) -> None:
        assert reason("KV203", snapshot(w(log=version("0.4.3"), head_complete=False), r())) is Reason.LOG_TRUNCATED

    def test_no_attempt_at_warning_level_says_nothing(self) -> None:
        quiet = w(log=version("0.4.3"), env={"LMCACHE_LOG_LEVEL": "WARNING"})
        assert reason("KV203", snapshot(quiet, r())) is Reason.LOG_LEVEL_HIDES

    def test_no_attempt_of_awss_build_says_nothing(self) -> None:
        found = snapshot(w(log=version("0.4.3")), router(args=KVAWARE), stack=Stack.HYPERPOD)
        assert reason("KV203", found) is Reason.NO_DATA

    def test_an_unread_log_says_nothing(self) -> None:
        assert reason("KV203", snapshot(w(log=None), r())) is Reason.NO_DATA


class TestUnderstood:
    @pytest.mark.parametrize(
        "text",
        [
            "LMCache ERROR: Unknown worker message type: KVAdmitMsg (a.py:1:b)",
            "LMCache ERROR: Unknown worker request message type: RegisterMsg (a.py:1:b)",
            "LMCache ERROR: Controller Manager error: boom (a.py:1:b)",
        ],
    )
    def test_messages_that_are_not_understood_fail(self, text: str) -> None:
        assert statuses("KV204", snapshot(*TWO, r(line(PULL), line(text)))) == {"router-0": Status.FAIL}

    def test_a_complete_log_without_complaint_passes(self) -> None:
        assert statuses("KV204", snapshot(*TWO, r(line(PULL)))) == {"router-0": Status.PASS}

    def test_a_cut_log_says_nothing(self) -> None:
        assert reason("KV204", snapshot(*TWO, r(line(PULL), head_complete=False))) is Reason.LOG_TRUNCATED

    def test_a_log_without_a_word_of_lmcache_says_nothing(self) -> None:
        assert (
            reason("KV204", snapshot(*TWO, r(line("INFO: Initializing kvaware routing logic (a.py:1:b)"))))
            is Reason.NO_DATA
        )

    def test_without_a_router_there_is_no_data(self) -> None:
        alone = w(env={"LMCACHE_ENABLE_CONTROLLER": "True"})
        assert reason("KV204", snapshot(alone)) is Reason.NO_DATA


class TestAddresses:
    UNKNOWN = "LMCache WARNING: Instance not registered for IP {} (a.py:1:b)"
    HIT = "INFO: Routing request to i-0 found by kvaware router (a.py:1:b)"

    def test_a_ready_worker_that_is_unknown_fails(self) -> None:
        found = snapshot(*TWO, r(line(self.UNKNOWN.format("10.0.0.2"))))
        assert statuses("KV205", found) == {"w-1": Status.FAIL}

    def test_another_address_is_a_warning(self) -> None:
        found = snapshot(*TWO, r(line(self.UNKNOWN.format("10.0.0.77"))))
        assert statuses("KV205", found) == {"router-0": Status.WARN}

    def test_a_worker_that_is_not_ready_is_a_warning(self) -> None:
        found = snapshot(w(ready=False), r(line(self.UNKNOWN.format("10.0.0.1"))))
        assert statuses("KV205", found) == {"router-0": Status.WARN}

    def test_an_address_that_registered_later_passes(self) -> None:
        log = line(self.UNKNOWN.format("10.0.0.1")) + registered(at=STARTED + 90)
        assert statuses("KV205", snapshot(w(), r(log))) == {"router-0": Status.PASS}

    def test_a_registration_before_it_does_not_help(self) -> None:
        log = registered() + line(self.UNKNOWN.format("10.0.0.1"), STARTED + 90)
        assert statuses("KV205", snapshot(w(), r(log))) == {"w-0": Status.FAIL}

    def test_requests_without_a_complaint_pass(self) -> None:
        assert statuses("KV205", snapshot(w(), r(line(self.HIT)))) == {"router-0": Status.PASS}

    def test_without_requests_there_is_no_traffic(self) -> None:
        assert reason("KV205", snapshot(w(), r(line(PULL)))) is Reason.NO_TRAFFIC

    def test_an_unread_log_has_no_data(self) -> None:
        assert reason("KV205", snapshot(w(), router(log=None, args=KVAWARE))) is Reason.NO_DATA


class TestIds:
    def test_an_id_of_its_own_passes(self) -> None:
        found = snapshot(w(log=attempt("i-0")), w("w-1", ip="10.0.0.2", log=attempt("i-1")), r())
        assert statuses("KV206", found) == {"w-0": Status.PASS, "w-1": Status.PASS}

    def test_a_static_id_of_two_replicas_fails(self) -> None:
        env = {"LMCACHE_LMCACHE_INSTANCE_ID": "shared"}
        found = snapshot(w(env=env), w("w-1", ip="10.0.0.2", env=env), r())
        assert statuses("KV206", found) == {"w-0": Status.FAIL, "w-1": Status.FAIL}

    def test_the_constant_default_of_old_versions_fails(self) -> None:
        log = registered("lmcache_default_instance") + registered("lmcache_default_instance", "10.0.0.2", 1)
        assert statuses("KV206", snapshot(*TWO, r(log))) == {"w-0": Status.FAIL, "w-1": Status.FAIL}

    def test_ranks_with_different_ids_are_a_warning(self) -> None:
        log = attempt("a1") + attempt("b2", rank=1)
        assert statuses("KV206", snapshot(w(log=log, args=(*CONNECTOR, "-tp", "2")), r())) == {"w-0": Status.WARN}

    def test_an_instance_that_restarted_is_known_by_its_newest_id(self) -> None:
        log = registered("old") + registered("new", at=STARTED + 90)
        found = only("KV206", snapshot(w(), r(log)))
        assert found.status is Status.PASS
        assert "new" in found.message

    def test_unknown_ids_have_no_data(self) -> None:
        assert reason("KV206", snapshot(w(), r())) is Reason.NO_DATA
