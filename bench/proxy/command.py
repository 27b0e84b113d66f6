"""The command line of `make bench-proxy`: options, rounds, report. Writes a document's marked block, if asked."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.marked import replace_block
from bench.proxy import processes, report
from bench.proxy.routers import ARMS
from bench.proxy.run import HELD, Plan, run

_ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    given = _options().parse_args()
    known = {arm.name: arm for arm in ARMS}
    names = given.arms.split(",") if given.arms else list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"--arms: no arm '{unknown[0]}'; there are {', '.join(known)}")
    plan = Plan(
        tuple(known[name] for name in names),
        given.rounds,
        given.seconds,
        given.peers,
        given.tokenizer,
        given.streams,
        held=given.held,
    )
    try:
        outcome = run(plan)
    except processes.NotStarted as error:
        sys.exit(f"bench-proxy: {error}")
    text = report.markdown(plan, outcome)
    print(text)
    if given.out is not None:
        try:
            replace_block(given.out, "bench-proxy", text)
        except (OSError, ValueError) as error:
            sys.exit(f"bench-proxy: {error}")


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="How fast the proxy is, beside other routers on the same machine.")
    parser.add_argument("--arms", help=f"some of {','.join(arm.name for arm in ARMS)}; all by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--streams", type=int, default=256, help="open at once, 64 items/s each")
    parser.add_argument("--held", type=int, default=HELD, help="streams held open for the memory of one")
    parser.add_argument("--peers", type=Path, default=_ROOT / ".peers" / "bin", help="where the peers' programs are")
    parser.add_argument("--tokenizer", type=Path, default=_ROOT / "bench" / "sim" / "tokenizer")
    parser.add_argument("--out", type=Path, help="the document whose marked block is written anew")
    return parser


if __name__ == "__main__":
    main()
