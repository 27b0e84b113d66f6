"""How long a decision takes: token ids to block keys to a `Decision`, then the booking. Prints a Markdown table.

Every worker holds a part of the prompt, from a 1/n-th to all of it, so each walk has as many ends as workers. Median
and p99 over `--repeat` decisions one after another (warm processor caches; an idle router pays several times as much).
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from router.core import CoreSettings, RoutingCore
from router.fleet.worker import Health, KvState
from router.model import RouteRequest, WorkerSpec

BLOCK = 16


def fleet(workers: int, prompt: np.ndarray, rng: np.random.Generator) -> RoutingCore:
    core = RoutingCore(CoreSettings(seed=1))
    for number in range(workers):
        worker = core.fleet.add(WorkerSpec(url=f"http://w{number}:1", id=f"w{number}"))
        worker.health, worker.models, worker.kv = Health.UP, ("m",), KvState.LIVE
        worker.block_size, worker.capacity_blocks = BLOCK, 1 << 20
    core.fleet.changed()
    core.add_slots()
    for number in range(workers):
        held = len(prompt) * (number + 1) // workers // BLOCK
        if held:
            hashes = rng.integers(0, 2**63, held).astype(np.uint64)
            core.index.store(number, 0, None, hashes, prompt[: held * BLOCK], BLOCK)
    return core


def measure(core: RoutingCore, prompt: np.ndarray, repeat: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Microseconds for keys, decision and booking, float64 (repeat,) each."""
    times = np.empty((3, repeat))
    for number in range(repeat):
        ids = prompt.copy()
        ids[-1] = number
        start = time.perf_counter()
        keys = core.keys_for(ids)
        hashed = time.perf_counter()
        request = RouteRequest(id="r", model="m", prompt_tokens=len(ids), keys=keys)
        decision = core.decide(request, "kv", float(number))
        decided = time.perf_counter()
        booking = core.book(decision, request, float(number))
        booked = time.perf_counter()
        booking.release()
        times[:, number] = hashed - start, decided - hashed, booked - decided
    return times[0] * 1e6, times[1] * 1e6, times[2] * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=500)
    repeat = parser.parse_args().repeat
    rng = np.random.default_rng(0)
    print("| workers | prompt tokens | keys, µs | decision, µs | booking, µs |\n|---:|---:|---:|---:|---:|")
    for workers in (8, 64, 1024):
        for tokens in (512, 8192, 65536):
            prompt = rng.integers(0, 2000, tokens).astype(np.uint32)
            shown = [
                f"{np.median(one):.0f} (p99 {np.percentile(one, 99):.0f})"
                for one in measure(fleet(workers, prompt, rng), prompt, repeat)
            ]
            print(f"| {workers:,} | {tokens:,} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
