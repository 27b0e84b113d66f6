"""`make soak`: a router under mixed traffic with faults for an hour; a line a minute, soak.json, exit 1 if it leaked or
a request went wrong. The work is in `bench.soak`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.soak.run import SoakSettings, soak
from bench.soak.traffic import End, Traffic, TrafficSettings
from bench.soak.watch import Sample
from kvctl.kernels import ensure_cache


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--engines", type=int, default=20)
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second")
    parser.add_argument("--mode", default="kv")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("soak.json"))
    given = parser.parse_args()
    ensure_cache()
    print(
        f"{'minute':>7} {'requests':>9} {'cut':>5} {'wrong':>6} {'rss MiB':>8} {'fds':>5} {'load':>5} {'lag ms':>7} "
        f"{'cpu %':>6}"
    )
    last: list[Sample] = []

    def tell(sample: Sample, traffic: Traffic) -> None:
        cpu = 100 * (sample.cpu_s - last[-1].cpu_s) / (sample.at - last[-1].at) if last else 0.0
        last[:] = [sample]
        tally = traffic.tally
        print(
            f"{sample.at / 60:7.1f} {tally.total:9d} {tally.count(End.CUT):5d} {tally.count(End.WRONG):6d} "
            f"{sample.rss / 2**20:8.1f} {sample.fds:5d} {sample.active:5d} {sample.lag_ms:7.1f} {cpu:6.1f}",
            flush=True,
        )

    report = soak(
        SoakSettings(
            seconds=60 * given.minutes,
            engines=given.engines,
            mode=given.mode,
            traffic=TrafficSettings(rate=given.rate, seed=given.seed),
        ),
        tell,
    )
    given.out.write_text(json.dumps(report.as_json(), indent=1) + "\n", "utf-8")
    print(f"{report.requests} requests: {report.ends}")
    print(f"engines: {report.deeds}; attempts: {report.legs}; {report.counters}; ejections: {report.ejections}")
    print(f"memory: {report.rss_slope / 1024:+.2f} KiB/s beyond what is kept; lag at most {report.worst_lag_ms:.0f} ms")
    for line in (*report.leaks, *report.wrong):
        print(f"WRONG: {line}")
    print(f"{'good' if report.good else 'NOT good'}; written to {given.out}")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
