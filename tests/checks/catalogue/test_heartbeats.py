from __future__ import annotations

from dataclasses import replace

import pytest

from checks.metrics.view import Sample
from checks.model import Reason, Stack, Status
from checks.snapshot import Member, Snapshot
from tests.checks.build import NOW, STARTED, kubelet_time, only, router, sample, snapshot, statuses, worker

CONNECTOR = ("--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}')
KVAWARE = ("--routing-logic", "kvaware")
CHECK_IDS = ("KV207", "KV208", "KV209", "KV210")
THREAD = "LMCache INFO: Start health check thread, interval: 5 (a.py:1:b)"
PERIOD = "LMCACHE_LMCACHE_WORKER_HEARTBEAT_TIME"
DELAY = "LMCACHE_LMCACHE_WORKER_HEARTBEAT_DELAY_TIME"
IMAGE_NEW = "lmcache/vllm-openai:v0.4.3"
IMAGE_W2 = "lmcache/lmstack-router:v0.1.12"
IMAGE_W1 = "lmcache/lmstack-router:v0.1.8"


def line(message: str, at: float = STARTED + 60) -> str:
    return f"{kubelet_time(at)} [2026-08-01 10:01:00,000] {message}\n"


def w(name: str = "w-0", **more: object) -> Member:
    return worker(name, **{"args": CONNECTOR, **more})  # type: ignore[arg-type]


def r(*lines: str, args: tuple[str, ...] = (), **more: object) -> Member:
    return router(log="".join(lines), args=KVAWARE + args, **more)  # type: ignore[arg-type]


def reason(check: str, of: Snapshot) -> Reason | None:
    return only(check, of).reason


@pytest.mark.parametrize("check", CHECK_IDS)
def test_other_strategies_do_not_ask_the_controller(check: str) -> None:
    assert reason(check, snapshot(w(), router(args=("--routing-logic", "roundrobin")))) is Reason.NOT_APPLICABLE


@pytest.mark.parametrize("check", CHECK_IDS)
def test_kvctls_own_router_has_no_controller(check: str) -> None:
    assert statuses(check, snapshot(w(), router(), stack=Stack.KVCTL)) == {"fleet": Status.SKIP}


class TestTimes:
    def test_no_heartbeat_against_a_router_that_reaps_fails(self) -> None:
        assert statuses("KV207", snapshot(w(), r(line(THREAD)))) == {"w-0": Status.FAIL}

    def test_ten_seconds_against_thirty_pass(self) -> None:
        assert statuses("KV207", snapshot(w(env={PERIOD: "10"}), r(line(THREAD)))) == {"w-0": Status.PASS}

    @pytest.mark.parametrize(
        ("period", "delay", "expected"),
        [
            ("14", "10", Status.PASS),  # 10 + 14 + 5 = 29
            ("14", "11", Status.WARN),  # 11 + 14 + 5 = 30
            ("15", "0", Status.WARN),  # half of 30
            ("29", "0", Status.WARN),
            ("30", "0", Status.FAIL),
            ("0", "10", Status.FAIL),
            ("None", "10", Status.FAIL),
        ],
    )
    def test_the_arithmetic(self, period: str, delay: str, expected: Status) -> None:
        found = snapshot(w(env={PERIOD: period, DELAY: delay}), r(line(THREAD)))
        assert statuses("KV207", found) == {"w-0": expected}

    def test_the_routers_own_timeout_counts(self) -> None:
        slow = r(line(THREAD), args=("--lmcache-worker-timeout", "120"))
        assert statuses("KV207", snapshot(w(env={PERIOD: "30"}), slow)) == {"w-0": Status.PASS}

    def test_what_the_worker_printed_beats_its_environment(self) -> None:
        log = line("LMCache INFO: Start heartbeat in i-0 : 0, delay time: 10s, heartbeat time: 30s (a.py:1:b)")
        assert statuses("KV207", snapshot(w(env={PERIOD: "10"}, log=log), r(line(THREAD)))) == {"w-0": Status.FAIL}

    def test_the_printed_configuration_counts(self) -> None:
        log = line("LMCache INFO: LMCache Configuration: {'lmcache_worker_heartbeat_time': 10} (a.py:1:b)")
        assert statuses("KV207", snapshot(w(log=log), r(line(THREAD)))) == {"w-0": Status.PASS}

    def test_a_value_that_was_not_read_has_no_data(self) -> None:
        assert reason("KV207", snapshot(w(env={PERIOD: "<from:secret/x>"}), r(line(THREAD)))) is Reason.NO_DATA

    def test_a_configuration_file_that_was_not_read_has_no_data(self) -> None:
        assert reason("KV207", snapshot(w(env={"LMCACHE_CONFIG_FILE": "/c.yaml"}), r(line(THREAD)))) is Reason.NO_DATA

    def test_a_router_that_does_not_look_passes(self) -> None:
        lax = r(line(THREAD), args=("--lmcache-health-check-interval", "0"))
        assert statuses("KV207", snapshot(w(), lax)) == {"router-0": Status.PASS}

    def test_an_old_router_passes(self) -> None:
        assert statuses("KV207", snapshot(w(), r(image=IMAGE_W1))) == {"router-0": Status.PASS}

    def test_a_router_of_a_known_image_reaps(self) -> None:
        assert statuses("KV207", snapshot(w(), r(image=IMAGE_W2))) == {"w-0": Status.FAIL}

    def test_a_router_of_unknown_version_is_not_judged(self) -> None:
        assert reason("KV207", snapshot(w(env={PERIOD: "10"}), r())) is Reason.VERSION_UNKNOWN

    def test_without_a_router_there_is_no_data(self) -> None:
        assert reason("KV207", snapshot(w(env={"LMCACHE_ENABLE_CONTROLLER": "True"}))) is Reason.NO_DATA

    def test_a_router_that_listens_to_no_heartbeats_fails(self) -> None:
        deaf = r(
            line("LMCache WARNING: Heartbeat socket is None, heartbeat handler not started! (a.py:1:b)"),
            image=IMAGE_NEW,
        )
        assert statuses("KV207", snapshot(w(env={PERIOD: "10"}), deaf)) == {"w-0": Status.FAIL}

    def test_a_router_configured_without_a_heartbeat_port_fails(self) -> None:
        ports = "INFO: Initializing KvawareRouter with port: 9000, reply port: 9001, heartbeat port: None (a.py:1:b)"
        found = snapshot(w(env={PERIOD: "10"}), r(line(ports), image=IMAGE_NEW))
        assert statuses("KV207", found) == {"w-0": Status.FAIL}

    def test_before_0_3_12_heartbeats_need_no_port(self) -> None:
        ports = "INFO: Initializing KvawareRouter with port: 9000, reply port: None, heartbeat port: None (a.py:1:b)"
        found = snapshot(w(env={PERIOD: "10"}), r(line(ports), image=IMAGE_W2))
        assert statuses("KV207", found) == {"w-0": Status.PASS}

    def test_a_worker_that_was_given_no_address_fails(self) -> None:
        log = line("LMCache INFO: No dedicated heartbeat_url provided by controller (a.py:1:b)")
        assert statuses("KV207", snapshot(w(env={PERIOD: "10"}, log=log), r(line(THREAD)))) == {"w-0": Status.FAIL}


class TestLost:
    BAD = "LMCache ERROR: Heartbeat timeout occurred, recreating socket. Error: try again (a.py:1:b)"
    OTHER = "LMCache ERROR: Error during heartbeat: boom (a.py:1:b)"
    GOOD = "LMCache INFO: Received heartbeat response with 2 frames (a.py:1:b)"

    def of(self, *lines: str, **more: object) -> Snapshot:
        return snapshot(w(log="".join(lines), **{"env": {PERIOD: "10"}, **more}), r(line(THREAD)))

    def test_three_in_a_row_fail(self) -> None:
        found = self.of(*(line(self.BAD, NOW - at) for at in (120, 80, 40)))
        assert statuses("KV208", found) == {"w-0": Status.FAIL}

    @pytest.mark.parametrize("text", [BAD, OTHER])
    def test_one_is_a_warning(self, text: str) -> None:
        assert statuses("KV208", self.of(line(text, NOW - 40))) == {"w-0": Status.WARN}

    def test_one_fails_where_the_router_has_dropped_the_worker(self) -> None:
        known = line("LMCache INFO: Registered instance-worker ('i-0', 0) with URL 10.0.0.1:8001 (a.py:1:b)", NOW - 200)
        dropped = line(
            "LMCache WARNING: Worker i-0_0 last heartbeat time: 1, now: 40, more than 30 seconds (a.py:1:b)",
            NOW - 30,
        )
        found = snapshot(w(log=line(self.BAD, NOW - 40)), r(line(THREAD), known, dropped))
        assert statuses("KV208", found) == {"w-0": Status.FAIL}

    def test_an_answer_between_them_ends_the_row(self) -> None:
        lines = [
            line(self.BAD, NOW - 160),
            line(self.BAD, NOW - 120),
            line(self.GOOD, NOW - 80),
            line(self.BAD, NOW - 40),
        ]
        assert statuses("KV208", self.of(*lines)) == {"w-0": Status.WARN}

    def test_failures_far_apart_are_no_row(self) -> None:
        found = self.of(*(line(self.BAD, NOW - at) for at in (800, 500, 100)))
        assert statuses("KV208", found) == {"w-0": Status.WARN}

    def test_failures_before_the_window_pass(self) -> None:
        found = self.of(*(line(self.BAD, NOW - at) for at in (1300, 1260, 1220)), line(self.GOOD, NOW - 30))
        assert statuses("KV208", found) == {"w-0": Status.PASS}

    def test_heartbeats_without_a_failure_pass(self) -> None:
        assert statuses("KV208", self.of(line(self.GOOD, NOW - 30))) == {"w-0": Status.PASS}

    def test_without_heartbeats_none_is_lost(self) -> None:
        assert reason("KV208", self.of(line("LMCache INFO: x (a.py:1:b)"), env={})) is Reason.DISABLED

    def test_an_unread_log_has_no_data(self) -> None:
        assert reason("KV208", snapshot(w(log=None), r(line(THREAD)))) is Reason.NO_DATA

    def test_a_level_that_hides_errors_says_so(self) -> None:
        hidden = self.of(line(self.GOOD), env={PERIOD: "10", "LMCACHE_LOG_LEVEL": "CRITICAL"})
        assert reason("KV208", hidden) is Reason.LOG_LEVEL_HIDES


def gauges(keys: float, registered: float = 2, **others: float) -> list[Sample]:
    return [
        sample("controller_keys", keys, "prod/router-0"),
        sample("controller_registered_workers", registered, "prod/router-0"),
        *(sample(name, value, "prod/router-0", increase=value) for name, value in others.items()),
    ]


class TestIndex:
    STORED = "LMCache INFO: Stored 512 out of total 713 tokens. size: 0.0625 gb, cost 12.3 ms (a.py:1:b)"

    def test_chunks_in_the_index_pass(self) -> None:
        assert statuses("KV209", snapshot(w(), r(), samples=gauges(7))) == {"fleet": Status.PASS}

    def test_an_empty_index_after_old_stores_fails(self) -> None:
        stored = sample("lmcache_stored_tokens", 5000, increase=100)
        assert statuses("KV209", snapshot(w(), r(), samples=[*gauges(0), stored])) == {"fleet": Status.FAIL}

    def test_a_store_in_the_log_more_than_a_minute_ago_fails(self) -> None:
        found = snapshot(w(log=line(self.STORED, NOW - 90)), r(), samples=gauges(0))
        assert statuses("KV209", found) == {"fleet": Status.FAIL}

    def test_a_store_just_now_is_waited_for(self) -> None:
        stored = sample("lmcache_stored_tokens", 512, increase=512)
        found = snapshot(w(log=line(self.STORED, NOW - 20)), r(), samples=[*gauges(0), stored])
        assert reason("KV209", found) is Reason.NO_DATA

    def test_without_stores_there_is_no_traffic(self) -> None:
        assert reason("KV209", snapshot(w(), r(), samples=gauges(0))) is Reason.NO_TRAFFIC

    def test_an_empty_index_without_registrations_is_not_judged(self) -> None:
        stored = sample("lmcache_stored_tokens", 5000, increase=100)
        assert reason("KV209", snapshot(w(), r(), samples=[*gauges(0, registered=0), stored])) is Reason.NO_DATA

    def test_missed_messages_are_a_warning(self) -> None:
        found = snapshot(w(), r(), samples=gauges(7, controller_seq_discontinuity=3))
        assert statuses("KV209", found) == {"fleet": Status.WARN}

    def test_missing_batches_are_a_warning(self) -> None:
        found = snapshot(w(), r(), samples=gauges(7, controller_full_sync_missing=1))
        assert statuses("KV209", found) == {"fleet": Status.WARN}

    def test_without_the_gauge_there_is_no_data(self) -> None:
        assert reason("KV209", snapshot(w(), r())) is Reason.NO_DATA


class TestDiscovered:
    FOUND = "INFO: Discovered new serving engine w-0 at 10.0.0.1, running models: ['m'] (a.py:1:b)"
    REGISTERED = "LMCache INFO: Registered instance-worker ('i-0', 0) with URL 10.0.0.1:8001 (a.py:1:b)"
    OTHER = "INFO: Discovered new serving engine w-9 at 10.0.0.99, running models: ['m'] (a.py:1:b)"

    def test_found_and_registered_passes(self) -> None:
        assert statuses("KV210", snapshot(w(), r(line(self.FOUND), line(self.REGISTERED)))) == {"w-0": Status.PASS}

    def test_found_and_not_registered_is_a_warning(self) -> None:
        assert statuses("KV210", snapshot(w(), r(line(self.FOUND)))) == {"w-0": Status.WARN}

    def test_registered_and_not_found_is_a_warning(self) -> None:
        found = snapshot(w(), r(line(self.OTHER), line(self.REGISTERED)))
        assert statuses("KV210", found) == {"w-0": Status.WARN}

    def test_the_routers_gauge_tells_who_was_found(self) -> None:
        pods = sample("router_healthy_pods", 1, "prod/router-0", server="http://10.0.0.1:8000")
        found = snapshot(w(), r(line(self.REGISTERED)), samples=[pods])
        assert statuses("KV210", found) == {"w-0": Status.PASS}

    def test_a_pod_that_is_down_was_not_found(self) -> None:
        pods = [
            sample("router_healthy_pods", 0, "prod/router-0", server="http://10.0.0.1:8000"),
            sample("router_healthy_pods", 1, "prod/router-0", server="http://10.0.0.2:8000"),
        ]
        assert statuses("KV210", snapshot(w(), r(line(self.REGISTERED)), samples=pods)) == {"w-0": Status.WARN}

    def test_not_registered_in_a_cut_log_is_unknown(self) -> None:
        assert reason("KV210", snapshot(w(), r(line(self.FOUND), head_complete=False))) is Reason.LOG_TRUNCATED

    def test_neither_found_nor_registered_has_no_data(self) -> None:
        assert reason("KV210", snapshot(w(), r(line(self.OTHER)))) is Reason.NO_DATA

    def test_a_worker_known_by_a_loopback_url_can_not_be_looked_up(self) -> None:
        process = replace(w(), ips=())
        assert reason("KV210", snapshot(process, r(line(self.FOUND), line(self.REGISTERED)))) is Reason.NO_DATA

    def test_a_router_that_tells_of_no_engine_has_no_data(self) -> None:
        assert reason("KV210", snapshot(w(), r(line(THREAD)))) is Reason.NO_DATA


def test_kv207_believes_the_controller_that_listens_over_the_routers_line() -> None:
    ports = "INFO: Initializing KvawareRouter with port: 9000, reply port: 9001, heartbeat port: None (a.py:1:b)"
    listens = "LMCache INFO: Starting heartbeat request handler on 0.0.0.0:9002 (a.py:1:b)"
    found = snapshot(w(env={PERIOD: "10"}), r(line(ports), line(listens), image=IMAGE_NEW))
    assert statuses("KV207", found) == {"w-0": Status.PASS}


def test_kv209_says_that_no_message_has_arrived() -> None:
    stored = sample("lmcache_stored_tokens", 5000, increase=100)
    of = snapshot(w(), r(), samples=[*gauges(0), stored, sample("controller_pull_messages", 0, "prod/router-0")])
    message = "workers stored tokens, but the router's index is empty, and no message of theirs has arrived"
    assert only("KV209", of).message == message


@pytest.mark.parametrize(("engines", "status"), [(2, Status.PASS), (1, Status.WARN)])
def test_kv210_compares_numbers_where_only_the_routers_list_of_engines_tells(engines: int, status: Status) -> None:
    listed = r(line(THREAD), answers={"/engines": [{"engine_id": str(at)} for at in range(engines)]})
    assert statuses("KV210", snapshot(w(), w("w-1", ip="10.0.0.2"), listed)) == {"router-0": status}
