"""The kv policy against 960 recorded choices of Dynamo's selector, given the overlaps and loads that it reported.

What the index and the load tracker make of the same history is compared in tests/router/prefix/test_recorded_selection.
The recorder counts no pending prefill of other requests, so `prefill_tokens` is 0 here.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from router.model import Candidates, RouteRequest
from router.policies.kv import Kv, KvWeights

RECORDING = Path(__file__).parents[3].parent / "shared" / "data" / "oracle" / "dynamo_selection.jsonl"

pytestmark = pytest.mark.skipif(not RECORDING.exists(), reason="the recorded decisions are not beside this checkout")


def candidates(query: dict[str, Any], block_size: int) -> Candidates:
    workers = list(query["overlap"])
    overlap = np.array([query["overlap"][worker] for worker in workers], np.int64)
    loads = np.array([query["loads"][worker] for worker in workers], np.float64)
    zeros = np.zeros(len(workers), np.int64)
    return Candidates(
        workers=tuple(workers),
        ranks=(0,) * len(workers),
        slots=np.arange(len(workers)),
        eligible=np.ones(len(workers), np.bool_),
        why_not=zeros,
        device=overlap[:, 0],
        host=overlap[:, 1],
        disk=overlap[:, 2],
        shared=zeros,
        prefill_tokens=zeros,
        own_prefill_tokens=zeros,
        decode_blocks=loads[:, 1].astype(np.int64),
        new_blocks=zeros,
        active_requests=loads[:, 2].astype(np.int64),
        capacity_blocks=zeros,
        block_size=np.full(len(workers), block_size, np.int64),
        device_class=zeros,
    )


def test_the_policy_chooses_as_recorded_in_all_960_queries() -> None:
    agreed = queries = 0
    for line in RECORDING.read_bytes().splitlines():
        scenario = msgspec.json.decode(line)
        policy = Kv(KvWeights(**scenario["weights"]))
        for query in scenario["queries"]:
            rows = candidates(query, scenario["block_size"])
            request = RouteRequest(id="q", model="m", prompt_tokens=len(query["token_ids"]))
            decision = policy.decide(request, rows, random.Random(7))
            cheapest = {int(rows.workers[row]) for row in np.flatnonzero(decision.cost == decision.cost.min())}
            queries += 1
            agreed += int(decision.worker) in query["chosen"] or cheapest >= set(query["chosen"])
    print(f"\nrecorded choices: {agreed} of {queries}")
    assert (agreed, queries) == (960, 960)


def test_exact_ties_are_ties_in_the_recording_too() -> None:
    """Where the recorder picked several workers over its six tries, their costs are equal to the last bit."""
    for line in RECORDING.read_bytes().splitlines():
        scenario = msgspec.json.decode(line)
        policy = Kv(KvWeights(**scenario["weights"]))
        for query in scenario["queries"]:
            rows = candidates(query, scenario["block_size"])
            request = RouteRequest(id="q", model="m", prompt_tokens=len(query["token_ids"]))
            cost = policy.decide(request, rows, random.Random(7)).cost
            chosen = [cost[rows.workers.index(str(worker))] for worker in query["chosen"]]
            assert set(chosen) == {cost.min()}
