"""The explicit list of policies, and how a user may spell them."""

from __future__ import annotations

from collections.abc import Callable

from router.model import Policy
from router.policies.choice import LoadBound
from router.policies.device_aware import DeviceAwareWeighted
from router.policies.direct import Direct
from router.policies.kv import Kv
from router.policies.kv_aware import KvAware
from router.policies.kv_time import KvTime
from router.policies.least_loaded import LeastLoaded
from router.policies.plugins import installed, load
from router.policies.power_of_two import PowerOfTwo
from router.policies.prefix_aware import PrefixAware
from router.policies.random_choice import RandomChoice
from router.policies.round_robin import RoundRobin
from router.policies.session import Session
from router.policies.settings import PolicySettings


def _bound(settings: PolicySettings) -> LoadBound | None:
    return LoadBound(settings.load_bound) if settings.load_bound else None


MODES: dict[str, Callable[[PolicySettings], Policy]] = {
    "kv": lambda settings: (KvTime if settings.kv_cost == "time" else Kv)(settings.weights, _bound(settings)),
    "random": lambda _settings: RandomChoice(),
    "round-robin": lambda _settings: RoundRobin(),
    "power-of-two": lambda _settings: PowerOfTwo(),
    "least-loaded": lambda _settings: LeastLoaded(),
    "direct": lambda _settings: Direct(),
    "device-aware-weighted": lambda settings: DeviceAwareWeighted(settings.cuda_to_cpu_ratio),
    "session": lambda settings: Session(settings.balance_factor),
    "prefixaware": lambda settings: PrefixAware(
        settings.prefix_limit, settings.balance_factor, settings.min_match_tokens
    ),
    "kvaware": lambda settings: KvAware(make_policy(settings.kvaware_fallback, settings), settings.kvaware_threshold),
}

_JOINED = {name.replace("-", ""): name for name in MODES}


class UnknownMode(ValueError):
    """Names the spelling that was not understood and the modes that exist."""


def mode_name(spelling: str) -> str:
    """The mode's one name: `roundrobin`, `round_robin` and `Round-Robin` are all `round-robin`.

    A mode that does not come with kvctl is looked for among the installed policies (router/policies/plugins.py).

    Raises:
        UnknownMode: neither has it.
    """
    plain = spelling.strip().lower()
    name = _JOINED.get(plain.replace("-", "").replace("_", ""))
    if name is not None:
        return name
    if plain in installed():
        return plain
    raise UnknownMode(f"unknown router mode '{spelling}'; the modes are {', '.join((*MODES, *sorted(installed())))}")


def make_policy(mode: str, settings: PolicySettings) -> Policy:
    """A new policy object of a mode.

    Raises:
        UnknownMode: there is no such mode.
        PluginError: an installed policy cannot be loaded.
    """
    name = mode_name(mode)
    return MODES[name](settings) if name in MODES else load(installed()[name], settings)
