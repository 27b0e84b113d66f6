"""`kvctl validate` on running systems: the one that it starts itself, healthy and with each fault, and processes that
are named by URL and log file, with and without a Prometheus.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bench.sim.fleet import SimFleet
from tests.live.conftest import RunningRouter, running_router

PATIENCE = 150.0
AT_ONCE = 4


def environment(folder: Path | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVCTL_")}
    return kept | ({"TMPDIR": str(folder)} if folder is not None else {})


def validate(*arguments: str, folder: Path | None = None) -> tuple[int, dict[str, Any], str]:
    """Exit code, the report and what stood on stderr."""
    command = [sys.executable, "-m", "kvctl", "validate", "-o", "json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment(folder))
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def bad(report: dict[str, Any]) -> dict[str, str]:
    """Worst state by id of what is not folded under its cause."""
    found: dict[str, str] = {}
    for one in report["results"]:
        if one["status"] in ("warn", "fail", "error") and not one["caused_by"]:
            found[one["id"]] = max(one["status"], found.get(one["id"], ""), key=("", "warn", "fail", "error").index)
    return found


# -- the embedded system -----------------------------------------------------------------------------------------

SYSTEMS: dict[str, tuple[str, str, int, dict[str, str]]] = {
    "healthy": ("", "working", 0, {}),
    "healthy-hyperpod": ("--log-style hyperpod", "working", 0, {}),
    "healthy-0.3.14": ("--log-style lmcache-0.3.14", "working", 0, {}),
    "init-failure": ("--fault init-failure", "degraded", 1, {"KV302": "fail"}),
    "init-failure-of-one": ("--fault init-failure@1", "degraded", 1, {"KV302": "fail"}),
    "l2-down": ("--fault l2-down", "degraded", 1, {"KV311": "fail"}),
    "heartbeat-lost": ("--fault heartbeat-lost", "broken", 1, {"KV208": "fail"}),
    "registration-failed": ("--fault registration-failed", "broken", 1, {"KV203": "fail"}),
    "none-hash-differs": ("--fault none-hash-differs@1", "broken", 1, {"KV401": "fail"}),
    "no-lmcache-metrics": ("--fault no-lmcache-metrics", "working", 0, {"KV702": "warn"}),
    "no-kv-events": ("--fault no-kv-events", "degraded", 1, {"KV952": "fail"}),
    "router-random": ("--fault router-random", "broken", 1, {"KV120": "fail"}),
}
"""Arguments, verdict, exit code and the worst state of each check that is not folded under another."""

Run = tuple[int, dict[str, Any], list[str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Run]]]:
    """Each system by name, a few at a time: most of a run is waiting for heartbeats."""

    def run(name: str) -> Run:
        folder = tmp_path_factory.mktemp(name)
        code, report, _ = validate("--sim", "2", "--prometheus", "none", *SYSTEMS[name][0].split(), folder=folder)
        return code, report, sorted(path.name for path in folder.iterdir())

    with ThreadPoolExecutor(AT_ONCE) as threads:
        yield {name: threads.submit(run, name) for name in SYSTEMS}
        threads.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", SYSTEMS)
def test_of_a_system_only_the_check_of_its_fault_fails(name: str, runs: dict[str, Future[Run]]) -> None:
    _, verdict, code, expected = SYSTEMS[name]
    exit_code, report, _ = runs[name].result(len(SYSTEMS) * PATIENCE)
    told = report["summary"]["verdict"], exit_code, bad(report)
    assert told == (verdict, code, expected), report["summary"]["why"]


@pytest.mark.parametrize("name", ["healthy", "init-failure"])
def test_an_embedded_system_leaves_no_file_behind(name: str, runs: dict[str, Future[Run]]) -> None:
    assert runs[name].result(len(SYSTEMS) * PATIENCE)[2] == []


def test_a_healthy_system_has_both_kvctls_and_the_controllers_checks(runs: dict[str, Future[Run]]) -> None:
    _, report, _ = runs["healthy"].result(len(SYSTEMS) * PATIENCE)
    passed = {one["id"] for one in report["results"] if one["status"] == "pass"}
    assert {"KV201", "KV202", "KV302", "KV401", "KV501", "KV602", "KV603", "KV951", "KV952", "KV954", "KV955"} <= passed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_embedded_system_with_it(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kvctl", "validate", "--sim", "2", "-o", "json"]
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(tmp_path)
    )
    try:
        assert child.stderr is not None
        while "sending" not in (line := child.stderr.readline()):
            assert line, "it ended before it sent anything"
        below = _descendants(child.pid)
        child.send_signal(number)
        child.wait(PATIENCE)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 128 + number
    assert len(below) >= 2
    _gone(below)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--sim", "2", "--fault", "nonsense"], "no fault 'nonsense'; there are init-failure"),
        (["--sim", "2", "--fault", "l2-down@2"], "the number of an engine, 0 to 1"),
        (["--sim", "2", "--log-style", "lmcache-9"], "no log style 'lmcache-9'"),
        (["--fault", "l2-down"], "give --sim N too"),
        (["--sim", "2", "--router", "http://127.0.0.1:1"], "leave out --router"),
        (["--sim", "2", "-n", "prod"], "leave out --namespace"),
        (["--sim", "2", "--replay", "nowhere"], "leave out --replay"),
        (["--sim", "2", "--checks", "KV000"], "no check matches KV000"),
    ],
)
def test_what_cannot_be_started_is_said_in_one_line(arguments: list[str], told: str) -> None:
    command = [sys.executable, "-m", "kvctl", "validate", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert told in done.stderr


def _descendants(pid: int) -> list[int]:
    """Process ids below `pid`."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [one for child in map(int, children) for one in (child, *_descendants(child))]


def _gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "children were left behind"
        time.sleep(0.05)
