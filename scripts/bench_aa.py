"""Whether `kvctl bench` claims what is not there, and finds what is: A/A runs, and an arm whose engines are slower.

    python scripts/bench_aa.py                 40 valid runs of `--modes kv,kv`, then one against engines slowed by 1.2
    python scripts/bench_aa.py --runs 3 --no-slow

Each run is 8 rounds of 32 requests at 16/s of the built-in multi-turn workload before 4 simulated engines: about 55
seconds, 40 runs in under 40 minutes. A run is a line in runs.jsonl of the output folder; started again, the script
goes on after the last one. Runs that the bench itself called void are listed and not counted. Exit code 0: at most one
valid run in twenty claims a difference, and the slow arm is found; 1: not so; 4: too few valid runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.arms import Fleet, started_routers
from bench.sim.fleet import SimFleet

LOAD = ("--requests", "256", "--blocks", "8", "--rate", "16", "--aa", "0")
ENGINES = 4
SHARE = 0.05
"""Of valid runs that may claim a difference: 2 of 40."""


def bench(*arguments: str) -> dict[str, Any]:
    """One run; the content of its result.json."""
    command = [sys.executable, "-m", "kvctl", "bench", *LOAD, *arguments, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 4):
        raise SystemExit(f"kvctl bench ended with exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    return dict(json.loads(done.stdout))


def row_of(data: dict[str, Any], seed: int, seconds: float) -> dict[str, Any]:
    headline = {c["metric"]: c for c in data["comparisons"] if c["p_holm"] is not None}
    return {
        "seed": seed,
        "valid": data["verdict"]["valid"],
        "reasons": data["verdict"]["reasons"][:1],
        "claimed": [name for name, c in headline.items() if c["claimed"]],
        "ratios": {name: c["ratio"] for name, c in headline.items()},
        "p_holm": {name: c["p_holm"] for name, c in headline.items()},
        "seconds": round(seconds, 1),
    }


def said(row: dict[str, Any]) -> str:
    parts = [f"{name} {ratio:.3f} (p {row['p_holm'][name]:.3f})" for name, ratio in row["ratios"].items() if ratio]
    state = "" if row["valid"] else f"VOID: {row['reasons'][0]}"
    claimed = f"CLAIMED {', '.join(row['claimed'])}" if row["claimed"] else "nothing claimed"
    return (
        f"seed {row['seed']:3d}  {'  '.join(parts) or 'no ratio'}  {claimed}  {row['seconds']:.0f} s  {state}".rstrip()
    )


def measured(seed: int, *arguments: str) -> dict[str, Any]:
    began = time.monotonic()
    return row_of(bench("--seed", str(seed), *arguments), seed, time.monotonic() - began)


def equal_arms(runs: int, most: int, file: Path) -> list[dict[str, Any]]:
    """A/A runs until so many are valid, at most `most`; those in `file` count."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for row in rows:
        print(said(row), "(from before)", flush=True)
    while sum(row["valid"] for row in rows) < runs and len(rows) < most:
        rows.append(measured(len(rows) + 1, "--modes", "kv,kv", "--workers", str(ENGINES)))
        print(said(rows[-1]), flush=True)
        with file.open("a") as out:
            out.write(json.dumps(rows[-1]) + "\n")
    return rows


def slow_arm(slow: float, tries: int) -> dict[str, Any]:
    """The same mode before engines as they are and before slower ones; again if the run was void."""
    with contextlib.ExitStack() as stack:
        urls = []
        for name, factor in (("plain", 1.0), ("slow", slow)):
            fleet = stack.enter_context(SimFleet(ENGINES, slow=factor))
            specs = Fleet(name, [engine.spec for engine in fleet.engines], fleet.model)
            arm = stack.enter_context(started_routers(("kv",), specs))[0]
            urls += ["--url", f"{name}={arm.url}"]
        row: dict[str, Any] = {}
        for seed in range(1, tries + 1):
            row = measured(seed, *urls)
            print(f"slowed by {slow:g}: {said(row)}", flush=True)
            if row["valid"]:
                break
        return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, help="valid A/A runs wanted")
    parser.add_argument("--most", type=int, help="A/A runs at most (default: half as many again)")
    parser.add_argument("--slow", type=float, default=1.2, help="factor of the slow arm's engines")
    parser.add_argument("--no-slow", action="store_true", help="only the A/A runs")
    parser.add_argument("--out", type=Path, default=Path("bench-aa-out"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    code = 0
    if options.runs:
        most = options.most or options.runs + options.runs // 2
        rows = equal_arms(options.runs, most, options.out / "runs.jsonl")
        valid = [row for row in rows if row["valid"]]
        claims = sum(bool(row["claimed"]) for row in valid)
        allowed = max(1, round(SHARE * options.runs))
        print(f"A/A: {claims} of {len(valid)} valid runs claim a difference ({allowed} allowed); {len(rows)} runs")
        code = 1 if claims > allowed else 4 if len(valid) < options.runs else 0
    if not options.no_slow:
        row = slow_arm(options.slow, 3)
        found = {name for name in row["claimed"] if row["ratios"][name] < 1 and row["p_holm"][name] < 0.05}
        print(f"slow arm: {'found by ' + ', '.join(sorted(found)) if found else 'NOT found'}")
        code = code or (0 if found and row["valid"] else 4 if not row["valid"] else 1)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
