"""`make compare`: other routers as arms beside kvctl, one `kvctl bench` over all of them, its table."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.arms import ArmError
from bench.compare import arms, report
from bench.compare.arms import Places, Prompts, Running
from bench.marked import NoMarks, replace_block
from bench.proxy.processes import raise_file_limit
from bench.sim.fleet import FleetError

_ROOT = Path(__file__).resolve().parents[2]
_INCONCLUSIVE = 4


def main() -> None:
    given = _options().parse_args()
    names = given.arms.split(",") if given.arms else list(arms.NAMES)
    unknown = [name for name in names if name not in arms.NAMES]
    if unknown:
        sys.exit(f"--arms: no arm '{unknown[0]}'; there are {', '.join(arms.NAMES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    raise_file_limit()
    prompts = Prompts(given.prompts)
    with tempfile.TemporaryDirectory(prefix="kvctl-compare-") as folder:
        places = Places(given.peers, given.dynamo, given.tokenizer, Path(folder))
        try:
            with arms.started(names, prompts, places, _say) as started:
                if not started.arms:
                    sys.exit("compare: no arm could be started")
                code, data = _bench(started.arms, prompts, given)
        except (ArmError, FleetError) as error:
            sys.exit(f"compare: {error}")
    if data is None:
        sys.exit(code or 1)
    titles = {arm.name: arm.title for arm in started.arms}
    said = " ".join(["make compare", *([f"OPTIONS='{' '.join(sys.argv[1:])}'"] if given.shown else [])])
    text = report.markdown(data, titles, started.absent, said, prompts)
    print(text)
    if given.write is not None:
        try:
            replace_block(given.write, f"compare-{prompts}", text)
        except (OSError, NoMarks) as error:
            sys.exit(f"compare: {error}")
    sys.exit(code)


def _bench(
    running: Sequence[Running], prompts: Prompts, given: argparse.Namespace
) -> tuple[int, dict[str, object] | None]:
    """Runs `kvctl bench` over the arms; its exit code and result, None if it wrote none."""
    out: Path = given.out
    result = out / "result.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", "kvctl", "bench"]
    for arm in running:
        command += ["--url", arm.spec]
    command += ["--requests", str(given.requests * given.blocks), "--blocks", str(given.blocks)]
    command += ["--rate", str(given.rate), "--aa", str(given.aa), "--seed", str(given.seed), "--out", str(out)]
    command += ["--workload", given.workload]
    if prompts is Prompts.TEXT:
        command.append("--words")
    code = subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode
    if code not in (0, _INCONCLUSIVE) or not result.exists():
        return code, None
    return code, json.loads(result.read_text("utf-8"))


def _say(line: str) -> None:
    print(f"compare: {line}", file=sys.stderr, flush=True)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="kvctl beside vllm-router, SMG and Dynamo on simulated engines.")
    parser.add_argument("--arms", help=f"some of {','.join(arms.NAMES)}; all by default")
    parser.add_argument("--prompts", choices=[str(one) for one in Prompts], default="text")
    parser.add_argument("--blocks", type=int, default=6, help="rounds")
    parser.add_argument("--requests", type=int, default=28, help="an arm and round")
    parser.add_argument("--rate", type=float, default=5.0, help="requests/s")
    parser.add_argument("--aa", type=int, default=2, help="A/A pairs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workload", default="multi-turn")
    parser.add_argument("--peers", type=Path, default=_ROOT / ".peers")
    parser.add_argument("--dynamo", type=Path, default=_ROOT / ".peers-dynamo")
    parser.add_argument("--tokenizer", type=Path, default=_ROOT / "bench" / "sim" / "tokenizer")
    parser.add_argument("--out", type=Path, default=_ROOT / "compare-out", help="folder of the bench's results")
    parser.add_argument("--write", type=Path, help="the page whose marked block is written anew")
    parser.set_defaults(shown=len(sys.argv) > 1)
    return parser


if __name__ == "__main__":
    main()
