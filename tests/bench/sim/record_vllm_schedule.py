"""Records what vLLM's own scheduler and block pool do with some requests: the vectors of `test_against_vllm.py`.

Not a test and not run by the suite: it needs vLLM (0.32 was used) and a folder with the `config.json` of any small
Llama model and a tokenizer. No model is run; sampled tokens are made up. Usage, in vLLM's environment:

    python record_vllm_schedule.py MODEL_FOLDER OUT.json SEED NUM_BLOCKS MAX_BATCHED_TOKENS MAX_SEQS
"""

from __future__ import annotations

import json
import random
import sys
import zlib
from pathlib import Path
from typing import Any

BLOCK = 32
CONTEXT = 1024


def workload(seed: int, count: int = 60) -> list[dict[str, Any]]:
    """Prompts as runs `[first id, length]` from a small tree, a third of them continued in a second turn."""
    rng = random.Random(seed)
    requests = []
    for _ in range(count):
        runs = [
            [rng.randint(0, 2) * 97 + depth * 7 + 3, rng.choice([32, 32, 45, 64])] for depth in range(rng.randint(1, 6))
        ]
        requests.append({"at": rng.randint(0, 80), "runs": runs, "answer": rng.randint(1, 60)})
    for index in range(0, count, 3):
        first = requests[index]
        again = [*first["runs"], *([token, 1] for token in answer(index, first["answer"])), [9, rng.randint(1, 40)]]
        arrives = first["at"] + rng.randint(60, 100)
        requests.append({"at": arrives, "runs": again, "answer": rng.randint(1, 40)})
    return requests


def prompt(request: dict[str, Any]) -> list[int]:
    return [first + offset for first, length in request["runs"] for offset in range(length)]


def answer(index: int, length: int) -> list[int]:
    return [(index * 13 + position * 7) % 2000 + 3 for position in range(length)]


class Names:
    """A name for every block that is the same on both sides: a checksum of all tokens up to its end."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def stored(self, hashes: list[Any], parent: Any, tokens: list[int]) -> list[int]:
        value = 0 if parent is None else self._known[parent]
        names = []
        for number, block in enumerate(hashes):
            value = zlib.crc32(json.dumps(tokens[number * BLOCK : (number + 1) * BLOCK]).encode(), value)
            self._known[block] = value
            names.append(value)
        return names

    def removed(self, hashes: list[Any]) -> list[int]:
        return [self._known[block] for block in hashes]


def record(folder: str, seed: int, num_blocks: int, budget: int, max_seqs: int) -> dict[str, Any]:
    import torch
    from vllm.config.kv_events import KVEventsConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    blocks = num_blocks + 1  # vLLM keeps one for itself
    config = EngineArgs(
        model=folder,
        load_format="dummy",
        enforce_eager=True,
        max_model_len=CONTEXT,
        block_size=BLOCK,
        max_num_seqs=max_seqs,
        max_num_batched_tokens=budget,
        num_gpu_blocks_override=blocks,
        async_scheduling=False,
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.bfloat16)
    cache = KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)])
    scheduler = Scheduler(config, cache, StructuredOutputManager(config), block_size=BLOCK, log_stats=False)
    published: list[Any] = []
    scheduler.kv_event_publisher.publish = lambda batch: published.extend(batch.events)
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)

    requests, names, steps = workload(seed), Names(), []
    answers = {f"r{index}": answer(index, request["answer"]) for index, request in enumerate(requests)}
    last = max(request["at"] for request in requests)
    turn = 0
    while turn <= last or scheduler.has_requests():
        for index, request in enumerate(requests):
            if request["at"] == turn:
                params = SamplingParams(max_tokens=request["answer"], ignore_eos=True)
                params.update_from_generation_config({}, 2)
                scheduler.add_request(Request(f"r{index}", prompt(request), params, None, block_hasher=hasher))
        turn += 1
        if not scheduler.has_requests():
            continue
        plan = scheduler.schedule()
        scheduled = dict(plan.num_scheduled_tokens)
        if not scheduled:  # only tells the workers what has finished
            scheduler.update_from_output(plan, _output({}, ModelRunnerOutput))
            continue
        computed = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
        old = plan.scheduled_cached_reqs
        computed |= dict(zip(old.req_ids, old.num_computed_tokens, strict=True))
        sampled = {}
        for name, tokens in scheduled.items():
            caught_up = computed[name] + tokens >= scheduler.requests[name].num_tokens
            sampled[name] = [answers[name].pop(0)] if caught_up else []
        published.clear()
        scheduler.update_from_output(plan, _output(sampled, ModelRunnerOutput))
        events = [
            ["stored", names.stored(event.block_hashes, event.parent_block_hash, event.token_ids)]
            if type(event).__name__ == "BlockStored"
            else ["removed", names.removed(event.block_hashes)]
            for event in published
        ]
        steps.append({"tokens": scheduled, "events": events})
    sizes = {"num_blocks": num_blocks, "max_num_batched_tokens": budget, "max_num_seqs": max_seqs}
    return {"config": {"block_size": BLOCK, "max_model_len": CONTEXT, **sizes}, "requests": requests, "steps": steps}


def _output(sampled: dict[str, list[int]], kind: Any) -> Any:
    return kind(
        req_ids=list(sampled),
        req_id_to_index={name: place for place, name in enumerate(sampled)},
        sampled_token_ids=list(sampled.values()),
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


if __name__ == "__main__":
    folder, out, *numbers = sys.argv[1:]
    Path(out).write_text(json.dumps(record(folder, *map(int, numbers)), separators=(",", ":")) + "\n")
