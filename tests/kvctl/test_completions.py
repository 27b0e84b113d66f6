"""What the shell is offered behind an option."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench.sim.faults import Fault
from bench.sim.styles import STYLES
from bench.workload.catalogue import ENTRIES
from kvctl.completions import ROUTER_MODES
from router.policies.registry import MODES

_KVCTL = "import sys\nsys.argv = ['kvctl']\nfrom kvctl.main import main\nmain()"


def offered(line: str) -> list[str]:
    """What bash is told where the cursor stands at the end of the line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_KVCTL_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-c", _KVCTL], env=os.environ | words, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_the_modes_are_those_of_the_registry() -> None:
    assert tuple(MODES) == ROUTER_MODES


def test_router_mode_offers_every_mode() -> None:
    assert offered("kvctl serve --router-mode ") == list(MODES)


def test_a_list_of_modes_goes_on_after_the_comma() -> None:
    assert offered("kvctl bench --modes kv,r") == ["kv,random", "kv,round-robin"]


def test_workload_offers_what_is_built_in() -> None:
    assert offered("kvctl bench --workload ") == [entry.name for entry in ENTRIES]


def test_log_style_offers_every_style() -> None:
    assert offered("kvctl sim --log-style ") == list(STYLES)


@pytest.mark.parametrize(("command", "more"), [("sim", []), ("validate", ["no-kv-events", "router-random"])])
def test_fault_offers_what_the_command_can_break(command: str, more: list[str]) -> None:
    assert offered(f"kvctl {command} --fault ") == [*(str(fault) for fault in Fault), *more]


def test_completion_loads_neither_numba_nor_a_server() -> None:
    code = (
        "import sys\nimport kvctl.main, kvctl.completions\nkvctl.main._register()\n"
        "print(sorted({'numpy', 'numba', 'httpx', 'uvloop', 'zmq'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"
