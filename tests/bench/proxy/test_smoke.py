"""A second of the whole apparatus: stub engines, client and our own router, without the peers."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

from bench.proxy import processes, report
from bench.proxy.prompts import Load
from bench.proxy.routers import ARMS, Arm, Engines, Place, Running
from bench.proxy.run import Bench, Measured, Plan, run

ROOT = Path(__file__).resolve().parents[3]
TOKENIZER = ROOT / "bench" / "sim" / "tokenizer"

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="router and load need a core each")


def arm(name: str) -> Arm:
    return next(one for one in ARMS if one.name == name)


def plan(*names: str) -> Plan:
    return Plan(tuple(map(arm, names)), 1, 0.5, ROOT / "no-peers", TOKENIZER, streams=8, held=20, rate=50.0)


@needs_two_cores
def test_a_round_of_direct_and_kvctl_has_every_figure() -> None:
    outcome = run(plan("direct", "kvctl-rr"))
    assert outcome.failed == {}
    (direct,), (ours,) = outcome.rounds["direct"], outcome.rounds["kvctl-rr"]
    for one in (direct, ours):
        assert one.closed is not None and one.closed.done > 0 and one.closed.failed == 0
        assert one.paced is not None and 0 < one.paced.p50 <= one.paced.p99
        assert one.streams is not None and one.streams.done > 0
    assert ours.closed is not None and ours.closed.router_cpu > 0
    assert ours.held is not None and ours.held.memory > 0


@needs_two_cores
def test_kv_sends_chats_and_ids_to_the_engines_that_hold_them(tmp_path: Path) -> None:
    bench, kv = Bench(plan("kvctl-kv-chat"), tmp_path), arm("kvctl-kv-chat")
    try:
        with bench.running(kv) as (targets, pids):
            paths = f"{bench.engines.urls[0]}/stub/paths"
            for load, path in ((Load.CHAT, "/v1/chat/completions"), (Load.IDS, "/v1/completions")):
                httpx.get(paths, trust_env=False).raise_for_status()
                bench.measured(kv, targets, pids, "paced", 0.5, load=load, connections=4, rate=20.0)
                counts = httpx.get(paths, trust_env=False).json()
                assert counts["held"] == counts[path] > 0
    finally:
        bench.close()


def _missing(name: str, engines: Engines, place: Place) -> Running:
    return Running(processes.start([str(place.peers / name)], place.core, place.folder / "log"), ("127.0.0.1", 1))


@needs_two_cores
def test_an_arm_whose_program_is_missing_is_reported() -> None:
    absent = Arm("vllm-rr", "vllm-router round_robin", Load.SMALL, _missing)
    given = Plan((absent,), 1, 0.1, ROOT / "no-peers", TOKENIZER)
    outcome = run(given)
    assert "No such file" in outcome.failed["vllm-rr"]
    text = report.markdown(given, outcome)
    assert "| vllm-router round_robin | failed |" in text
    assert "No such file" in text
    assert Measured().closed is None
