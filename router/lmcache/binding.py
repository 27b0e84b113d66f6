"""Which registered worker an LMCache instance is of. Pure.

By what is sure first: the `instance=` of a worker's SPEC, then an instance id that is a worker's id, then what prompts
have shown (sent to one worker, their chunks admitted by one instance). An IP address counts only where one instance and
one worker are left that have it; two of either are `ambiguous`, and said to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class How(StrEnum):
    """Closed: also shown on the admin port."""

    SPEC = "spec"
    ID = "id"
    PROMPTS = "prompts"
    IP = "ip"
    AMBIGUOUS = "ambiguous"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Bound:
    """`worker`: the id, "" where there is none. `rank`: the one dp rank that the instance is of, None is all."""

    how: How
    worker: str = ""
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """What binding needs to know of a registered worker. `instances`: of its SPEC; several are one a dp rank."""

    worker: str
    host: str
    instances: tuple[str, ...]


def bind(instances: Mapping[str, str], workers: Sequence[Candidate], shown: Mapping[str, str]) -> dict[str, Bound]:
    """Args:
    instances: IP address by instance id.
    workers: the fleet.
    shown: worker id by instance id, as prompts have shown.
    """
    found: dict[str, Bound] = {}
    by_id = {candidate.worker: candidate for candidate in workers}
    named = {
        instance: (candidate, number if len(candidate.instances) > 1 else None)
        for candidate in workers
        for number, instance in enumerate(candidate.instances)
    }
    taken: set[str] = {candidate.worker for candidate in workers if candidate.instances}
    for instance in instances:
        if instance in named:
            candidate, rank = named[instance]
            found[instance] = Bound(How.SPEC, candidate.worker, rank)
        elif instance in by_id:
            found[instance] = Bound(How.ID, instance)
            taken.add(instance)
        elif shown.get(instance) in by_id:
            found[instance] = Bound(How.PROMPTS, shown[instance])
            taken.add(shown[instance])
    rest = {instance: _plain(ip) for instance, ip in instances.items() if instance not in found}
    rivals = Counter(rest.values())
    here: dict[str, list[str]] = {}
    for candidate in workers:
        if candidate.worker not in taken:
            here.setdefault(_plain(candidate.host), []).append(candidate.worker)
    for instance, ip in rest.items():
        if ip in here:
            sure = len(here[ip]) == rivals[ip] == 1
            found[instance] = Bound(How.IP, here[ip][0]) if sure else Bound(How.AMBIGUOUS)
    return {instance: found.get(instance, Bound(How.UNKNOWN)) for instance in instances}


def _plain(host: str) -> str:
    return "127.0.0.1" if host in ("localhost", "::1") else host
