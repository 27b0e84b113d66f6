"""What a run leaves behind: result.json, requests.jsonl, summary.csv (and report.md, report.html, by `report/`).

The shape of result.json is fixed by `SCHEMA_VERSION`; keys are only ever added. Writes files, reads the machine's own
description; nothing else.
"""

from __future__ import annotations

import csv
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from bench.arms import Fleet
from bench.design import HEADLINE, Block
from bench.experiment import BlockResult, Experiment
from bench.metrics import cached_ratio, distribution, values
from bench.verdict import ArmResult, Verdict
from bench.workload.describe import Summary
from bench.workload.model import Workload

SCHEMA_VERSION = 1
PACKAGES = ("numpy", "scipy", "uvloop", "httptools", "msgspec", "numba", "pyzmq", "httpx")


@dataclass(slots=True)
class Provenance:
    """Where a result comes from. `version`: of the program that made it."""

    version: str
    argv: list[str]
    seed: int
    workload: Workload
    summary: Summary
    fleet: Fleet
    options: dict[str, object] = field(default_factory=dict)


def result(
    verdict: Verdict, experiment: Experiment, plan: Sequence[Block], provenance: Provenance
) -> dict[str, object]:
    """The content of result.json."""
    names = [arm.arm.name for arm in verdict.arms]
    return {
        "schema_version": SCHEMA_VERSION,
        "provenance": {
            "kvctl": provenance.version,
            "workload_sha256": provenance.workload.sha256,
            "seed": provenance.seed,
            "argv": provenance.argv,
            "host": host(),
            "packages": packages(),
            "workload": {
                "name": provenance.workload.name,
                "facts": provenance.workload.facts,
                "notes": provenance.workload.notes,
                "summary": asdict(provenance.summary),
            },
            "fleet": {"description": provenance.fleet.description, **provenance.fleet.facts},
            "model": experiment.model,
            "versions": experiment.versions,
            "version_sources": experiment.version_sources,
            "options": provenance.options,
        },
        "design": {
            "order": [names[block.arm] for block in plan],
            "rounds": len({block.round for block in plan}),
            "cold_start": experiment.way,
            "loop": provenance.workload.loop,
            "users": provenance.workload.users,
            "client_priority_raised": experiment.client_priority_raised,
            "primed": any(block.prime for block in experiment.blocks),
            "pilot": _pilot(verdict, len({block.round for block in plan})),
            "blocks": [_block(block) for block in experiment.blocks],
        },
        "arms": [_arm(arm) for arm in verdict.arms],
        "comparisons": comparison_rows(verdict),
        "verdict": verdict_row(verdict),
    }


def comparison_rows(verdict: Verdict) -> list[dict[str, object]]:
    """The key `comparisons`."""
    return [
        {
            "metric": c.metric,
            "base": c.base,
            "other": c.other,
            "ratio": c.found.ratio,
            "ci95": list(c.found.ci95) if c.found.ci95 else None,
            "p": c.found.p,
            "p_holm": c.p_holm,
            "claimed": c.claimed,
            "rounds": c.rounds,
            "round_sd": c.found.sd,
        }
        for c in verdict.comparisons
    ]


def verdict_row(verdict: Verdict) -> dict[str, object]:
    """The key `verdict`."""
    return {
        "valid": verdict.valid,
        "reasons": verdict.reasons,
        "gates": [
            {"gate": judged.gate.text, "result": str(judged.result), "why": judged.why} for judged in verdict.gates
        ],
        "notes": verdict.notes,
        "summary": verdict.sentences,
        "exit_code": verdict.exit_code,
    }


def _arm(arm: ArmResult) -> dict[str, object]:
    every = arm.measured
    return {
        "mode": arm.arm.mode if arm.arm.mode != "url" else arm.arm.name,
        "name": arm.arm.name,
        "blocks": len(arm.blocks),
        "requests": len(every),
        "failed": int((~every.ok).sum()),
        "aborted": int(every.aborted.sum()),
        "metrics": arm.metrics,
        "ci95": arm.intervals(),
        "prime": _prime(arm),
        "stable": arm.stability.stable,
        "in_flight": {"middle": arm.stability.middle, "end": arm.stability.end},
        "workers": arm.workers,
        "failures": arm.failures,
        "events": every.events(),
        "output_tokens_sources": every.sources(),
        "client_cpu": max((block.facts.watch.cpu for block in arm.blocks), default=None),
    }


def _prime(arm: ArmResult) -> dict[str, object] | None:
    """The cold requests that primed the blocks; None without priming."""
    every = [m for block in arm.blocks for m in block.prime]
    if not every:
        return None
    return {
        "requests": len(every),
        "failed": sum(not m.timing.ok for m in every),
        "ttft_send_ms": distribution(values(every, "ttft_send_ms")),
        "cached_token_ratio": cached_ratio(every),
    }


def _pilot(verdict: Verdict, rounds: int) -> dict[str, object] | None:
    """The A/A control; None without one."""
    pilot = verdict.pilot
    if pilot is None:
        return None
    reach = pilot.detectable(rounds, len(HEADLINE) * max(1, len(verdict.arms) - 1))
    return {
        "pairs": [{"arm": pair.arm, "log_ratios": pair.log_ratios, "session_sd": pair.spread} for pair in pilot.pairs],
        "noise": {
            name: {"round_sd": one.sd, "interval90": [one.low, one.high], "detectable": reach[name]}
            for name, one in pilot.noise.items()
        },
        "carry_over": pilot.carry_over,
    }


def _block(block: BlockResult) -> dict[str, object]:
    watch = block.facts.watch
    return {
        "index": block.block.index,
        "round": block.block.round,
        "arm": block.arm.name,
        "cold": {
            "way": block.proof.way,
            "proven": block.proof.proven,
            "probes": block.proof.probes,
            "resets": block.proof.resets,
            "reasons": block.proof.reasons,
        },
        "client": {
            "cpu": watch.cpu,
            "machine_cpu": watch.machine,
            "loop_lag_max_ms": max(watch.loop_lag, default=0.0) * 1000,
            "wall_s": watch.wall,
            "connections_opened": watch.connections,
            "resent_on_new_connection": watch.retried,
            "connections_peak": watch.peak,
            "open_files_limit": watch.files,
        },
        "interrupted": block.interrupted,
    }


def host() -> dict[str, object]:
    """The machine, as far as it explains a number. No names, no addresses."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def packages() -> dict[str, str]:
    """Versions of what measures."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def summary_rows(verdict: Verdict) -> list[dict[str, object]]:
    """summary.csv: a row an arm and metric."""
    found: list[dict[str, object]] = []
    for arm in verdict.arms:
        for name, value in arm.metrics.items():
            stats = value if isinstance(value, dict) else {"value": value}
            found += [
                {"arm": arm.arm.name, "metric": name, "statistic": stat, "value": number}
                for stat, number in stats.items()
            ]
    return found


def write(folder: Path, data: dict[str, object], verdict: Verdict) -> None:
    """Writes result.json and summary.csv into `folder`, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    encoded = msgspec.json.format(msgspec.json.encode(data), indent=2)
    (folder / "result.json").write_bytes(encoded + b"\n")
    with (folder / "summary.csv").open("w", newline="", encoding="utf-8") as text:
        writer = csv.DictWriter(text, ["arm", "metric", "statistic", "value"])
        writer.writeheader()
        writer.writerows(summary_rows(verdict))
