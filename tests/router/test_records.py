"""The decision log's bounds, and the shape of a record."""

from __future__ import annotations

import json

import numpy as np
import pytest

from router.core import CoreSettings, RoutingCore
from router.fleet.worker import Health, KvState
from router.model import Decision, NoWorkers, RouteRequest, WorkerSpec
from router.policies.kv import KvWeights
from router.records import DecisionLog, Refusal, record, refusal_record, summary


def decision(number: int = 0) -> Decision:
    core = RoutingCore(CoreSettings(seed=1))
    for name in ("a", "b"):
        worker = core.fleet.add(WorkerSpec(url=f"http://{name}:1", id=name))
        worker.health, worker.models, worker.block_size, worker.kv = Health.UP, ("m",), 16, KvState.LIVE
    core.fleet.workers["b"].draining = True
    core.fleet.changed()
    core.add_slots()
    ids = np.arange(160, dtype=np.uint32)
    core.index.store(0, 0, None, np.arange(8, dtype=np.uint64), ids[:128], 16)
    made = core.decide(RouteRequest(f"r{number}", "m", 160, core.keys_for(ids)), "kv", 1.5)
    made.id = f"d-{number}"
    return made


def test_a_record_has_the_promised_shape() -> None:
    shown = json.loads(json.dumps(record(decision(), KvWeights())))
    assert shown["winner"] == {"worker": "a", "dp_rank": 0}
    assert shown["reason"] == "only_candidate"
    assert shown["predicted_cached_tokens"] == 128
    assert shown["engine_cached_tokens"] is None
    first, second = shown["candidates"]
    assert first["overlap"] == {"device": 8, "host": 0, "disk": 0, "shared": 0}
    assert first["load"] == {
        "prefill_tokens": 32,
        "decode_blocks": 10,
        "active_requests": 0,
        "own_prefill_tokens": 0,
    }
    assert first["terms"] == [
        {"name": "prefill", "value": 2.0, "unit": "blocks"},
        {"name": "decode", "value": 10.0, "unit": "blocks"},
    ]
    assert first["cost"] == 12.0
    assert (second["eligible"], second["why_not"]) == (False, "draining")


def test_a_summary_leaves_the_candidates_out() -> None:
    assert "candidates" not in summary(decision())


def test_the_log_keeps_the_newest_by_number() -> None:
    log = DecisionLog(most=3)
    for number in range(5):
        log.add(decision(number))
    assert [kept.id for kept in log.newest(10)] == ["d-4", "d-3", "d-2"]
    assert log.get("d-1") is None


def test_the_log_keeps_within_its_bytes() -> None:
    log = DecisionLog(limit_bytes=9000)
    for number in range(20):
        log.add(decision(number))
    assert len(log) == 3
    assert log.bytes <= 9000


def test_a_decision_is_found_by_its_request_id() -> None:
    log = DecisionLog()
    log.add(decision(7))
    found = log.get("r7")
    assert found is not None
    assert found.id == "d-7"


def refusal(number: int) -> Refusal:
    return Refusal(f"d-r{number}", f"request-{number}", "kv", "m", 1.5, NoWorkers("nobody", extra={"limit": "x"}))


def test_a_flood_of_refusals_drives_no_decision_out_and_is_bounded() -> None:
    log = DecisionLog(most_refusals=10)
    log.add(decision(1))
    for number in range(1000):
        log.refuse(refusal(number))
    assert log.get("d-1") is not None
    assert [one.id for one in log.refusals(100)] == [f"d-r{number}" for number in range(999, 989, -1)]


def test_a_refusal_is_found_by_its_id_and_by_the_requests() -> None:
    log = DecisionLog()
    log.refuse(refusal(1))
    assert log.get("d-r1") is log.get("request-1") is log.refusals(1)[0]


def test_a_kept_refusal_holds_neither_its_request_nor_a_traceback() -> None:
    log = DecisionLog()
    kept = refusal(1)
    try:
        kept.error.request = RouteRequest("r1", "m")
        raise kept.error
    except NoWorkers:
        log.refuse(kept)
    assert (kept.error.__traceback__, kept.error.request) == (None, None)


def test_a_refusals_record_says_who_was_barred_by_what() -> None:
    core = RoutingCore(CoreSettings(seed=1))
    core.fleet.add(WorkerSpec(url="http://a:1", id="a"))
    core.fleet.changed()
    core.add_slots()
    with pytest.raises(NoWorkers) as caught:
        core.decide(RouteRequest("r1", "m"), "kv", 1.5)
    shown = refusal_record(Refusal("d-1", "r1", "kv", "m", 1.5, caught.value))
    assert shown["winner"] is None
    assert shown["refused"]["status"] == 503
    assert [(row["worker"], row["why_not"]) for row in shown["candidates"]] == [("a", "unhealthy")]
