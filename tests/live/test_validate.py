"""`kvctl validate` on running systems: the one that it starts itself, healthy and with each fault, and processes that
are named by URL and log file, with and without a Prometheus.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from bench.sim.fleet import SimFleet
from kvctl.main import main
from tests.checks.cluster.emulated import Cluster
from tests.checks.live_prometheus.conftest import prometheus_binary as prometheus_binary
from tests.fixtures.validate.systems import epoch_mismatch, healthy_ps
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


# -- processes that are named ------------------------------------------------------------------------------------

REQUESTS = "sum(vllm:request_success_total)"


@dataclass
class Named:
    """Engines with logs, kvctl's router before them, traffic that they have served, and who scrapes them."""

    fleet: SimFleet
    router: RunningRouter
    prometheus: str

    def validate(self, *more: str) -> tuple[int, dict[str, Any], str]:
        arguments = ["--router", self.router.url, "--admin", self.router.admin, "--prometheus", self.prometheus]
        for engine in self.fleet.engines:
            arguments += ["--worker", engine.url, "--log", f"worker:{engine.id}={engine.log}"]
        return validate(*arguments, *more)


@contextlib.contextmanager
def named(binary: str, folder: Path, **options: Any) -> Iterator[Named]:
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(
            SimFleet(2, speedup=50, num_blocks=500, log_style="lmcache-0.5.6", log_file=str(folder), **options)
        )
        specs = [part for engine in fleet.engines for part in ("--worker", engine.spec)]
        router = stack.enter_context(running_router("--seed", "1", *specs))
        router.wait("all workers are up", lambda: _up(router))
        prometheus = stack.enter_context(_prometheus(binary, folder, [engine.url for engine in fleet.engines]))
        router.wait("the engines were scraped", lambda: _asked(prometheus, "sum(up)") == 2, 40.0)
        for turn in range(1, 11):
            for number in range(8):
                answer = router.ask(f"conversation {number} " + "and so on, word by word " * 40 * turn, max_tokens=4)
                assert answer.status_code == 200, answer.text
        router.wait("the last request was scraped", lambda: _asked(prometheus, REQUESTS) >= 80, 40.0)
        yield Named(fleet, router, prometheus)


def _up(router: RunningRouter) -> bool:
    rows = router.get("/workers")["workers"]
    return all(row["health"] == "up" and row["kv_events"] == "live" for row in rows)


def _asked(prometheus: str, query: str) -> float:
    """The value of a query that gives one; 0 where it gives none."""
    rows = httpx.get(f"{prometheus}/api/v1/query", params={"query": query}, timeout=10).json()["data"]["result"]
    return float(rows[0]["value"][1]) if rows else 0.0


@contextlib.contextmanager
def _prometheus(binary: str, folder: Path, urls: list[str]) -> Iterator[str]:
    """Scrapes the engines once a second."""
    targets = [url.removeprefix("http://") for url in urls]
    job = {"job_name": "engines", "static_configs": [{"targets": targets}]}
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [binary, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    child = subprocess.Popen(
        [*command, f"--web.listen-address={address}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 40
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://{address}/-/ready", timeout=5).status_code == 200:
                    break
            assert child.poll() is None and time.monotonic() < deadline, "prometheus does not serve"
            time.sleep(0.1)
        yield f"http://{address}"
    finally:
        child.terminate()
        child.wait(20)


def test_named_processes_are_working_by_what_prometheus_saw(prometheus_binary: str, tmp_path: Path) -> None:
    with named(prometheus_binary, tmp_path) as system:
        code, report, _ = system.validate()
    assert (code, report["summary"]["verdict"], bad(report)) == (0, "working", {}), report["summary"]["why"]
    passed = {one["id"]: one["message"] for one in report["results"] if one["status"] == "pass"}
    assert {"KV601", "KV704", "KV951", "KV952", "KV954", "KV955"} <= set(passed)
    assert "15m" in passed["KV601"], "by the window of Prometheus, not by lifetimes of scraped pages"


def test_a_fault_of_one_named_engine_is_its_check(prometheus_binary: str, tmp_path: Path) -> None:
    with named(prometheus_binary, tmp_path, fault=["init-failure@1"]) as system:
        code, report, _ = system.validate()
    assert (code, report["summary"]["verdict"], bad(report)) == (1, "degraded", {"KV302": "fail"})


# -- clusters ----------------------------------------------------------------------------------------------------


def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    monkeypatch.setattr(sys, "argv", ["kvctl", "validate", "-o", "json", "--prometheus", "none", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


def test_a_cluster_by_kubeconfig(tmp_path: Path) -> None:
    with Cluster().serving(tmp_path) as cluster:
        healthy_ps(cluster)
        command = [sys.executable, "-m", "kvctl", "validate", "--namespace", "prod", "-o", "json"]
        where = environment() | {"KUBECONFIG": str(cluster.kubeconfig)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=where)
    report = json.loads(done.stdout)
    assert (done.returncode, report["summary"]["verdict"], bad(report)) == (0, "working", {})


def test_a_cluster_from_within(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster().serving(tmp_path, tls=True) as cluster:
        epoch_mismatch(cluster)
        cluster.in_cluster(monkeypatch)
        code, report = in_process(monkeypatch, capsys, "--in-cluster", "-n", "prod")
    assert (code, report["summary"]["verdict"], report["target"]["context"]) == (1, "broken", "in-cluster")
    assert bad(report) == {"KV152": "fail"}


def _descendants(pid: int) -> list[int]:
    """Process ids below `pid`."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [one for child in map(int, children) for one in (child, *_descendants(child))]


def _gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "children were left behind"
        time.sleep(0.05)
