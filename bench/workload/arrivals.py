"""When requests arrive: Poisson, gamma, constant, bursts, a trace's own times, or a closed loop. Seeded; no drift.

The gaps of a slice are drawn and then scaled together, so that their mean is exactly 1/rate: two seeds differ in the
pattern, never in the load. (For Poisson this is the process given its number of arrivals.) Times are offsets from one
start, so no error adds up. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from heapq import heappop, heappush
from math import isfinite

import numpy as np
import numpy.typing as npt

from bench.workload.model import Request, Workload, WorkloadError

MOST_USERS = 100_000


class Process(StrEnum):
    """`burst`: groups of equal size at one moment each; `trace`: as the file says; `closed`: so many users."""

    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"
    BURST = "burst"
    TRACE = "trace"
    CLOSED = "closed"


SPELLINGS = "poisson, gamma:SHAPE (1 is Poisson, below 1 burstier), constant, burst:SIZE, trace, closed:USERS"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process. `value`: shape of gamma, size of a burst, users of a closed loop; unused otherwise."""

    process: Process
    value: float = 1.0

    @classmethod
    def parse(cls, written: str) -> Arrivals:
        """`gamma:0.5` and the like.

        Raises:
            WorkloadError: an unknown process, or a missing or impossible number.
        """
        name, colon, rest = written.strip().partition(":")
        try:
            process = Process(name)
        except ValueError:
            raise WorkloadError(f"--arrivals {written!r}: unknown process; one of {SPELLINGS}") from None
        if process in (Process.POISSON, Process.CONSTANT, Process.TRACE):
            if colon:
                raise WorkloadError(f"--arrivals {written!r}: {process} takes no number")
            return cls(process)
        low, high = (0.01, 100.0) if process is Process.GAMMA else (1, MOST_USERS)
        try:
            value = float(rest) if process is Process.GAMMA else int(rest)
        except ValueError:
            value = float("nan")
        if not isfinite(value) or not low <= value <= high:
            raise WorkloadError(f"--arrivals {written!r}: {process}:NUMBER wanted, the number from {low:g} to {high:g}")
        return cls(process, value)

    def __str__(self) -> str:
        plain = self.process in (Process.POISSON, Process.CONSTANT, Process.TRACE)
        return str(self.process) if plain else f"{self.process}:{self.value:g}"

    def offsets(self, count: int, rate: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Arrival times in seconds, ascending from 0, shape (count,): (count - 1) / the last is exactly `rate`.

        Except bursts: their moments are `size / rate` apart, so that the rate is that of whole bursts.
        """
        if self.process is Process.BURST:
            moments = (np.arange(count) // int(self.value)).astype(np.float64)
            return moments * np.float64(self.value / rate)
        if count < 2:
            return np.zeros(count)
        if self.process is Process.CONSTANT:
            gaps = np.ones(count - 1)
        elif self.process in (Process.POISSON, Process.GAMMA):
            gaps = rng.gamma(self.value, size=count - 1)
        else:
            raise WorkloadError(f"{self.process} arrivals have no rate of their own")
        total = float(gaps.sum())
        if total <= 0:
            gaps, total = np.ones(count - 1), float(count - 1)
        return np.concatenate([[0.0], np.cumsum(gaps) * ((count - 1) / rate / total)])


def rearranged(workload: Workload, arrivals: Arrivals, rate: float | None, seed: int) -> Workload:
    """The workload with its sessions arriving by another process; what follows inside a session keeps its distance.

    Args:
        workload: any; of `trace` arrivals it is returned as it is.
        arrivals: the process of the sessions' first requests.
        rate: requests a second over a slice (sessions arrive at this rate by their mean number of requests). None: as
            many as the workload has now.
        seed: of the draw; each slice has its own stream.
    """
    if arrivals.process is Process.TRACE:
        return workload
    made: list[Request] = []
    for index in range(workload.slices):
        part = workload.of_slice(index)
        if arrivals.process is Process.CLOSED:
            made += _closed(part, int(arrivals.value))
        else:
            made += _open(part, arrivals, rate, np.random.default_rng([seed, index, 0xA441]))
    facts = workload.facts | {"arrivals": str(arrivals)}
    notes = list(workload.notes)
    users = workload.users
    if arrivals.process is Process.CLOSED:
        users = int(arrivals.value)
        notes.append(f"closed loop of {users} users: who is slow is asked less, so latencies hide the queue")
    elif rate is not None:
        facts["rate"] = rate
    return replace(workload, requests=tuple(made), facts=facts, notes=notes, users=users, _sha256=None)


def _starts(part: Sequence[Request]) -> dict[str, float]:
    """Each session's first time, in the order of arrival."""
    first: dict[str, float] = {}
    for request in part:
        first.setdefault(request.session, request.at)
    return first


def _open(part: list[Request], arrivals: Arrivals, rate: float | None, rng: np.random.Generator) -> list[Request]:
    first = _starts(part)
    if not part:
        return []
    if rate is None:
        span = part[-1].at - part[0].at
        if span <= 0:
            raise WorkloadError("all requests have the same time: give --rate")
        rate = (len(part) - 1) / span
    times = arrivals.offsets(len(first), rate * len(first) / len(part), rng)
    begins = dict(zip(first, times.tolist(), strict=True))
    moved = [replace(r, at=begins[r.session] + (r.at - first[r.session])) for r in part]
    moved.sort(key=lambda r: r.at)
    return moved


def _closed(part: list[Request], users: int) -> list[Request]:
    """Every user takes one session after the other and waits for each answer; think times inside a session stay."""
    sessions: dict[str, list[Request]] = {}
    for request in part:
        sessions.setdefault(request.session, []).append(request)
    free = [(0, user) for user in range(users)]
    queues: dict[int, list[Request]] = {}
    for requests in sessions.values():
        held, user = heappop(free)
        queues.setdefault(user, []).extend(requests)
        heappush(free, (held + len(requests), user))
    drafts: list[tuple[float, int, int, Request]] = []
    for user, queue in queues.items():
        at = 0.0
        before: Request | None = None
        for depth, request in enumerate(queue):
            think = 0.0
            if before is not None and before.session == request.session:
                think = request.think if request.after is not None else max(0.0, request.at - before.at)
            at += think
            after = before.id if before is not None else None
            drafts.append((at, depth, user, replace(request, at=at, after=after, think=think)))
            before = request
    drafts.sort(key=lambda draft: draft[:3])
    return [draft[3] for draft in drafts]
