"""The simulated scheduler does what vLLM's does: same sequences in the same steps, same events in the same order.

The recordings were made by driving the scheduler and block pool of vLLM 0.32 with the same requests, see
`record_vllm_schedule.py`: small caches, shared prefixes, second turns, chunked prompts, evictions and preemptions.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.sim.engine import Engine, EngineConfig, EngineRequest
from bench.sim.kvcache import Stored
from bench.sim.timing import FixedTiming, Timing

RECORDINGS = sorted((Path(__file__).parent / "recorded").glob("*.json"))


def simulate(recording: dict[str, Any]) -> tuple[list[dict[str, Any]], Engine]:
    """The recording's requests through the simulated engine, as steps of the same form."""
    engine = Engine(EngineConfig(**recording["config"]), Timing(FixedTiming()))
    requests = recording["requests"]
    block = recording["config"]["block_size"]
    names: dict[int, int] = {}
    steps: list[dict[str, Any]] = []
    turn = 0
    result = None
    while result is not None or turn <= max(request["at"] for request in requests):
        for index, request in enumerate(requests):
            if request["at"] == turn:
                prompt = [first + offset for first, length in request["runs"] for offset in range(length)]
                answer = [(index * 13 + position * 7) % 2000 + 3 for position in range(request["answer"])]
                engine.submit(EngineRequest(f"r{index}", np.array(prompt, np.uint32), np.array(answer, np.uint32)), 0.0)
        turn += 1
        result = engine.step(float(turn))
        if result is None:
            continue
        events = []
        for event in result.events:
            if isinstance(event, Stored):
                value = 0 if event.parent is None else names[event.parent]
                tokens = event.tokens.tolist()
                for number, key in enumerate(event.keys.tolist()):
                    value = zlib.crc32(json.dumps(tokens[number * block : (number + 1) * block]).encode(), value)
                    names[key] = value
                events.append(["stored", [names[key] for key in event.keys.tolist()]])
            else:
                events += [["removed", [names[key]]] for key in event.keys.tolist()]
        sampled = [output.id for output in result.outputs]
        total = result.work.prefill_tokens + result.work.decode_seqs
        steps.append({"total": total, "sampled": sampled, "events": events})
    return steps, engine


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_steps_and_events_are_vllms(path: Path) -> None:
    recording = json.loads(path.read_text())
    steps, engine = simulate(recording)
    expected = recording["steps"]
    for number, (ours, theirs) in enumerate(zip(steps, expected, strict=False)):
        assert ours["total"] == sum(theirs["tokens"].values()), f"tokens of step {number}"
        planned = iter(theirs["tokens"])
        assert all(name in planned for name in ours["sampled"]), f"order of step {number}"
        assert ours["events"] == theirs["events"], f"events of step {number}"
    assert len(steps) == len(expected)
    assert engine.counters.finished == {"length": len(recording["requests"])}


def test_the_recordings_cover_eviction_reuse_and_preemption() -> None:
    counters = [simulate(json.loads(path.read_text()))[1].counters for path in RECORDINGS]
    assert len(RECORDINGS) == 3
    assert sum(each.preemptions for each in counters) > 10
    assert all(each.cache_hits > 2000 for each in counters)
