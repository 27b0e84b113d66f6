"""`kvctl bench` on two real engines whose cold and cached first tokens differ by a factor of ten.

What the run leaves (result.json, requests.jsonl, the table) is kept in `.real/bench`; the table in
docs/performance.md is from there.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from .engines import LOGS, ROOT, Engine

FLEET = "middle"
OUT = LOGS.parent / "bench"
REQUESTS = 192
RATE = ("--rate", "8", "--speedup", "0.1")
"""Four conversations at a time, 0.8 requests a second in all: a quarter of what two quiet cores can do."""
TOKEN_IDS = "10-2000"


@pytest.fixture(scope="module")
def result(engines: Sequence[Engine]) -> dict[str, Any]:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    command = [sys.executable, "-m", "kvctl", "bench", "--modes", "kv,random"]
    for engine in engines:
        command += ["--worker", engine.url]
    command += ["--requests", str(REQUESTS), *RATE, "--token-ids", TOKEN_IDS]
    command += ["--seed", "1", "--out", str(OUT)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KVCTL_")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1300)
    (OUT / "table.txt").write_text(done.stdout)
    print("\n" + done.stdout)
    # 4 is "inconclusive": on a machine with other work the arms may be unstable, which is no fault of theirs.
    assert done.returncode in (0, 4), done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, Any] = json.loads((OUT / "result.json").read_text())
    return found


def _arm(result: dict[str, Any], mode: str) -> dict[str, Any]:
    return next(arm for arm in result["arms"] if arm["mode"] == mode)


def test_the_result_is_valid(result: dict[str, Any]) -> None:
    assert result["verdict"]["valid"] is True, result["verdict"]


def test_no_request_failed(result: dict[str, Any]) -> None:
    assert [arm["failed"] for arm in result["arms"]] == [0, 0]


def test_both_arms_sent_the_same_requests(result: dict[str, Any]) -> None:
    assert [arm["requests"] for arm in result["arms"]] == [REQUESTS, REQUESTS]
    assert [arm["mode"] for arm in result["arms"]] == ["kv", "random"]


def test_every_figure_is_a_number(result: dict[str, Any]) -> None:
    for arm in result["arms"]:
        for metric in ("ttft_ms", "itl_ms", "e2e_ms"):
            for name in ("mean", "p50", "p95"):
                assert math.isfinite(arm["metrics"][metric][name]), (arm["mode"], metric, name)


def test_kv_reuses_more_than_random(result: dict[str, Any]) -> None:
    kv, random = (_arm(result, mode)["metrics"]["cached_token_ratio"] for mode in ("kv", "random"))
    assert kv > random


def test_each_request_has_a_row(result: dict[str, Any]) -> None:
    rows = [json.loads(line) for line in Path(OUT / "requests.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * REQUESTS
