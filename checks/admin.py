"""What kvctl's own router answers on its admin port, as checks ask for it. Pure; odd shapes read as empty.

`/workers`, `/index`, `/decisions` and `/config` are written by router/admin/app.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checks.evidence import shown
from checks.model import Evidence, Finding, Reason, Target, skipped
from checks.network import url_parts
from checks.snapshot import Member, Snapshot

BY_CACHE = frozenset({"kv", "prefixaware", "kvaware", "deviceawareweighted"})
"""Modes that look at what workers have cached; spelled as `Snapshot.strategy` does."""

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A worker as a router's `/workers` tells it; `member` is None where it is none that was read."""

    router: Member
    data: Json
    member: Member | None

    @property
    def id(self) -> str:
        return str(self.data.get("id") or "")

    @property
    def target(self) -> Target:
        return self.member.target if self.member is not None else Target("Process", "", shown(self.id))

    def evidence(self, *names: str) -> Evidence:
        told = ", ".join(f"{name}={self.data.get(name)}" for name in names)
        return Evidence("http", self.router.key, shown(f"/workers {self.id}: {told}"))


def rows(snapshot: Snapshot) -> list[Row]:
    """The workers of all routers that answered."""
    by_place = {_place(worker.url): worker for worker in snapshot.workers if worker.url}
    return [
        Row(router, data, by_place.get(_place(str(data.get("url") or ""))))
        for router in snapshot.routers
        for data in objects(router.answers.get("/workers"), "workers")
    ]


def _place(url: str) -> str:
    return url_parts(url).netloc.replace("localhost", "127.0.0.1")


def objects(answer: Any, name: str) -> list[Json]:
    """The list of objects under `name`; empty where the answer has another shape."""
    listed = answer.get(name) if isinstance(answer, Mapping) else None
    return [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []


def number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def unread(snapshot: Snapshot, path: str) -> Finding | None:
    """Skip where no router's admin port answered `path`."""
    if any(isinstance(router.answers.get(path), Mapping) for router in snapshot.routers):
        return None
    return skipped(Reason.NO_DATA, f"no admin port answered {path}")


def other_mode(snapshot: Snapshot) -> Finding | None:
    """Skip where the router's mode does not look at caches."""
    if snapshot.strategy in BY_CACHE:
        return None
    if not snapshot.strategy:
        return skipped(Reason.NO_DATA, "the router's mode could not be read")
    return skipped(Reason.NOT_APPLICABLE, f"the mode {snapshot.strategy} does not look at what workers have cached")


def served(snapshot: Snapshot, router: Member) -> dict[str, float]:
    """Requests answered, by the router's name of the worker, since its start."""
    counts: dict[str, float] = {}
    for sample in snapshot.metrics.find("kvctl_legs", router.key, outcome="ok"):
        worker = sample.labels.get("worker", "")
        counts[worker] = counts.get(worker, 0.0) + sample.value
    if not counts:
        for one in objects(router.answers.get("/decisions"), "decisions"):
            winner = one.get("winner")
            name = str(winner.get("worker")) if isinstance(winner, Mapping) else ""
            counts[name] = counts.get(name, 0.0) + 1
    return counts


def decisions(snapshot: Snapshot) -> list[Json]:
    return [one for router in snapshot.routers for one in objects(router.answers.get("/decisions"), "decisions")]
