"""Three workloads on which a bench or a router is easily wrong, with what has to come out.

    no-sharing  nothing is shared: kv is non-inferior to random within the margin, by TTFT and by ITL
    overload    both arms are beyond their capacity: both are named unstable, and no ratio is printed anywhere
    hot-spot    one prefix on all requests: kv is not worse than least-loaded by ITL, within the margin

Starts simulated engines; about six minutes. A void run (a busy machine) is repeated once. Exit code 0: all as it has to
be; 1: one is not; 4: one could not be judged.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARGIN = 1.05


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of `kvctl bench`: its exit code, its result, all it printed."""

    code: int
    data: dict[str, Any]
    text: str


def bench(*arguments: str) -> Ran:
    with tempfile.TemporaryDirectory(prefix="bench-accept-") as folder:
        command = [sys.executable, "-m", "kvctl", "bench", *arguments, "--out", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1, 4) or not (Path(folder) / "result.json").exists():
            raise SystemExit(f"kvctl bench ended with exit code {done.returncode}: {done.stderr.strip()[-500:]}")
        reports = "".join((Path(folder) / name).read_text() for name in ("report.md", "report.html"))
        return Ran(done.returncode, json.loads((Path(folder) / "result.json").read_text()), done.stdout + reports)


def non_inferior(workload: str, base: str, metrics: tuple[str, ...], more: list[str]) -> tuple[int, str]:
    gates = [f"{metric}: kv <= {MARGIN:g}*{base} (non-inferior)" for metric in metrics]
    arguments = [
        "--modes",
        f"kv,{base}",
        "--workload",
        workload,
        *(part for gate in gates for part in ("--gate", gate)),
    ]
    ran = bench(*arguments, *more)
    if not ran.data["verdict"]["valid"]:
        ran = bench(*arguments, *more)
    told = "; ".join(f"{g['result']}: {g['gate']} ({g['why']})" for g in ran.data["verdict"]["gates"])
    return ran.code, told


def overload() -> tuple[int, str]:
    """By result.json and by what a reader sees."""
    beyond = ["--workload", "no-sharing", "--workers", "2", "--rate", "90", "--requests", "720"]
    ran = bench("--modes", "kv,random", *beyond, "--blocks", "2", "--aa", "0")
    unstable = [arm["name"] for arm in ran.data["arms"] if not arm["stable"]]
    if len(unstable) < 2:
        return 4, f"only {unstable or 'no arm'} was unstable: not an overload"
    if ran.data["comparisons"] or "no ratio" not in " ".join(ran.data["verdict"]["summary"]):
        return 1, f"a ratio of unstable arms: {ran.data['comparisons'][:1]}"
    seen = [word for word in ("95 % interval", "Comparisons") if word in ran.text]
    if seen:
        return 1, f"a comparison is printed: {seen}"
    return 0, ran.data["verdict"]["summary"][-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="no-sharing, overload, hot-spot; default all")
    parser.add_argument("--blocks", default="8")
    options = parser.parse_args()
    more = ["--blocks", options.blocks, "--aa", "0"]
    cases = {
        "no-sharing": lambda: non_inferior("no-sharing", "random", ("ttft_ms.mean", "itl_ms.mean"), more),
        "overload": overload,
        "hot-spot": lambda: non_inferior("hot-spot", "least-loaded", ("itl_ms.mean",), more),
    }
    unknown = [name for name in options.cases if name not in cases]
    if unknown:
        parser.error(f"no case {unknown[0]}: {', '.join(cases)}")
    codes = []
    for name in options.cases or cases:
        code, told = cases[name]()
        codes.append(code)
        print(f"{ {0: 'pass', 1: 'FAIL', 4: 'inconclusive'}[code]:>12}  {name}: {told}", flush=True)
    return 1 if 1 in codes else 4 if 4 in codes else 0


if __name__ == "__main__":
    raise SystemExit(main())
