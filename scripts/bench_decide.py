"""How long a decision takes, beside Dynamo's selector in the same run; KV events into the index; bytes a block.

Prints Markdown. `--peer` is the Python of an environment with ai-dynamo-runtime (`make bench-decide` makes one);
`--write PAGE` replaces the marked block of a page.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.decide.report import markdown
from bench.decide.run import Plan, run
from bench.marked import replace_block


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=Path, help="python of an environment that has ai-dynamo-runtime")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=400, help="our decisions a round and cell")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the block of this page")
    said = parser.parse_args()
    plan = Plan(rounds=said.rounds, repeat=said.repeat, peer=said.peer)
    text = markdown(run(plan, lambda line: print(f"bench-decide: {line}", file=sys.stderr)))
    print(text)
    if said.write is not None:
        replace_block(said.write, "bench-decide", text)


if __name__ == "__main__":
    main()
