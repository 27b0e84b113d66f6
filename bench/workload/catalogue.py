"""The built-in workloads: one explicit list. `multi-turn:turns=2-4,wait=yes` names one with parameters. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.workload import outages, prefixes, synthetic
from bench.workload.frame import Frame
from bench.workload.model import Workload, WorkloadError
from bench.workload.parameters import Parameter, parameters, read, split

A_ROUND = 72
OUTAGE_ROUND = 150


@dataclass(frozen=True, slots=True)
class Entry:
    """One built-in workload. `spec`: the dataclass of its parameters; `build` takes one and a frame; `a_round`:
    requests a block that show what it is for, from (parameters, engines of the fleet).
    """

    name: str
    purpose: str
    spec: type[Any]
    build: Callable[[Any, Frame], Workload]
    a_round: Callable[[Any, int], int]

    @property
    def parameters(self) -> list[Parameter]:
        return parameters(self.spec)


def _usual(spec: Any, workers: int) -> int:
    return A_ROUND


def _outage(spec: Any, workers: int) -> int:
    return OUTAGE_ROUND


def _working_set(spec: prefixes.WorkingSet, workers: int) -> int:
    return max(A_ROUND, round(spec.passes * spec.documents(workers)))


ENTRIES = (
    Entry(
        "multi-turn",
        "conversations that grow under shared system prompts, with think time: what chat traffic gains",
        synthetic.Conversations, synthetic.multi_turn, _usual,
    ),
    Entry(
        "no-sharing",
        "every request alone: the control on which routing by cache must not lose",
        synthetic.Alone, synthetic.no_sharing, _usual,
    ),
    Entry(
        "zipf",
        "system prompts with Zipf popularity, one hotter than one engine's fair share: cache against balance",
        prefixes.Zipf, prefixes.zipf, _usual,
    ),
    Entry(
        "hot-spot",
        "one prefix on all requests, then documents: a router that takes any overlap sends all to one engine",
        prefixes.HotSpot, prefixes.hot_spot, _usual,
    ),
    Entry(
        "working-set",
        "documents that fill the fleet's cache FACTOR times: run 0.5, 1, 2 and 4 for the curve",
        prefixes.WorkingSet, prefixes.working_set, _working_set,
    ),
    Entry(
        "burst",
        "requests that come many at one moment: whether a router sees its own decisions before the engines do",
        prefixes.Burst, prefixes.burst, _usual,
    ),
    Entry(
        "worker-loss",
        "an engine is killed under load and comes back empty: failures, recovery, a stale index",
        outages.WorkerLoss, outages.worker_loss, _outage,
    ),
    Entry(
        "worker-join",
        "an engine joins under load: how soon it gets work, and what that costs in cache",
        outages.WorkerJoin, outages.worker_join, _outage,
    ),
    Entry(
        "lora",
        "adapters of one base model: equal tokens under two adapters share nothing",
        prefixes.Lora, prefixes.lora, _usual,
    ),
    Entry(
        "aborts",
        "clients that hang up in the middle of an answer: load that must be given back",
        prefixes.Aborts, prefixes.aborts, _usual,
    ),
)  # fmt: skip
"""What is built in. Traces and data sets come from files: see `source`."""


def find(written: str) -> tuple[Entry, Any]:
    """The workload that `NAME[:key=value,...]` names, and its parameters.

    Raises:
        WorkloadError: an unknown name, or a bad parameter.
    """
    name, given = split(written)
    entry = next((entry for entry in ENTRIES if entry.name == name), None)
    if entry is None:
        known = ", ".join(entry.name for entry in ENTRIES)
        raise WorkloadError(f"unknown workload {name!r}: one of {known}; a file is given with --trace")
    return entry, read(entry.spec, name, given)
