"""The decision log's bounds, and the shape of a record."""

from __future__ import annotations

import json

import numpy as np

from router.core import CoreSettings, RoutingCore
from router.fleet.worker import Health, KvState
from router.model import Decision, RouteRequest, WorkerSpec
from router.policies.kv import KvWeights
from router.records import DecisionLog, record, summary


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
