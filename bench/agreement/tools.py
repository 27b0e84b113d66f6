"""Runs the three load generators against one engine and reads what each reports. Starts one child process a call.

A tool's numbers are taken as it prints them, never computed again here; only times of sending are read from its rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.agreement import plan as plans
from bench.agreement.plan import Plan
from bench.metrics import distribution

STATS = ("mean", "p50", "p95")
PATIENCE = 180.0


class ToolFailed(Exception):
    """A load generator failed, or reported something that cannot be read. The message says what it said last."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a tool says of a run.

    Args:
        numbers: by metric of ours, then mean, p50, p95; milliseconds. A metric that the tool lacks is not there.
        prompt_tokens, output_tokens: of all requests together.
        requests: answered.
        sent: seconds, when each request was sent, in order, by any clock.
        stalled: share of the run's time in which something on this machine waited for a core.
        drift_s: what `drift` gave.
    """

    numbers: Mapping[str, Mapping[str, float | None]]
    prompt_tokens: int
    output_tokens: int
    requests: int
    sent: Sequence[float]
    stalled: float = 0.0
    drift_s: float = 0.0

    def drift(self, plan: Plan) -> float:
        """Seconds: the largest difference between a time of sending and the plan's, the first request's taken as 0.

        Raises:
            ToolFailed: more or fewer were sent than planned.
        """
        if len(self.sent) != len(plan.requests):
            raise ToolFailed(f"{len(self.sent)} requests were sent where {len(plan.requests)} were planned")
        first = min(self.sent)
        return max(abs(at - first - one.at) for at, one in zip(sorted(self.sent), plan.requests, strict=True))


Run = Callable[[Plan, str, Path], Report]
"""(plan, engine's URL, folder of its own) -> what the tool says."""


def kvctl(plan: Plan, url: str, folder: Path) -> Report:
    """`kvctl bench` straight at the engine."""
    plans.write_kvctl(plan, folder / "schedule.jsonl")
    out = folder / "out"
    command = [sys.executable, "-P", "-m", "kvctl", "bench", "--url", f"engine={url},engines={url}", "--blocks", "1"]
    command += ["--aa", "0", "--trace", str(folder / "schedule.jsonl"), "--out", str(out), "-o", "json"]
    _run("kvctl bench", command, folder, fine=(0, 4))
    data = _json(out / "result.json")
    rows = [json.loads(line) for line in (out / "requests.jsonl").read_text("utf-8").splitlines()]
    ours = data["arms"][0]["metrics"]
    numbers: dict[str, dict[str, float | None]] = {
        name: {stat: ours[name][stat] for stat in STATS} for name in ("ttft_send_ms", "itl_ms", "icl_ms")
    }
    numbers["ttft_ms"] = {stat: ours["ttft_ms"][stat] for stat in STATS}
    numbers["e2e_ms"] = {stat: ours["e2e_ms"][stat] for stat in STATS}
    from_send = distribution(np.array([(row["t_last"] - row["t_send"]) * 1000 for row in rows]))
    numbers["e2e_send_ms"] = {stat: from_send[stat] for stat in STATS}
    return Report(
        numbers,
        sum(row["prompt_tokens"] for row in rows),
        sum(row["output_tokens"] for row in rows),
        sum(row["ok"] for row in rows),
        [row["t_send"] for row in rows],
    )


def aiperf(program: Path, tokenizer: Path) -> Run:
    """`aiperf profile`, a fixed schedule of whole bodies."""

    def run(plan: Plan, url: str, folder: Path) -> Report:
        plans.write_aiperf(plan, folder / "trace.jsonl")
        out = folder / "out"
        command = [str(program), "profile", "--model", plan.model, "--endpoint-type", "completions", "--streaming"]
        command += [
            "--url",
            url,
            "--input-file",
            str(folder / "trace.jsonl"),
            "--custom-dataset-type",
            "mooncake-trace",
        ]
        command += ["--fixed-schedule", "--tokenizer", str(tokenizer), "--use-server-token-count", "--ui", "none"]
        command += ["--workers-max", "1", "--record-processors", "1", "--no-gpu-telemetry", "--no-server-metrics"]
        command += ["--output-artifact-dir", str(out)]
        _run("aiperf", command, folder)
        data = _json(next(iter(out.rglob("profile_export_aiperf.json")), out / "profile_export_aiperf.json"))
        rows = [json.loads(line) for line in next(out.rglob("profile_export.jsonl")).read_text("utf-8").splitlines()]
        names = {
            "ttft_send_ms": "time_to_first_token",
            "itl_ms": "inter_token_latency",
            "icl_ms": "inter_chunk_latency",
            "e2e_send_ms": "request_latency",
        }
        numbers = {
            ours: {"mean": data[theirs]["avg"], "p50": data[theirs]["p50"], "p95": data[theirs]["p95"]}
            for ours, theirs in names.items()
        }
        return Report(
            numbers,
            _total(rows, "input_sequence_length", "usage_prompt_tokens"),
            _total(rows, "output_sequence_length", "usage_completion_tokens"),
            len(rows),
            [row["metadata"]["request_start_ns"] / 1e9 for row in rows],
        )

    return run


def vllm(program: Path, tokenizer: Path) -> Run:
    """`vllm bench serve`, completions, even gaps."""

    def run(plan: Plan, url: str, folder: Path) -> Report:
        plans.write_vllm(plan, folder / "prompts.jsonl")
        command = [str(program), "bench", "serve", "--backend", "openai", "--base-url", url, "--model", plan.model]
        command += ["--endpoint", "/v1/completions", "--tokenizer", str(tokenizer), "--dataset-name", "custom"]
        command += ["--dataset-path", str(folder / "prompts.jsonl"), "--custom-output-len", "-1", "--disable-shuffle"]
        command += ["--skip-chat-template", "--num-prompts", str(len(plan.requests)), "--no-oversample"]
        command += ["--request-rate", repr(1 / plan.gap), "--burstiness", "inf", "--num-warmups", "0"]
        command += ["--ready-check-timeout-sec", "0", "--ignore-eos", "--temperature", "0", "--disable-tqdm"]
        command += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,95", "--save-result"]
        command += ["--save-detailed", "--result-dir", str(folder), "--result-filename", "result.json"]
        _run("vllm bench serve", command, folder)
        data = _json(folder / "result.json")
        names = {"ttft_send_ms": "ttft", "itl_ms": "tpot", "icl_ms": "itl", "e2e_send_ms": "e2el"}
        numbers = {ours: {stat: data[f"{stat}_{theirs}_ms"] for stat in STATS} for ours, theirs in names.items()}
        return Report(
            numbers, data["total_input_tokens"], data["total_output_tokens"], data["completed"], data["start_times"]
        )

    return run


def _total(rows: Sequence[Mapping[str, Any]], *names: str) -> int:
    """The sum of a metric of aiperf's rows, by the first of its names that a row has."""
    total = 0
    for row in rows:
        metrics = row["metrics"]
        name = next((name for name in names if name in metrics), None)
        if name is None:
            raise ToolFailed(f"aiperf: a row without {' or '.join(names)}; it has {', '.join(metrics)}")
        total += int(metrics[name]["value"])
    return total


def _run(name: str, command: Sequence[str], folder: Path, fine: Sequence[int] = (0,)) -> None:
    log = folder / "log"
    env = {key: value for key, value in os.environ.items() if not key.startswith("KVCTL_")}
    env |= {"VLLM_NO_USAGE_STATS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("HF_HUB_OFFLINE", None)  # aiperf then takes no folder for a tokenizer
    with log.open("wb") as file:
        try:
            ended = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=env, cwd=folder, timeout=PATIENCE * 3,
                check=False,
            )  # fmt: skip
        except OSError as error:
            raise ToolFailed(f"{name}: {command[0]}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise ToolFailed(f"{name}: not done after {PATIENCE * 3:g} s") from None
    if ended.returncode not in fine:
        said = " | ".join(log.read_text("utf-8", "replace").strip().splitlines()[-3:])[-600:]
        raise ToolFailed(f"{name} ended with exit code {ended.returncode}: {said}")


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ToolFailed(f"{path.name}: {error}") from None
    if not isinstance(data, dict):
        raise ToolFailed(f"{path.name}: no JSON object")
    return data


class Stalls:
    """How much of a stretch of time some task of this machine waited for a core (Linux's pressure stall information;
    where there is none, how busy all cores were).
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = self._now()

    def share(self) -> float:
        return (self._now() - self._before) / max(1e-9, time.monotonic() - self._began)

    def _now(self) -> float:
        try:
            some = Path("/proc/pressure/cpu").read_text().split("\n")[0]
            return int(some.rpartition("total=")[2]) / 1e6
        except (OSError, ValueError):
            fields = list(map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9]))
            return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
