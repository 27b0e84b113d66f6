"""One schedule for three load generators, and its three spellings. Pure but for the files it writes.

Prompts are text of distinct beginnings, so nothing is ever cached; times are even, because `vllm bench serve` replays
given times only for token ids that it draws itself. Requests do not overlap: whatever one tool does a millisecond later
then stays with that request, and the engine answers every tool alike.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from bench.workload import schedule
from bench.workload.model import Request, Workload
from bench.workload.tokens import Piece, Vocabulary, piece_key
from bench.workload.words import WORDS

PROMPT_WORDS = (200, 2000)
OUTPUTS = (8, 32)


@dataclass(frozen=True, slots=True)
class Sent:
    """One request. `at`: seconds from the first."""

    at: float
    prompt: str
    output: int


@dataclass(frozen=True, slots=True)
class Plan:
    """`gap`: seconds between two requests."""

    requests: tuple[Sent, ...]
    gap: float
    model: str


def make_plan(count: int, gap: float, model: str, seed: int) -> Plan:
    """`count` requests, one every `gap` seconds; the same for the same seed."""
    rng = random.Random(f"{seed}/agreement")
    requests = []
    for index in range(count):
        words = rng.choices(WORDS, k=rng.randint(*PROMPT_WORDS))
        requests.append(Sent(index * gap, f"Request {index} of {seed}: " + " ".join(words), rng.randint(*OUTPUTS)))
    return Plan(tuple(requests), gap, model)


def write_kvctl(plan: Plan, path: Path) -> None:
    """A schedule as `kvctl bench --trace` reads it."""
    requests = [
        Request(
            id=f"r{index}", session=f"s{index}", turn=0, group="none", slice=0, at=one.at, output_len=one.output,
            pieces=(Piece(piece_key("agreement", one.prompt), max(1, len(one.prompt) // 4), one.prompt),),
        )
        for index, one in enumerate(plan.requests)
    ]  # fmt: skip
    schedule.write(Workload("agreement", tuple(requests), 1, Vocabulary()), path)


def write_aiperf(plan: Plan, path: Path) -> None:
    """Bodies with times, as aiperf's mooncake-trace takes them; it sends them as they are."""
    with path.open("w", encoding="utf-8") as file:
        for one in plan.requests:
            body = {
                "model": plan.model, "prompt": one.prompt, "max_tokens": one.output, "min_tokens": one.output,
                "ignore_eos": True, "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
            }  # fmt: skip
            file.write(json.dumps({"timestamp": round(one.at * 1000), "payload": body}) + "\n")


def write_vllm(plan: Plan, path: Path) -> None:
    """Prompts and lengths for `vllm bench serve --dataset-name custom`; the times are options of its command."""
    with path.open("w", encoding="utf-8") as file:
        for one in plan.requests:
            file.write(json.dumps({"prompt": one.prompt, "output_tokens": one.output}) + "\n")
