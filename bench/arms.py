"""The arms of an experiment: routers that run already, or routers started here before engines given or simulated.

Owns child processes; every one it starts is stopped when the context ends, whatever happens (and by the kernel if
this process is killed). Children are started as `python -m kvctl ... -o json` and tell their ports in one JSON line.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from bench.arm_spec import ArmSpelling, parse_arm
from bench.client.connection import Target
from bench.cold import Engine
from router.fleet.spec import parse_spec

if TYPE_CHECKING:
    from bench.sim.apart import SplitFleet

READY_PATIENCE = 120.0
STOP_PATIENCE = 10.0
_PR_SET_PDEATHSIG = 1


class ArmError(Exception):
    """An arm cannot be started or reached. The message says which and what it printed last."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of the comparison. `admin` and `engines` are known of routers started here, or given (`arm_spec`).

    `resets`: whether its engines may be reset before a block; `reset_url`: POSTed to before each block of it;
    `version`: given by the user.
    """

    name: str
    mode: str
    url: str
    admin: str | None = None
    engines: tuple[Engine, ...] = ()
    resets: bool = True
    reset_url: str | None = None
    version: str | None = None

    @property
    def target(self) -> Target:
        return Target.parse(self.url)


@dataclass(slots=True)
class Fleet:
    """What the arms stand in front of, in words and as worker specs. `model`: None means ask. `split`: the engines
    themselves, if some of them can be killed.
    """

    description: str
    specs: list[str]
    model: str | None = None
    facts: dict[str, object] = field(default_factory=dict)
    split: SplitFleet | None = None


@dataclass(frozen=True, slots=True)
class SimOptions:
    """The simulated fleet that is started when no engine is named. `engine`: further options of `kvctl sim`, with
    underscores; `apart`: numbers of the engines that must be killed and started alone.
    """

    count: int = 8
    speedup: float = 1.0
    engine: dict[str, int | list[str]] = field(default_factory=dict)
    apart: frozenset[int] = frozenset()


def names_of(modes: Sequence[str]) -> list[str]:
    """A name for each arm: its mode, numbered from the second of a kind (an A/A control)."""
    names: list[str] = []
    for mode in modes:
        seen = sum(name.split("#")[0] == mode for name in names)
        names.append(mode if not seen else f"{mode}#{seen + 1}")
    return names


@contextlib.contextmanager
def simulated_fleet(options: SimOptions) -> Iterator[Fleet]:
    """Starts `options.count` simulated engines in a child process, those `apart` in one each."""
    from bench.sim.apart import SplitFleet

    facts: dict[str, object] = {"simulated": True, "engines": options.count, "sim_speedup": options.speedup}
    with SplitFleet(options.count, options.apart, {"speedup": options.speedup, **options.engine}) as fleet:
        yield Fleet(
            f"{options.count} simulated engines, started for this run",
            [engine.spec for engine in fleet.engines],
            fleet.model,
            {**facts, **options.engine},
            fleet,
        )


def given_fleet(specs: Sequence[str]) -> Fleet:
    """Engines that run already."""
    return Fleet(f"{len(specs)} engines given with --worker", list(specs), None, {"simulated": False})


def running_arms(urls: Sequence[str]) -> list[Arm]:
    """An arm for each router that runs already, as `--url` writes it.

    Raises:
        ArmSpelling: one is not written as it has to be, or a name is there twice.
    """
    arms: list[Arm] = []
    for spec in map(parse_arm, urls):
        if any(arm.name == spec.name for arm in arms):
            raise ArmSpelling(f"--url: two arms are named {spec.name!r}")
        arms.append(
            Arm(spec.name, "url", spec.url, spec.admin, spec.engines, spec.resets, spec.reset_url, spec.version)
        )
    return arms


@contextlib.contextmanager
def started_routers(
    modes: Sequence[str], fleet: Fleet, logs: Path | None = None, extra: Sequence[str] = ()
) -> Iterator[list[Arm]]:
    """One `kvctl serve` for each mode, all before the same engines; only one gets requests at a time.

    Args:
        modes: routing modes.
        fleet: the engines.
        logs: folder for the routers' logs; a temporary one if None.
        extra: further arguments for every router.
    """
    engines = tuple(Engine(spec.id, spec.url) for spec in map(parse_spec, fleet.specs))
    with contextlib.ExitStack() as stack:
        if logs is None:
            logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvctl-bench-")))
        children = []
        for name, mode in zip(names_of(modes), modes, strict=True):
            arguments = ["serve", "--router-mode", mode, "--port", "0", "--admin-port", "0", "-o", "json"]
            for spec in fleet.specs:
                arguments += ["--worker", spec]
            child = Child(name, [*arguments, *extra], logs / f"router-{name.replace('#', '-')}.log")
            stack.callback(child.stop)
            children.append((name, mode, child))
        arms = []
        for name, mode, child in children:
            ready = child.ready()
            arms.append(Arm(name, mode, str(ready["url"]).rstrip("/"), str(ready["admin"]).rstrip("/"), engines))
        yield arms


class Child:
    """A kvctl process of our own: started, waited for, stopped. Its stderr goes to a file."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self._log = log
        self._file: IO[bytes] = log.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kvctl", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._file,
            env={name: value for name, value in os.environ.items() if not name.startswith("KVCTL_")},
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )

    def ready(self) -> dict[str, object]:
        """The line the child prints when it serves.

        Raises:
            ArmError: it ended or said nothing in time.
        """
        out = self._process.stdout
        assert out is not None
        deadline = time.monotonic() + READY_PATIENCE
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise ArmError(f"router {self.name} was not ready after {READY_PATIENCE:g} s; {self._said()}")
            part = out.read1(4096)  # type: ignore[attr-defined]
            if not part:
                code = self._process.wait()
                raise ArmError(f"router {self.name} ended with exit code {code}; {self._said()}")
            line += part
        try:
            data = json.loads(line.split(b"\n")[0])
        except ValueError as error:
            raise ArmError(f"router {self.name} printed {line[:200]!r} where its ready line was due") from error
        if not isinstance(data, dict) or data.get("event") != "ready":
            raise ArmError(f"router {self.name} printed {line[:200]!r} where its ready line was due")
        return data

    def _said(self) -> str:
        self._file.flush()
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        return "it said: " + " | ".join(lines[-3:]) if lines else "it said nothing"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Ends the child: asks first, insists after a while."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._file.close()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
