"""What the shell offers behind an option: the values of those options that take one of a few names.

Loaded with every command, so it imports nothing of the router or the bench. The names of modes stand here for the same
reason: the registry that has them loads numpy and numba, more than a second a Tab. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable

import typer

Completion = Callable[..., list[str]]
"""Of what has been typed of the value; by the parameter names `ctx` and `incomplete`."""

ROUTER_MODES = (
    "kv",
    "random",
    "round-robin",
    "power-of-two",
    "least-loaded",
    "direct",
    "device-aware-weighted",
    "session",
    "prefixaware",
    "kvaware",
)
"""The modes that come with kvctl; installed policies are not offered."""


def completion_of(option: str) -> Completion | None:
    """The completion of `--some-option`; None where its values are no short list."""
    return _BY_OPTION.get(option)


def _one_of(names: tuple[str, ...]) -> Completion:
    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _modes(incomplete: str) -> list[str]:
    """The last mode of a list by commas; `direct` sends where the client says and is not compared."""
    done, comma, last = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in ROUTER_MODES if name.startswith(last) and name != "direct"]


def _workloads(incomplete: str) -> list[str]:
    from bench.workload.catalogue import ENTRIES

    return [entry.name for entry in ENTRIES if entry.name.startswith(incomplete)]


def _faults(ctx: typer.Context, incomplete: str) -> list[str]:
    from bench.sim.faults import Fault
    from kvctl.embedded import OF_SYSTEM

    names = (*(fault.value for fault in Fault), *(OF_SYSTEM if ctx.info_name == "validate" else ()))
    return [name for name in names if name.startswith(incomplete)]


def _styles(incomplete: str) -> list[str]:
    from bench.sim.styles import STYLES

    return [name for name in STYLES if name.startswith(incomplete)]


_BY_OPTION: dict[str, Completion] = {
    "--router-mode": _one_of(ROUTER_MODES),
    "--mode": _one_of(ROUTER_MODES),
    "--modes": _modes,
    "--shadow": _modes,
    "--workload": _workloads,
    "--fault": _faults,
    "--log-style": _styles,
    "--log-level": _one_of(("debug", "info", "warning", "error")),
    "--access-log-format": _one_of(("text", "json")),
    "--x-forwarded": _one_of(("off", "append", "replace")),
}
