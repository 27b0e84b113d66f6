"""Options of `kvctl bench` that say how its client speaks: which API, text or token ids, whose answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from kvctl.options import option

_LOAD = "Workload"


class ApiName(StrEnum):
    """The endpoints, as `bench.client.bodies.Api` has them."""

    COMPLETIONS = "completions"
    CHAT = "chat"
    RESPONSES = "responses"


Api = Annotated[
    ApiName,
    option(
        "--api",
        rich_help_panel=_LOAD,
        help="Endpoint to send to. Chat and responses take text: one word a planned token.",
    ),
]

Words = Annotated[
    bool,
    option("--words", rich_help_panel=_LOAD, help="Send completions as text too, in place of token ids."),
]

RealAnswers = Annotated[
    bool,
    option(
        "--real-answers",
        rich_help_panel=_LOAD,
        help="Later turns hold the answers that the engine gave, not the planned ones; each arm its own.",
    ),
]
