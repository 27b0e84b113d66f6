"""A recorded session of vLLM 0.32: its KV events, decoded and indexed, foretell what it reported as cached.

The recording (`tests/real/record.py` made it) is of an engine with 24 blocks: 120 requests, 172 evicted blocks, blocks
held in several copies, cache salts, resets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from router.events.wire import AllBlocksCleared, BlockRemoved, BlockStored, WireDecoder
from router.prefix.hashing import block_keys, root_key
from router.prefix.index import PrefixIndex
from router.reuse import reusable_tokens

RECORDING = Path(__file__).parents[2] / "real" / "data" / "vllm-0.32-session.msgpack"
BLOCK = 32
SEED = 7


@pytest.fixture(scope="module")
def steps() -> list[dict[str, Any]]:
    recorded: list[dict[str, Any]] = msgspec.msgpack.decode(RECORDING.read_bytes())
    return recorded


def test_the_index_foretells_the_cached_tokens_of_every_request(steps: list[dict[str, Any]]) -> None:
    index = PrefixIndex(SEED, 64 << 20)
    decoder = WireDecoder()
    wrong = []
    for number, step in enumerate(steps):
        ids = np.array(step["ids"], np.uint32)
        keys = block_keys(ids, BLOCK, root_key(SEED, BLOCK, None, step["salt"]))
        predicted = reusable_tokens(int(index.match(keys).device[0]), len(ids), BLOCK)
        if predicted != step["cached"]:
            wrong.append((number, predicted, step["cached"]))
        for _topic, _seq, payload in step["frames"]:
            for event in decoder.decode(payload).events:
                index.apply(0, event)
    assert wrong == []


def test_every_event_of_the_recording_is_understood(steps: list[dict[str, Any]]) -> None:
    decoder = WireDecoder()
    told, decoded = 0, []
    for step in steps:
        for _topic, _seq, payload in step["frames"]:
            told += len(msgspec.msgpack.decode(payload)[1])
            decoded += decoder.decode(payload).events
    assert len(decoded) == told
    assert {type(event) for event in decoded} == {BlockStored, BlockRemoved, AllBlocksCleared}


def test_the_recording_has_no_gap(steps: list[dict[str, Any]]) -> None:
    numbers = [seq for step in steps for _topic, seq, _payload in step["frames"]]
    assert numbers == list(range(len(numbers)))
