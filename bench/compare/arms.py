"""The arms of `make compare`: kvctl and other routers before one simulated fleet, Dynamo before its own.

Starts child processes; `started` stops them all when it ends. A router that cannot be started, or that refuses the kind
of prompt that will be sent, is no error but an absence with its reason.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import httpx

from bench.arms import Fleet, started_routers
from bench.compare import dynamo
from bench.proxy import processes, routers
from bench.proxy.prompts import BLOCK, MODEL
from bench.sim.fleet import SimFleet

ENGINES = 4
BLOCKS = 16384


class Prompts(StrEnum):
    """As what prompts are sent to `/v1/completions`."""

    TEXT = "text"
    IDS = "ids"


@dataclass(frozen=True, slots=True)
class Running:
    """An arm that serves. `engines`: that can be reset, as `--url` names them; empty for Dynamo's. `title`: what it is,
    for a table.
    """

    name: str
    title: str
    url: str
    version: str
    engines: tuple[str, ...] = ()
    admin: str | None = None

    @property
    def spec(self) -> str:
        """As `kvctl bench --url` takes it."""
        parts = [f"{self.name}={self.url}", f"version={self.version}"]
        if self.engines:
            parts.append("engines=" + "+".join(self.engines))
        if self.admin:
            parts.append(f"admin={self.admin}")
        return ",".join(parts)


@dataclass(slots=True)
class Started:
    """What came up, and why the rest did not, by name."""

    arms: list[Running] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Places:
    """Environments of the peers, the tokenizer of all arms, and where logs go."""

    peers: Path
    dynamo: Path
    tokenizer: Path
    folder: Path


PEERS = {
    "vllm-rr": ("vllm-rr", "vllm-router, round_robin", "vllm-router"),
    "vllm-kv": ("vllm-kv-chat", "vllm-router, kv_aware, fed with the KV events", "vllm-router"),
    "smg": ("smg-cache-chat", "SMG, cache_aware", "smg"),
}
"""Name here -> name of its recipe in `bench.proxy.routers`, title, package."""
KVCTL = {"kvctl-kv": "kv", "kvctl-rr": "round-robin"}
DYNAMO = {"dynamo-kv": "kv", "dynamo-rr": "round-robin"}
NAMES = (*KVCTL, *PEERS, *DYNAMO)


@contextlib.contextmanager
def started(names: Sequence[str], prompts: Prompts, places: Places, say: Callable[[str], None]) -> Iterator[Started]:
    """Starts the named arms (of `NAMES`), those of kvctl first.

    Args:
        names: which.
        prompts: what each must take.
        places: where things are.
        say: told what happens, a line each.

    Raises:
        ArmError, FleetError: our own router or the simulated engines cannot be started.
    """
    found = Started()
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(SimFleet(ENGINES, model=MODEL, block_size=BLOCK, num_blocks=BLOCKS))
        known = tuple(f"{engine.id}@{engine.url}" for engine in fleet.engines)
        ours = [name for name in names if name in KVCTL]
        before = Fleet("", [engine.spec for engine in fleet.engines], MODEL)
        extra = ["--tokenizer", str(places.tokenizer)]
        if ours:
            served = stack.enter_context(started_routers([KVCTL[name] for name in ours], before, places.folder, extra))
            version = f"kvctl {importlib.metadata.version('kvctl')}"
            for name, arm in zip(ours, served, strict=True):
                found.arms.append(Running(name, f"kvctl, {arm.mode}", arm.url, version, known, arm.admin))
        engines = _stub_view(fleet)
        for name in names:
            if name in KVCTL:
                continue
            say(f"starting {name}")
            try:
                other = _dynamo(name, places, stack) if name in DYNAMO else _peer(name, engines, known, places, stack)
            except processes.NotStarted as error:
                found.absent[name] = str(error)
                continue
            refused = refusal(other.url, prompts)
            if refused:
                found.absent[name] = f"refuses prompts as {prompts}: {refused}"
            else:
                found.arms.append(other)
        for name, why in found.absent.items():
            say(f"not in the comparison: {name}: {why}")
        yield found


def _stub_view(fleet: SimFleet) -> routers.Engines:
    """The simulated engines as the recipes of the peers take them."""
    ports = [int(engine.url.rpartition(":")[2]) for engine in fleet.engines]
    return routers.Engines(
        ports,
        [engine.kv or "" for engine in fleet.engines],
        [engine.replay or "" for engine in fleet.engines],
    )


def _peer(
    name: str, engines: routers.Engines, known: tuple[str, ...], places: Places, stack: contextlib.ExitStack
) -> Running:
    recipe, title, package = PEERS[name]
    start = next(arm.start for arm in routers.ARMS if arm.name == recipe)
    assert start is not None
    place = routers.Place(None, places.folder, places.peers / "bin", places.tokenizer)
    running = start(name, engines, place)
    stack.callback(running.child.stop)
    host, port = running.target
    version = installed(places.peers / "bin" / "python", package)
    return Running(name, title, f"http://{host}:{port}", version, known)


def _dynamo(name: str, places: Places, stack: contextlib.ExitStack) -> Running:
    python = places.dynamo / "bin" / "python"
    mocker = dynamo.MockerFleet(ENGINES, MODEL, BLOCK, BLOCKS, places.tokenizer)
    running = dynamo.start(python, DYNAMO[name], mocker, places.folder / name)
    stack.callback(running.stop)
    title = f"Dynamo frontend, {DYNAMO[name]}, with its mocker"
    return Running(name, title, running.url, installed(python, "ai-dynamo"))


def installed(python: Path, package: str) -> str:
    """`package VERSION` as an environment has it; the version is `unknown` where it cannot be asked."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    try:
        told = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return f"{package} unknown"
    return f"{package} {told.stdout.strip()}"


def refusal(url: str, prompts: Prompts) -> str | None:
    """Why a router does not take a streaming completion of this kind; None if it does."""
    prompt: object = "Hello there" if prompts is Prompts.TEXT else list(range(100, 140))
    body = {
        "model": MODEL, "prompt": prompt, "max_tokens": 2, "min_tokens": 2, "ignore_eos": True, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    try:
        answer = httpx.post(f"{url}/v1/completions", content=json.dumps(body), timeout=30, trust_env=False,
                            headers={"content-type": "application/json"})  # fmt: skip
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__
    if answer.status_code != 200:
        return f"HTTP {answer.status_code} {answer.text[:200]}".strip()
    return None if "data:" in answer.text else f"no event stream: {answer.text[:100]!r}"
