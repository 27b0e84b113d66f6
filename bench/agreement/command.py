"""`make agreement`: kvctl, aiperf and `vllm bench serve` send one schedule to one engine; what each says of it."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import httpx

from bench.agreement import report, tools
from bench.agreement.plan import Plan, make_plan
from bench.agreement.tools import Report, Run, Stalls, ToolFailed
from bench.client.priority import raised_priority
from bench.compare.arms import installed
from bench.marked import NoMarks, replace_block
from bench.sim.fleet import FleetError, SimFleet

_ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    given = _options().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    runs: dict[str, Run] = {
        "kvctl": tools.kvctl,
        "aiperf": tools.aiperf(given.aiperf / "bin" / "aiperf", given.tokenizer),
        "vllm": tools.vllm(given.vllm / "bin" / "vllm", given.tokenizer),
    }
    engine = f"polynomial timing, {given.slow:g} times as slow"
    try:
        # Tools and engine inherit the priority, so that none of them has an advantage.
        with raised_priority(), SimFleet(1, slow=given.slow, num_blocks=65536) as fleet:
            plan = make_plan(given.requests, given.gap, fleet.model, given.seed)
            all_runs, missing = _measure(runs, plan, fleet.engines[0].url, given.repeats)
    except FleetError as error:
        sys.exit(f"agreement: {error}")
    best = {name: min(found, key=lambda one: one.stalled) for name, found in all_runs.items()}
    if "kvctl" not in best:
        sys.exit(f"agreement: {missing['kvctl']}")
    versions = {
        "kvctl": installed(Path(sys.executable), "kvctl"),
        "aiperf": installed(given.aiperf / "bin" / "python", "aiperf"),
        "vllm": installed(given.vllm / "bin" / "python", "vllm"),
    }
    facts = (
        f"`make agreement`: {given.requests} completions, one every {given.gap:g} s, one simulated engine ({engine}). "
        f"Of {given.repeats} runs of each tool the one in which the machine was quietest. Milliseconds as the tools "
        "print them; in brackets the difference from kvctl."
    )
    text = report.markdown(
        best, {name: one.partition(" ")[2] for name, one in versions.items()}, facts, missing, all_runs
    )
    print(text)
    if given.write is not None:
        try:
            replace_block(given.write, "agreement", text)
        except (OSError, NoMarks) as error:
            sys.exit(f"agreement: {error}")
    sys.exit(1 if report.beyond(best) or missing else 0)


def _measure(
    runs: dict[str, Run], plan: Plan, url: str, repeats: int
) -> tuple[dict[str, list[Report]], dict[str, str]]:
    """Each tool's runs, and why a tool has none. The tools take turns."""
    all_runs: dict[str, list[Report]] = {}
    missing: dict[str, str] = {}
    for repeat in range(repeats):
        for name, run in runs.items():
            if name in missing:
                continue
            httpx.post(f"{url}/reset_prefix_cache", timeout=30, trust_env=False).raise_for_status()
            with tempfile.TemporaryDirectory(prefix=f"kvctl-agreement-{name}-") as folder:
                stalls = Stalls()
                try:
                    found = run(plan, url, Path(folder))
                    drift = found.drift(plan)
                except ToolFailed as error:
                    if name not in all_runs:
                        missing[name] = str(error)
                    _say(f"run {repeat + 1}: {error}")
                    continue
            found = replace(found, stalled=stalls.share(), drift_s=drift)
            ttft = found.numbers["ttft_send_ms"]["mean"]
            _say(f"run {repeat + 1}: {name}: mean TTFT {ttft:.1f} ms, waited {found.stalled:.0%}")
            all_runs.setdefault(name, []).append(found)
    return all_runs, missing


def _say(line: str) -> None:
    print(f"agreement: {line}", file=sys.stderr, flush=True)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="kvctl bench, aiperf and vllm bench serve on one schedule.")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--gap", type=float, default=1.5, help="seconds between two requests")
    parser.add_argument("--slow", type=float, default=6.0, help="of the simulated engine")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each tool; the quietest counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--aiperf", type=Path, default=_ROOT / ".peers-aiperf", help="environment with aiperf")
    parser.add_argument("--vllm", type=Path, default=_ROOT / ".venv-vllm", help="environment with vllm")
    parser.add_argument("--tokenizer", type=Path, default=_ROOT / "bench" / "sim" / "tokenizer")
    parser.add_argument("--write", type=Path, help="the page whose marked block is written anew")
    return parser


if __name__ == "__main__":
    main()
