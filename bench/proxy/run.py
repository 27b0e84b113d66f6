"""The rounds: in each, every arm is started, measured and stopped, so that what else the machine does meets all alike.

The router has a core of its own; the load and the stub engines share the others. Writes nothing; says on standard
error what it is doing. Takes about 15 s an arm and round with the defaults.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec

from bench.proxy import processes
from bench.proxy.load import Job, Result
from bench.proxy.prompts import Load
from bench.proxy.routers import Arm, Engines, Place, Running

CONNECTIONS = 32
PACED = 500.0
HELD = 5_000
_ENGINES = 4
_PUBLISHED = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """`seconds` of each measurement. `streams` is how many are open at once for the rate of items, `rate` that of the
    requests whose latency is measured, `held` how many streams are held open for the memory of one."""

    arms: tuple[Arm, ...]
    rounds: int
    seconds: float
    peers: Path
    tokenizer: Path
    streams: int = 256
    rate: float = PACED
    held: int = HELD


@dataclass(slots=True)
class Measured:
    """What an arm gave in one round; None where it failed, `failed` says why. `foreign`: share of the router's core
    that other programs took meanwhile."""

    closed: Result | None = None
    paced: Result | None = None
    streams: Result | None = None
    held: Result | None = None
    memory: int = 0
    foreign: float = 0.0
    failed: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """`rounds` by arm name, one entry a round; `failed` says why an arm has nothing in some of them."""

    rounds: dict[str, list[Measured]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    cores: str = ""


class Bench:
    """The stub engines and the client, for as long as the rounds go on."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise processes.NotStarted("two cores are needed: one for the router, one for load and engines")
        self.plan = plan
        self.core = cores[0]
        self.place = Place(self.core, folder, plan.peers, plan.tokenizer)
        self.cores = f"router on core {cores[0]}, client on {cores[1]}, engines on {cores[2 % len(cores) or 1]}"
        self._stub = self._start("stub", cores[2 % len(cores) or 1], "--tokenizer", str(plan.tokenizer))
        self._load: processes.Child | None = None
        try:
            ready = json.loads(self._stub.out.readline() or b"{}")
            if "ports" not in ready:
                raise processes.NotStarted(f"the stub engines: {self._stub.said()}")
            self.engines = Engines(ready["ports"], ready["kv"], ready["replay"])
            self._load = self._start("load", cores[1])
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, core: int, *options: str) -> processes.Child:
        command = [sys.executable, "-m", f"bench.proxy.{name}", *options]
        return processes.start(command, core, self.place.folder / f"{name}.log", out=True)

    def close(self) -> None:
        for child in (self._load, self._stub):
            if child is not None:
                child.stop()

    def job(self, job: Job) -> Result:
        assert self._load is not None
        self._load.into.write(msgspec.json.encode(job) + b"\n")
        self._load.into.flush()
        line = self._load.out.readline()
        if not line:
            raise processes.NotStarted(f"the client ended: {self._load.said()}")
        return msgspec.json.decode(line, type=Result)

    def publish(self) -> None:
        """Have the engines announce the blocks of all prompts, and give the routers a moment to take them in."""
        httpx.post(f"{self.engines.urls[0]}/stub/publish", timeout=30, trust_env=False).raise_for_status()
        time.sleep(_PUBLISHED)

    @contextmanager
    def running(self, arm: Arm) -> Iterator[tuple[list[tuple[str, int]], list[int]]]:
        """(where to send, the router's processes) of a started arm."""
        if arm.start is None:
            yield self.engines.targets, []
            return
        router: Running = arm.start(arm.name, self.engines, self.place)
        try:
            if arm.load in (Load.CHAT, Load.IDS):
                self.publish()
            yield [router.target], router.child.pids
            router.child.check()
        finally:
            router.child.stop()

    def measure(self, arm: Arm, *, held: bool) -> Measured:
        """Raises NotStarted: the arm could not be started, or did not do its work."""
        plan, found = self.plan, Measured()
        with self.running(arm) as (targets, pids):
            busy, cpu = processes.core_busy(self.core), processes.cpu_seconds(pids)
            began = time.monotonic()
            found.closed = self.measured(arm, targets, pids, "closed", plan.seconds)
            with _noting(found):
                found.paced = self.measured(arm, targets, pids, "paced", plan.seconds, rate=plan.rate)
            if arm.streams:
                with _noting(found):
                    found.streams = self.measured(
                        arm, targets, pids, "streams", plan.seconds, load=Load.STREAM, connections=plan.streams
                    )
            others = processes.core_busy(self.core) - busy - (processes.cpu_seconds(pids) - cpu)
            found.foreign = max(others, 0.0) / (time.monotonic() - began)
            if held and arm.streams and pids:
                found.memory = processes.memory_bytes(pids)
                with _noting(found):
                    found.held = self.measured(
                        arm, targets, pids, "streams", 1.0, load=Load.HOLD, connections=plan.held
                    )
        return found

    def measured(
        self,
        arm: Arm,
        targets: list[tuple[str, int]],
        pids: list[int],
        kind: str,
        seconds: float,
        *,
        load: Load | None = None,
        connections: int = CONNECTIONS,
        rate: float = 0.0,
    ) -> Result:
        """One job against a running arm. Raises NotStarted: something failed."""
        result = self.job(Job(kind, load or arm.load, targets, seconds, connections, rate=rate, pids=pids))
        if result.error:
            raise processes.NotStarted(f"{kind}: {result.error}")
        return result


@contextmanager
def _noting(found: Measured) -> Iterator[None]:
    """A measurement that fails leaves the others of its arm alone."""
    try:
        yield
    except processes.NotStarted as error:
        found.failed.append(str(error))


def run(plan: Plan) -> Outcome:
    """All rounds. An arm that fails is tried again in the next round, and never left out in silence."""
    outcome = Outcome()
    processes.raise_file_limit()
    with tempfile.TemporaryDirectory(prefix="kvctl-bench-proxy-") as folder:
        bench = Bench(plan, Path(folder))
        outcome.cores = bench.cores
        try:
            for number in range(plan.rounds):
                for arm in _turned(plan.arms, number):
                    _say(f"round {number + 1} of {plan.rounds}: {arm.name}")
                    try:
                        found = bench.measure(arm, held=number == plan.rounds - 1)
                    except processes.NotStarted as error:
                        outcome.failed[arm.name] = str(error)
                        outcome.rounds.setdefault(arm.name, []).append(Measured(failed=[str(error)]))
                        _say(f"  {arm.name} failed: {error}")
                        continue
                    outcome.rounds.setdefault(arm.name, []).append(found)
                    if found.failed:
                        outcome.failed[arm.name] = found.failed[-1]
                    assert found.closed is not None
                    _say(f"  {found.closed.done / found.closed.seconds:,.0f} requests/s")
        finally:
            bench.close()
    return outcome


def _turned(arms: tuple[Arm, ...], number: int) -> Iterable[Arm]:
    """Each round begins with another arm."""
    start = number * (len(arms) // 3 + 1) % len(arms)
    return (*arms[start:], *arms[:start])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
