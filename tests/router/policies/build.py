"""Candidates, requests and seeded chance for the tests of policies."""

from __future__ import annotations

import random

import numpy as np

from router.model import Candidates, RouteRequest


def fleet(n: int, *, block_size: int = 10, **columns: list[int]) -> Candidates:
    """n workers `w0`..; columns not given are zero, everyone is eligible."""
    zeros = np.zeros(n, np.int64)
    arrays = {name: np.array(values, np.int64) for name, values in columns.items()}
    eligible = arrays.pop("eligible", np.ones(n, np.int64)).astype(np.bool_)
    overlaps = ("device", "host", "disk", "shared")
    loads = ("prefill_tokens", "own_prefill_tokens", "decode_blocks", "new_blocks", "active_requests")
    return Candidates(
        workers=tuple(f"w{i}" for i in range(n)),
        ranks=(0,) * n,
        slots=np.arange(n),
        eligible=eligible,
        why_not=np.where(eligible, 0, 3),
        capacity_blocks=zeros,
        block_size=np.full(n, block_size, np.int64),
        device_class=arrays.get("device_class", zeros),
        **{name: arrays.get(name, zeros) for name in overlaps + loads},
    )


def request(tokens: int = 100, **fields: object) -> RouteRequest:
    return RouteRequest(id="r", model="m", prompt_tokens=tokens, **fields)  # type: ignore[arg-type]


def rng(seed: int = 0) -> random.Random:
    return random.Random(seed)
