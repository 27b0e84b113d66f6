"""The controller's memory, and the router's words for routing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bench.sim.lines import Lines
from bench.sim.router_log import Controller, Routed, RouterLog, routed_from
from bench.sim.styles import style_named


class Kept:
    def __init__(self) -> None:
        self.records: list[str] = []

    def write(self, record: str) -> None:
        self.records.append(re.sub(r"\x1b\[[0-9;]*m", "", record))

    def close(self) -> None:
        pass

    def having(self, text: str) -> list[str]:
        return [record for record in self.records if text in record]


def rig(style: str = "lmcache-0.4.3") -> tuple[RouterLog, Kept]:
    sink = Kept()
    return RouterLog(Lines(style_named(style), sink)), sink


HIT = Routed("r-1", "sim-0", "http://10.0.0.1:8000", True, 1785578460.0, 0.0021)
MISS = Routed("r-2", "sim-1", "http://10.0.0.2:8000", False, 1785578461.5, 0.0004)


def test_the_start_tells_ports_and_the_root_of_the_keys() -> None:
    log, sink = rig()
    log.began(-5, 5.0, (9000, 9001, 9002))
    for text in (
        "Initializing kvaware routing logic",
        "Initializing KvawareRouter with port: 9000, reply port: 9001, heartbeat port: 9002",
        "LMCache INFO: Initialized NONE_HASH=-5 from vLLM (>= PR#20511)",
        "LMCache INFO: Start health check thread, interval: 5 ",
        "Starting pull request handler on 0.0.0.0:9000",
        "Starting reply request handler on 0.0.0.0:9001",
        "Starting heartbeat request handler on 0.0.0.0:9002",
    ):
        assert len(sink.having(text)) == 1, text


def test_a_hit_names_the_instance_and_a_miss_does_not() -> None:
    log, sink = rig()
    log.routed(HIT)
    log.routed(MISS)
    (found,) = sink.having("found by kvaware router")
    assert re.match(r"\[[^]]+\] INFO: Routing request to sim-0 found by kvaware router \(", found)
    ways = sink.having("with session id")
    way = r"Routing request r-1 with session id None to http://10.0.0.1:8000 at 1785578460.0, process time = 0.0021 \("
    assert re.search(way, ways[0])
    assert "Routing request r-2 with session id None to http://10.0.0.2:8000 at 1785578461.5" in ways[1]


def test_the_map_of_instances_is_told_when_it_changes() -> None:
    log, sink = rig()
    log.routed(HIT)
    log.routed(HIT)
    (told,) = sink.having("Instance id to ip mapping")
    assert "{'sim-0': 'http://10.0.0.1:8000'}" in told


def test_awss_router_has_its_own_words() -> None:
    log, sink = rig("hyperpod")
    log.routed(HIT)
    log.routed(MISS)
    assert sink.records == [
        "INFO: Routing request to sim-0 found by kvaware router",
        "DEBUG: Matched instance url None",
    ]


def test_an_engine_that_answers_is_discovered() -> None:
    log, sink = rig()
    log.discovered("sim-0", "10.0.0.1", ["m"])
    assert "INFO: Discovered new serving engine sim-0 at 10.0.0.1, running models: ['m'] (" in sink.records[0]


def test_a_registration_is_told_once_and_a_second_one_skipped() -> None:
    log, sink = rig()
    controller = Controller(log, timeout=30.0)
    controller.register("a", 0, "10.0.0.1:8001", 0.0)
    controller.register("a", 0, "10.0.0.1:8001", 1.0)
    assert len(sink.having("Registered instance-worker ('a', 0) with URL 10.0.0.1:8001")) == 1
    assert len(sink.having("Instance-worker ('a', 0) already registered, skip registration")) == 1
    assert controller.knows("a", 0)


def test_a_worker_is_dropped_when_its_heartbeat_stays_away_too_long() -> None:
    log, sink = rig()
    controller = Controller(log, timeout=30.0)
    controller.register("a", 0, "10.0.0.1:8001", 0.0)
    controller.register("b", 0, "10.0.0.2:8001", 0.0)
    controller.heartbeat("b", 0, "10.0.0.2:8001", 20.0)
    controller.check(30.0)
    assert controller.knows("a", 0)
    controller.check(30.5)
    assert (controller.knows("a", 0), controller.knows("b", 0)) == (False, True)
    assert len(sink.having("Worker a_0 last heartbeat time: 0.0, current time: 30.5, more than 30 seconds")) == 1
    assert len(sink.having("Deregistered instance-worker ('a', 0)")) == 1


def test_the_heartbeat_of_an_unknown_worker_registers_it_again() -> None:
    log, sink = rig()
    controller = Controller(log, timeout=30.0)
    controller.heartbeat("a", 0, "10.0.0.1:8001", 5.0)
    assert len(sink.having("('a', 0) has not been registered, re-register the worker.")) == 1
    assert len(sink.having("Registered instance-worker ('a', 0)")) == 1
    assert controller.knows("a", 0)


def decision(winner: dict[str, Any] | None, predicted: int | None) -> dict[str, Any]:
    """A row of the router's `/decisions`, as far as it is read."""
    return {
        "request_id": "r-1",
        "winner": winner,
        "at": 7.5,
        "decide_us": 2100.0,
        "predicted_cached_tokens": predicted,
    }


@pytest.mark.parametrize(("predicted", "hit"), [(128, True), (0, False), (None, False)])
def test_a_decision_is_a_hit_where_its_winner_was_thought_to_hold_something(predicted: int | None, hit: bool) -> None:
    row = decision({"worker": "w1", "dp_rank": 1}, predicted)
    event = routed_from(row, {"w1": "http://10.0.0.1:8000"}, {})
    assert event == Routed("r-1", "w1", "http://10.0.0.1:8000", hit, 7.5, 0.0021)


def test_a_decision_names_the_instance_of_its_worker() -> None:
    event = routed_from(decision({"worker": "w1", "dp_rank": 0}, 0), {"w1": "http://x"}, {"w1": "engine-1"})
    assert event is not None and event.instance == "engine-1"


def test_a_decision_without_a_winner_is_no_way() -> None:
    assert routed_from(decision(None, 0), {}, {}) is None
