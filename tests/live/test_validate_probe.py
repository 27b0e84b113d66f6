"""`kvctl validate --probe` of a live router before simulated engines, each a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.sim.fleet import SimFleet
from checks.catalogue.registry import ALL, select
from checks.collect import collect
from checks.model import Diagnosis, Status, Verdict
from checks.probe.options import ProbeOptions
from checks.probe.session import probed
from checks.request import CollectRequest, LogFile, Scrape
from checks.runner import diagnose
from checks.snapshot import Role
from checks.sources.tape import Tape
from tests.live.conftest import RunningRouter, running_router

FEW = ProbeOptions(requests=10)
"""One prompt again and again and the control arm; nothing after them."""


def validated(
    router: RunningRouter,
    fleet: SimFleet,
    options: ProbeOptions = FEW,
    *,
    admin: bool = True,
    tape: Tape | None = None,
) -> Diagnosis:
    """What the command does, in this process; without the 15 s between two readings of the metrics."""
    request = CollectRequest(
        routers=(router.url,),
        workers=tuple(engine.url for engine in fleet.engines),
        admin=router.admin if admin else "",
        log_files=tuple(LogFile(Role.WORKER, one.id, one.log) for one in fleet.engines if one.log),
        prometheus="none",
        scrape=Scrape.NEVER,
    )
    tape = tape or Tape.live()
    snapshot = probed(collect(request, tape), request, tape, options)
    return diagnose(snapshot, select(ALL, ["KV8*"], []))


def states(report: Diagnosis) -> dict[str, Status]:
    return {result.id: result.status for result in report.results}


def test_the_command_proves_that_a_kv_router_works(kv_router: RunningRouter, sims: SimFleet) -> None:
    workers = [word for engine in sims.engines for word in ("--worker", engine.url)]
    options = ("--checks", "KV8*", "--scrape", "never", "--prometheus", "none", "-o", "json")
    command = [sys.executable, "-m", "kvctl", "validate", "--router", kv_router.url, *workers, "--probe", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    report: dict[str, Any] = json.loads(done.stdout)
    found = {row["id"]: row["status"] for row in report["results"]}
    assert {check: found[check] for check in ("KV801", "KV802", "KV803", "KV805", "KV806")} == {
        "KV801": "pass",
        "KV802": "pass",
        "KV803": "pass",
        "KV805": "pass",
        "KV806": "pass",
    }, report["results"]
    assert (report["summary"]["verdict"], done.returncode) == ("working", 0)


def test_the_admin_port_tells_that_a_cache_decided(kv_router: RunningRouter, sims: SimFleet) -> None:
    report = validated(kv_router, sims)
    assert report.verdict is Verdict.WORKING, report.results
    assert "the router named a cache for each repeat" in report.why


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("random", Status.FAIL),
        ("round-robin", Status.FAIL),
        ("prefixaware", Status.PASS),
        ("kvaware", Status.PASS),
    ],
)
def test_other_modes(worker_options: list[str], sims: SimFleet, mode: str, expected: Status) -> None:
    with running_router("--router-mode", mode, "--seed", "7", *worker_options) as router:
        report = validated(router, sims)
    assert states(report)["KV801"] is expected, report.results


def test_each_request_of_the_probe_reached_the_router_once(kv_router: RunningRouter, sims: SimFleet) -> None:
    before = {one["id"] for one in kv_router.get("/decisions?limit=10000")["decisions"]}
    validated(kv_router, sims)
    after = kv_router.get("/decisions?limit=10000")["decisions"]
    ids = [one["request_id"] for one in after if one["id"] not in before]
    assert len(ids) == len(set(ids)) == 10
    assert all(name.startswith("kvctl-") for name in ids)


def test_engines_with_lmcache_that_hide_cached_tokens(tmp_path: Path) -> None:
    hidden: dict[str, Any] = {"log_style": "lmcache-0.5.6", "log_file": str(tmp_path), "heartbeat_time": 1.0}
    with SimFleet(2, speedup=20, num_blocks=2000, no_prompt_tokens_details=True, **hidden) as fleet:
        workers = [option for engine in fleet.engines for option in ("--worker", f"{engine.url},id={engine.id}")]
        with running_router("--router-mode", "kv", "--seed", "7", *workers) as router:
            report = validated(router, fleet, ProbeOptions())
    found = states(report)
    assert (found["KV801"], found["KV802"], found["KV804"]) == (Status.PASS,) * 3, report.results
    (cached,) = [result for result in report.results if result.id == "KV802"]
    assert "by log" in cached.message


def test_a_recorded_probe_gives_the_same_report_again(kv_router: RunningRouter, sims: SimFleet, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with Tape.record(kept, options={}, version="0") as tape:
        live = validated(kv_router, sims, tape=tape)
    with Tape.replay(kept) as tape:
        assert validated(kv_router, sims, tape=tape) == live
