"""The explicit list of policies, and how a user may spell them."""

from __future__ import annotations

from collections.abc import Callable

from router.model import Policy
from router.policies.direct import Direct
from router.policies.kv import Kv, KvWeights
from router.policies.least_loaded import LeastLoaded
from router.policies.power_of_two import PowerOfTwo
from router.policies.random_choice import RandomChoice
from router.policies.round_robin import RoundRobin

MODES: dict[str, Callable[[KvWeights], Policy]] = {
    "kv": Kv,
    "random": lambda _weights: RandomChoice(),
    "round-robin": lambda _weights: RoundRobin(),
    "power-of-two": lambda _weights: PowerOfTwo(),
    "least-loaded": lambda _weights: LeastLoaded(),
    "direct": lambda _weights: Direct(),
}

_JOINED = {name.replace("-", ""): name for name in MODES}


class UnknownMode(ValueError):
    """Names the spelling that was not understood and the modes that exist."""


def mode_name(spelling: str) -> str:
    """The mode's one name: `roundrobin`, `round_robin` and `Round-Robin` are all `round-robin`."""
    name = _JOINED.get(spelling.strip().lower().replace("-", "").replace("_", ""))
    if name is None:
        raise UnknownMode(f"unknown router mode '{spelling}'; the modes are {', '.join(MODES)}")
    return name


def make_policy(mode: str, weights: KvWeights) -> Policy:
    return MODES[mode_name(mode)](weights)
