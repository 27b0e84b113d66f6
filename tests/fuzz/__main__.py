"""`python -m tests.fuzz --minutes 10`: look for messages that break the promises of `targets`. Stops at a finding."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.fuzz.targets import TARGETS, run

_AT_A_TIME = 500


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long")
    parser.add_argument("--first", type=int, default=0, help="number of the first message; it names the message")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="default: both")
    given = parser.parse_args()
    logging.disable()
    names = given.target or sorted(TARGETS)
    end = time.monotonic() + given.minutes * 60
    number, taken = given.first, dict.fromkeys(names, 0)
    while time.monotonic() < end:
        for name in names:
            try:
                taken[name] += run(name, number, _AT_A_TIME)
            except AssertionError as finding:
                print(finding, file=sys.stderr)
                return 1
        number += _AT_A_TIME
    for name in names:
        print(f"{name}: {number - given.first} messages, {taken[name]} of them taken, no finding")
    return 0


if __name__ == "__main__":
    sys.exit(main())
