"""Options of `kvctl bench` on design and verdict: annotated types, and what their text means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from kvctl.errors import Problem
from kvctl.options import option

if TYPE_CHECKING:
    from bench.pilot import Auto
    from bench.slo import Target

PANEL = "Design and verdict"
RATES = "Sweep and capacity, in place of the comparison"
_MOST_RATES = 50

Blocks = Annotated[
    str | None,
    option(
        "--blocks",
        rich_help_panel=PANEL,
        metavar="N|auto[:EFFECT]",
        help="Blocks an arm (rounds of the design); more can prove smaller differences. auto: as many as find a "
        "difference of EFFECT (5%) with 80 %, by the noise of A/A pairs; at most 40.",
    ),
]
Aa = Annotated[
    int | None,
    option(
        "--aa",
        min=0,
        max=100,
        rich_help_panel=PANEL,
        metavar="PAIRS",
        help="A/A pairs before the run: two blocks of one arm each. They show the noise, and so what the run can "
        "show. Default 2; with --blocks auto 4.",
    ),
]
Prime = Annotated[
    bool,
    option(
        "--prime",
        rich_help_panel=PANEL,
        help="Before each block send what the sessions of a group share, one request after the other; these are "
        "reported apart.",
    ),
]
SloOption = Annotated[
    str | None,
    option(
        "--slo",
        rich_help_panel=PANEL,
        metavar="LIMITS",
        help="For goodput and --capacity: ttft_p95=500ms,itl_p95=50ms,e2e=10s (any of them; p95 if not said). "
        "Goodput asks them of each request.",
    ),
]
CapacityOption = Annotated[
    bool,
    option(
        "--capacity",
        rich_help_panel=RATES,
        help="Find the largest rate at which each arm keeps --slo and its queue does not grow.",
    ),
]
RateSweep = Annotated[
    str | None,
    option(
        "--rate-sweep",
        rich_help_panel=RATES,
        metavar="RATES",
        help="Each arm at these requests/s: 2,4,8 or auto (a quarter of --rate, doubled until no arm is stable).",
    ),
]
Precision = Annotated[
    float,
    option(
        "--capacity-precision",
        min=0.005,
        max=1.0,
        rich_help_panel=RATES,
        help="How close the rates around a capacity are to be: 0.05 is 5 %.",
    ),
]
ProbeSeconds = Annotated[
    float,
    option(
        "--probe-seconds", min=1.0, max=3600.0, rich_help_panel=RATES, help="Schedule of a probe; 72 requests at least."
    ),
]


def blocks_of(text: str | None) -> int | Auto | None:
    """`8`, `auto`, `auto:3%`. Raises Problem."""
    from bench.pilot import Auto

    if text is None:
        return None
    if text.isdecimal() and 1 <= int(text) <= 10_000:
        return int(text)
    try:
        return Auto.parse(text)
    except ValueError as error:
        raise Problem(f"--blocks {error}") from None


def rates_of(text: str | None) -> tuple[float, ...] | None:
    """`2,4,8`, or None for auto; empty where no sweep is asked for. Raises Problem."""
    if text is None:
        return ()
    if text.strip() == "auto":
        return None
    try:
        rates = tuple(dict.fromkeys(float(part) for part in text.split(",") if part.strip()))
    except ValueError:
        rates = ()
    if not rates or not all(0.001 <= rate <= 100_000 for rate in rates) or len(rates) > _MOST_RATES:
        raise Problem(f"--rate-sweep {text!r}: auto, or up to {_MOST_RATES} rates above 0 such as 2,4,8 wanted")
    return rates


def targets_of(slo: str | None, capacity: bool) -> tuple[Target, ...]:
    """The objectives of a search. Raises Problem."""
    from bench.slo import targets

    if slo is None:
        if capacity:
            raise Problem("--capacity needs objectives: --slo ttft_p95=500ms,itl_p95=50ms")
        return ()
    try:
        return targets(slo)
    except ValueError as error:
        raise Problem(f"--slo {error}") from None
