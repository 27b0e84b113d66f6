"""`kvctl validate` on a real vLLM: LMCache that could not start, seen in a fresh log, and an engine without LMCache.

The first engine serves all requests, prints `LMCache initialized for role` all the same, and says that it is degraded
on the last of eleven coloured lines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import httpx
import pytest

from .conftest import Stage
from .engines import LOGS, Engine

FLEET = "degraded"
REASON = "No supported cpu connector found"

Found = tuple[int, dict[str, Any]]


def validate(engine: Engine) -> Found:
    """Exit code and report of an engine that is known by its URL and its log."""
    command = [sys.executable, "-m", "kvctl", "validate", "--worker", engine.url, "--log", f"worker={engine.log}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVCTL_")}
    done = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def states(report: dict[str, Any], check: str) -> set[tuple[str, str | None]]:
    return {(one["status"], one["reason"]) for one in report["results"] if one["id"] == check}


def afresh(stage: Stage, name: str) -> Engine:
    """The only engine of a fleet, which has the fleet's name, started now: its log holds this start and no other."""
    stage.clear()
    (LOGS / f"{name}.log").unlink(missing_ok=True)
    return stage.fleet(name)[0]


def ask(engine: Engine, count: int) -> None:
    """The same prompt again and again: the engine serves, whatever became of LMCache."""
    body = {"model": engine.model, "prompt": "a prefix that comes again " * 60, "max_tokens": 2}
    for _ in range(count):
        httpx.post(f"{engine.url}/v1/completions", json=body, timeout=120).raise_for_status()


@pytest.fixture(scope="module")
def degraded(stage: Stage) -> Found:
    engine = afresh(stage, "degraded")
    ask(engine, 3)
    return validate(engine)


def test_lmcache_that_could_not_start_is_degraded_with_its_reason(degraded: Found) -> None:
    code, report = degraded
    assert (code, report["summary"]["verdict"]) == (1, "degraded")
    (failure,) = [one for one in report["results"] if one["id"] == "KV302"]
    assert (failure["status"], failure["caused_by"]) == ("fail", None)
    assert REASON in failure["message"]


def test_the_misleading_line_does_not_make_it_started(degraded: Found) -> None:
    _, report = degraded
    (started,) = [one for one in report["results"] if one["id"] == "KV301"]
    assert (started["status"], started["caused_by"]) == ("fail", "KV302")


def test_nothing_else_fails(degraded: Found) -> None:
    _, report = degraded
    assert {one["id"] for one in report["results"] if one["status"] == "fail" and not one["caused_by"]} == {"KV302"}


def test_an_engine_without_lmcache_is_not_blamed_for_it(stage: Stage) -> None:
    engine = afresh(stage, "alone")
    ask(engine, 3)
    code, report = validate(engine)
    assert (code, report["summary"]["fail"], report["summary"]["verdict"]) == (0, 0, "inconclusive")
    assert states(report, "KV301") == states(report, "KV302") == {("skip", "not_applicable")}
