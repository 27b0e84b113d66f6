"""The embedded system of `kvctl validate --sim N`: simulated engines with LMCache's logs, kvctl's router before them,
and a little traffic, healthy or broken in a named way.

Owns child processes (engines, router) and a temporary folder with their logs; all are gone when the context ends, also
on Ctrl-C and SIGTERM, and the children end by themselves if this process is killed. Talks to loopback only. Costs about
ten seconds and 300 MB. What it hands over is a CollectRequest: the system is then read like any other that is named by
URL and log file.

LMCache's controller lives in the router of the stacks that are imitated. Here its lines, which the engines' process
writes, and a line for each decision of kvctl's router make up the router's log.
"""

from __future__ import annotations

import contextlib
import heapq
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from kvctl.errors import FAILED, Problem

if TYPE_CHECKING:
    import httpx
    from rich.console import Console

    from bench.sim.fleet import SimEngine, SimFleet
    from checks.request import CollectRequest

NO_KV_EVENTS = "no-kv-events"
ROUTER_RANDOM = "router-random"
OF_SYSTEM = (NO_KV_EVENTS, ROUTER_RANDOM)
"""Faults of the system; the others are those of `kvctl sim`, of all engines or, as NAME@K, of one."""

WHOLE_MODE = "kvaware"
"""Of the router where it has no fault, and what is expected of it: the mode that LMCache's controller belongs to."""
NEWEST_STYLE = "lmcache-0.5.6"
HEARTBEAT_S = 0.35
SETTLE_S = 5.5
"""From the engines' start to the reading: what is wrong with heartbeats or pings shows three times by then."""
SCRAPE_INTERVAL_S = 2.0
READY_S = 20.0
LEAST_CONVERSATIONS = 8
TURNS = 8
BLOCKS_A_CONVERSATION = 64
"""Of an engine's KV cache: enough for its conversations at first, too few at last, so that LMCache gives some back."""
SPEEDUP = 50
_VOCABULARY = ("a", "block", "of", "the", "cache", "is", "held", "by", "one", "worker", "and", "comes", "back", "later")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start."""

    engines: int
    faults: tuple[str, ...] = ()
    style: str = NEWEST_STYLE

    def __post_init__(self) -> None:
        """Raises Problem for what cannot be started."""
        from bench.sim.faults import faults_of
        from bench.sim.styles import style_named

        try:
            style_named(self.style)
        except ValueError as error:
            raise Problem(f"--log-style: {error}") from None
        try:
            faults_of(self.of_engines, self.engines)
        except ValueError as error:
            raise Problem(f"--fault: {error}" + self._more(str(error))) from None

    @property
    def of_engines(self) -> list[str]:
        return [fault for fault in self.faults if fault not in OF_SYSTEM]

    @property
    def mode(self) -> str:
        return "random" if ROUTER_RANDOM in self.faults else WHOLE_MODE

    @property
    def conversations(self) -> int:
        return max(LEAST_CONVERSATIONS, 4 * self.engines)

    @staticmethod
    def _more(message: str) -> str:
        return f", {', '.join(OF_SYSTEM)}" if message.startswith("no fault") else ""


def plan_of(engines: int, faults: Sequence[str], style: str) -> Plan | None:
    """What --sim, --fault and --log-style ask for; None without --sim. Raises Problem."""
    if not engines:
        for flag, given in (("--fault", bool(faults)), ("--log-style", bool(style))):
            if given:
                raise Problem(f"{flag} is for the embedded system: give --sim N too")
        return None
    return Plan(engines, tuple(faults), style or NEWEST_STYLE)


def alone(request: CollectRequest, *, replay: bool, wait: bool) -> None:
    """Raises Problem where the options name another system too."""
    others = (
        ("--router, --worker, --admin and --log", not request.cluster),
        ("--namespace", bool(request.namespace)),
        ("--all-namespaces", request.all_namespaces),
        ("--context", bool(request.context)),
        ("--in-cluster", request.in_cluster),
        ("--replay", replay),
        ("--wait", wait),
    )
    for flag, given in others:
        if given:
            raise Problem(f"--sim starts a system of its own and looks at that: leave out {flag}")


@contextlib.contextmanager
def embedded(plan: Plan, request: CollectRequest, errors: Console | None) -> Iterator[CollectRequest]:
    """Runs the system while the context lasts; gives the request that reads it. `errors` shows progress; None: silent.

    Raises Problem where the system cannot be started.
    """
    from bench.arms import ArmError, Child
    from bench.sim.fleet import FleetError

    with contextlib.ExitStack() as stack:
        stack.enter_context(_ended_by_sigterm())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvctl-validate-")))
        said = stack.enter_context(_Steps(errors))
        try:
            said(f"starting {plan.engines} simulated engines and a router")
            fleet = stack.enter_context(_fleet(plan, folder))
            began = time.monotonic()
            arguments = ["serve", "--port", "0", "--admin-port", "0", "-o", "json", "--router-mode", plan.mode]
            arguments += ["--kvaware-fallback", "round-robin", "--seed", "1"]
            for engine in fleet.engines:
                arguments += ["--worker", engine.spec]
            router = Child("kvctl", arguments, folder / "kvctl.log")
            stack.callback(router.stop)
            ready = router.ready()
        except (ArmError, FleetError) as error:
            raise Problem(f"the embedded system did not start: {error}", code=FAILED) from None
        system = _System(plan, fleet, str(ready["url"]), str(ready["admin"]), folder)
        stack.callback(system.close)
        system.live(said)
        said("waiting for heartbeats and pings")
        time.sleep(max(0.0, began + SETTLE_S - time.monotonic()))
        said.done()
        yield system.request(request)


def _fleet(plan: Plan, folder: Path) -> SimFleet:
    from bench.sim.fleet import SimFleet

    return SimFleet(
        plan.engines,
        log_style=plan.style,
        log_file=str(folder),
        log_timestamps=True,
        fault=plan.of_engines,
        heartbeat_time=HEARTBEAT_S,
        speedup=SPEEDUP,
        num_blocks=BLOCKS_A_CONVERSATION * plan.conversations // plan.engines,
        no_kv_events=NO_KV_EVENTS in plan.faults,
    )


class _System:
    """Engines and router that run, and the log of what the router decided."""

    def __init__(self, plan: Plan, fleet: SimFleet, url: str, admin: str, folder: Path) -> None:
        from bench.sim.lines import Lines, LogFile
        from bench.sim.router_log import RouterLog
        from bench.sim.styles import style_named

        self._plan = plan
        self.engines: Sequence[SimEngine] = fleet.engines
        self._url, self._admin, self._model, self._folder = url, admin, fleet.model, folder
        self._routed = LogFile(folder / "routed.log", timestamps=True)
        self._log = RouterLog(Lines(style_named(plan.style), self._routed))
        self._urls = {engine.id: engine.url for engine in self.engines}
        self._instances = {engine.id: engine.instance or engine.id for engine in self.engines}
        self._seen: set[str] = set()

    def close(self) -> None:
        self._routed.close()

    def live(self, said: _Steps) -> None:
        """Waits until the router knows its workers, then sends conversations that grow. Raises Problem."""
        import httpx

        try:
            with httpx.Client(timeout=30.0) as http:
                self._wait_for_workers(http)
                self._converse(http, said)
        except httpx.HTTPError as error:
            raise Problem(f"the embedded router failed: {type(error).__name__}: {error}", code=FAILED) from None

    def request(self, request: CollectRequest) -> CollectRequest:
        """The request with this system's addresses and logs."""
        from checks.request import LogFile
        from checks.snapshot import Expectations, Role

        log = self._folder / "router.log"
        controller = self._folder / "controller.log"
        with controller.open() as one, self._routed.path.open() as other, log.open("w") as to:
            to.writelines(heapq.merge(one, other, key=_stamp))
        workers = tuple(LogFile(Role.WORKER, one.id, one.log) for one in self.engines if one.log is not None)
        return replace(
            request,
            expectations=Expectations(request.expectations.strategy or WHOLE_MODE),
            routers=(self._url,),
            admin=self._admin,
            workers=tuple(self._urls.values()),
            log_files=(LogFile(Role.ROUTER, "router", str(log)), *workers),
            scrape_interval_s=SCRAPE_INTERVAL_S,
        )

    def _wait_for_workers(self, http: httpx.Client) -> None:
        deadline = time.monotonic() + READY_S
        while True:
            rows: list[dict[str, Any]] = http.get(f"{self._admin}/workers").raise_for_status().json()["workers"]
            if all(row["health"] == "up" and row["kv_events"] in ("live", "none") for row in rows):
                return
            if time.monotonic() > deadline:
                told = ", ".join(f"{row['id']} {row['health']}, KV events {row['kv_events']}" for row in rows)
                raise Problem(f"the embedded router does not come to know its workers: {told}", code=FAILED)
            time.sleep(0.05)

    def _converse(self, http: httpx.Client, said: _Steps) -> None:
        """Turn by turn, so that each conversation meets what the others left of the cache."""
        rng = random.Random(1)
        conversations = [
            [{"role": "system", "content": f"Conversation {number}. {_words(rng, 300)}"}]
            for number in range(self._plan.conversations)
        ]
        total = TURNS * len(conversations)
        for turn in range(TURNS):
            said(f"sending {total} requests through the router", turn * len(conversations), total)
            for messages in conversations:
                messages.append({"role": "user", "content": _words(rng, 60)})
                body = {"model": self._model, "messages": messages, "max_tokens": 16}
                answer = http.post(f"{self._url}/v1/chat/completions", json=body).raise_for_status().json()
                messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            self._write_down(http)

    def _write_down(self, http: httpx.Client) -> None:
        """The router's newest decisions, as lines of the imitated router; they come newest first."""
        from bench.sim.router_log import routed_from

        rows = http.get(f"{self._admin}/decisions", params={"limit": 1000}).raise_for_status().json()["decisions"]
        for row in reversed([row for row in rows if row["id"] not in self._seen]):
            self._seen.add(row["id"])
            event = routed_from(row, self._urls, self._instances)
            if event is not None:
                self._log.routed(event)


class _Steps:
    """What is being done, on stderr: one line that changes on a terminal, else a line a step."""

    def __init__(self, errors: Console | None) -> None:
        self._errors = errors
        self._status = errors.status("") if errors is not None and errors.is_terminal else None
        self._last = ""

    def __enter__(self) -> _Steps:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done()

    def __call__(self, what: str, done: int = 0, total: int = 0) -> None:
        if self._status is not None:
            self._status.update(f"{what}: {done} of {total}" if total else what)
        elif self._errors is not None and what != self._last:
            self._errors.print(what, markup=False)
        self._last = what

    def done(self) -> None:
        if self._status is not None:
            self._status.stop()


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(_VOCABULARY) for _ in range(count))


def _stamp(line: str) -> str:
    return line.partition(" ")[0]


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the process by way of its clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
