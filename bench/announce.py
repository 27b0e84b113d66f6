"""What a run says before it starts: the workload, the order, what it can show. Prints to a console only."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from bench.capacity import most_probes
from bench.design import HEADLINE, LEVEL, rounds_needed, smallest_p, williams
from bench.pilot import Auto, Pilot
from bench.study import StudyPlan
from bench.workload.describe import Summary
from bench.workload.model import Workload

FEW_A_BLOCK = 8
METRIC_NAMES = {"ttft_ms.mean": "mean TTFT", "itl_ms.mean": "mean ITL"}


def say(console: Console, text: str) -> None:
    """One line, not wrapped, without highlighting."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def announce_workload(console: Console, workload: Workload, summary: Summary) -> None:
    """What is sent."""
    say(
        console,
        f"workload {workload.name}: {summary.requests} requests an arm, {summary.prompt_mean:,.0f} prompt and "
        f"{summary.output_mean:.0f} output tokens each, {summary.rate:.1f} requests/s; an endless cache would hold "
        f"{summary.bound:.0%} of the prompt tokens",
    )
    if "jitter_cell_ms" in workload.facts:
        facts = workload.facts
        say(
            console,
            f"trace at {facts['speedup']} times its own rate; "
            f"jitter {facts['jitter']} ({facts['jitter_cell_ms']:,} ms)",
        )
    for note in workload.notes:
        say(console, f"note: {note}")
    a_block = summary.requests / workload.slices
    if a_block < FEW_A_BLOCK:
        say(
            console,
            f"note: {a_block:.1f} requests a block are too few to share a prefix or to queue; give --requests "
            f"{FEW_A_BLOCK * workload.slices} or more (they are dealt over {workload.slices} rounds)",
        )


def announce_rounds(console: Console, arms: int, rounds: int, pairs: int, auto: Auto | None) -> None:
    """The order, and what it can reach at best."""
    if arms > 1 and auto is None:
        tests = len(HEADLINE) * (arms - 1)
        least = min(1.0, smallest_p(rounds) * tests)
        enough = "" if least <= LEVEL else f": too few to claim a difference, --blocks {rounds_needed(tests)} can"
        say(
            console,
            f"{rounds} rounds of {arms} blocks: if all of them favour one side, p is {least:.3g} (corrected for "
            f"{tests} tests; a difference is claimed up to {LEVEL:g}){enough}",
        )
    if auto is not None:
        say(console, f"of these as many of {auto.most} rounds as find a difference of {auto.effect:.1%} with 80 %")
    if arms > 1 and pairs:
        say(console, f"before them {pairs} A/A pairs: what two blocks of one arm differ by is noise")
    period = len(williams(arms))
    if rounds % period and auto is None:
        say(console, f"note: the order is balanced only for a multiple of {period} rounds")


def announce_power(console: Console, pilot: Pilot | None, arms: int, rounds: int, auto: Auto | None) -> None:
    """What the A/A pairs say of the rounds to come."""
    if pilot is None:
        say(console, "note: the A/A pairs have no ratio, so the noise is not known")
        return
    tests = len(HEADLINE) * (arms - 1)
    reach = pilot.detectable(rounds, tests)
    parts = []
    for name, found in pilot.noise.items():
        least = "nothing can be shown" if reach[name] is None else f"{reach[name]:.1%} or more is found with 80 %"
        parts.append(
            f"{METRIC_NAMES[name]}: {least} (noise of a round {found.sd:.1%}, could be {found.low:.1%} to "
            f"{found.high:.1%})"
        )
    taken = "" if auto is None else f", taken for an effect of {auto.effect:g}"
    say(console, f"A/A control, {len(pilot.pairs)} pairs; {rounds} rounds{taken}. " + "; ".join(parts))


def announce_study(console: Console, plan: StudyPlan, arms: Sequence[str]) -> None:
    """What the sweep and the search will take at most."""
    parts = []
    if plan.rates is None or plan.rates:
        rates = ", ".join(f"{rate:g}" for rate in plan.sweep_rates)
        parts.append(f"rate sweep {rates} requests/s")
    if plan.targets:
        wanted = ", ".join(str(target) for target in plan.targets)
        parts.append(
            f"capacity within {wanted} and a queue that does not grow, to {plan.precision:.0%}, at most "
            f"{most_probes(plan.precision)} probes an arm from {plan.start:.4g} requests/s"
        )
    say(
        console,
        f"{'; '.join(parts)}. Each probe: {plan.seconds:g} s from a cold start. Arms: {', '.join(arms)}. "
        f"At most about {max(1, round(plan.minutes(len(arms))))} min; Ctrl-C keeps what was measured",
    )
