"""Records a session of a real engine: what was asked, how much of it the engine had cached, and its KV events.

    python -m tests.real.record FILE

The file is msgpack, a list of steps: {"ids", "salt", "cached", "frames"}; `frames` are the ZMQ messages [topic,
sequence number, payload] that arrived between this request and the next. A cache of 24 blocks, so that evictions are
many; prompts whose last block is full, sent again and again, because vLLM computes and stores that block each time;
salts; resets.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec
import zmq

from .engines import BLOCK_SIZE, Engine, start_all

STEPS = 120
SETTLED_MS = 400
"""vLLM publishes a step's events before it sends the step's tokens; this is how long silence means "all of them"."""


def record(engine: Engine) -> list[dict[str, Any]]:
    rng = random.Random(7)
    roots = [[rng.randrange(10, 2000) for _ in range(length)] for length in (32, 64, 64, 70, 96)]
    grown = [list(root) for root in roots]
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(engine.kv_endpoint)
    socket.poll(1000)
    steps: list[dict[str, Any]] = []
    try:
        for step in range(STEPS):
            number = rng.randrange(len(roots))
            ids = grown[number]
            salt = "one" if rng.random() < 0.1 else None
            body: dict[str, Any] = {"model": engine.model, "prompt": ids, "max_tokens": rng.randint(2, 40)}
            body |= {"temperature": 0, "return_token_ids": True} | ({"cache_salt": salt} if salt else {})
            answer = httpx.post(f"{engine.url}/v1/completions", json=body, timeout=60.0).raise_for_status().json()
            if step % 30 == 29:
                engine.reset_cache()
            frames = []
            while socket.poll(SETTLED_MS):
                topic, seq, payload = socket.recv_multipart()
                frames.append([topic, int.from_bytes(seq, "big"), payload])
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            steps.append({"ids": ids, "salt": salt, "cached": cached, "frames": frames})
            match rng.choice(("again", "again", "fill", "fill", "more", "back")):
                case "fill":
                    more = ids + answer["choices"][0]["token_ids"]
                    grown[number] = more + [rng.randrange(10, 2000) for _ in range(-len(more) % BLOCK_SIZE)]
                case "more":
                    grown[number] = ids + [rng.randrange(10, 2000) for _ in range(20)]
                case "back":
                    grown[number] = list(roots[number])
            if len(grown[number]) > 260:
                grown[number] = list(roots[number])
    finally:
        context.destroy(linger=0)
    return steps


def main() -> None:
    engine = Engine("record", "tiny", blocks=24, max_model_len=512)
    start_all([engine])
    try:
        steps = record(engine)
    finally:
        engine.stop()
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(msgspec.msgpack.encode(steps))
    print(f"{len(steps)} steps, {sum(len(step['frames']) for step in steps)} batches, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
