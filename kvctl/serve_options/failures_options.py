"""Options of `kvctl serve`: what it does about engines that fail, and how it stops."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from kvctl.options import option
from kvctl.quantities import size

_FAILURES = "Failures of engines"


class OnOff(StrEnum):
    ON = "on"
    OFF = "off"


RetryBudget = Annotated[
    float,
    option(
        "--retry-budget",
        min=0,
        max=1,
        rich_help_panel=_FAILURES,
        help="Retries on another worker for each request of the last 10 s; 0.2 is 20 % more load at most.",
    ),
]
RetryFloor = Annotated[
    float,
    option(
        "--retry-floor",
        min=0,
        rich_help_panel=_FAILURES,
        help="Retries a second that are allowed besides, so that a quiet router can retry.",
    ),
]
RetryAny = Annotated[
    bool,
    option(
        "--retry-any",
        rich_help_panel=_FAILURES,
        help="Retry requests that may have lasting effects as well (files, batches, adapters), not only generation.",
    ),
]
MigrationLimit = Annotated[
    int,
    option(
        "--migration-limit",
        min=0,
        max=15,
        rich_help_panel=_FAILURES,
        help="Times that a stream which breaks goes on at another worker; 0 is off. Completions and chats.",
    ),
]
MigrationBuffer = Annotated[
    str,
    option(
        "--migration-buffer",
        rich_help_panel=_FAILURES,
        metavar="SIZE",
        help="Kept of each stream for that, four bytes a token; a longer one ends when it breaks.",
    ),
]
Breaker = Annotated[
    OnOff,
    option("--breaker", rich_help_panel=_FAILURES, help="Circuit breaker: on, or off."),
]
BreakerFailures = Annotated[
    int,
    option(
        "--breaker-failures",
        min=1,
        rich_help_panel=_FAILURES,
        help="Failures of the transport in a row (reset, timeout, garbage) that take a worker out.",
    ),
]
BreakerErrors = Annotated[
    int,
    option("--breaker-errors", min=1, rich_help_panel=_FAILURES, help="5xx answers in a row that do."),
]
BreakerRate = Annotated[
    float,
    option(
        "--breaker-rate",
        min=0.01,
        max=1,
        rich_help_panel=_FAILURES,
        help="Share of failed requests that does, if the rest of the fleet fails less than half as often.",
    ),
]
BreakerWindow = Annotated[
    float,
    option("--breaker-window", min=1, rich_help_panel=_FAILURES, help="Seconds that this share is taken over."),
]
BreakerEjection = Annotated[
    float,
    option(
        "--breaker-ejection",
        min=0.1,
        rich_help_panel=_FAILURES,
        help="Seconds that a worker is out the first time; doubles with each repeat.",
    ),
]
BreakerEjectionMax = Annotated[
    float,
    option("--breaker-ejection-max", min=0.1, rich_help_panel=_FAILURES, help="The longest of these times."),
]
BreakerProbes = Annotated[
    int,
    option(
        "--breaker-probes",
        min=1,
        rich_help_panel=_FAILURES,
        help="Requests that may try a worker afterwards at a time, and good answers that take it back.",
    ),
]
BreakerMaxEjected = Annotated[
    float,
    option(
        "--breaker-max-ejected",
        min=0,
        max=1,
        rich_help_panel=_FAILURES,
        help="Share of a model's workers that may be out at a time. One always stays in.",
    ),
]
SlowStart = Annotated[
    float,
    option(
        "--slow-start",
        min=0,
        rich_help_panel=_FAILURES,
        help="Seconds in which a worker that has come up gets from a tenth of the others' load to all; 0 is at once.",
    ),
]
HealthTimeout = Annotated[
    float,
    option(
        "--health-timeout",
        min=0.05,
        rich_help_panel=_FAILURES,
        help="Seconds for a health check; three that get no answer take a worker out.",
    ),
]
DrainDelay = Annotated[
    float,
    option(
        "--drain-delay",
        min=0,
        rich_help_panel=_FAILURES,
        help="Seconds for which a router that is told to stop goes on serving while /ready says 503.",
    ),
]


def migration_buffer(text: str) -> int:
    """Bytes.

    Raises:
        Problem
    """
    return size(text, "--migration-buffer")
