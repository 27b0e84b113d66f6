"""Options of `kvctl serve`: addresses and the fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from kvctl.options import option

_FLEET = "Fleet"

Host = Annotated[str, option("--host", help="Address of the data port.")]
Port = Annotated[int, option("--port", min=0, max=65535, help="Data port; 0 takes a free one.")]
AdminHost = Annotated[str, option("--admin-host", help="Address of the admin port.")]
AdminPort = Annotated[
    int,
    option(
        "--admin-port",
        min=0,
        max=65535,
        help="Admin port (metrics, workers, decisions); 0 takes a free one.",
    ),
]
Worker = Annotated[
    list[str] | None,
    option(
        "--worker",
        rich_help_panel=_FLEET,
        metavar="SPEC",
        help="An engine: URL[,id=…][,kv=tcp://…][,replay=tcp://…][,model=…][,ranks=N][,block-size=N]. Repeatable.",
    ),
]
WorkersFile = Annotated[
    Path | None,
    option(
        "--workers-file",
        rich_help_panel=_FLEET,
        help="A SPEC a line, or YAML/JSON; read again whenever it changes.",
    ),
]
Sim = Annotated[
    int,
    option("--sim", min=0, max=64, rich_help_panel=_FLEET, help="Embed N simulated engines."),
]
SimSpeedup = Annotated[
    float,
    option("--sim-speedup", min=0.01, rich_help_panel=_FLEET, help="Their speed-up."),
]
Model = Annotated[
    str | None,
    option(
        "--model",
        rich_help_panel=_FLEET,
        metavar="PATH_OR_NAME",
        help="The one model to serve by name, or a folder whose tokenizer is used.",
    ),
]
ModelAlias = Annotated[
    list[str] | None,
    option(
        "--model-alias",
        rich_help_panel=_FLEET,
        metavar="NAME=MODEL",
        help="Another name that clients may use for a model. Repeatable.",
    ),
]
HealthInterval = Annotated[
    float,
    option(
        "--health-interval",
        min=0.05,
        rich_help_panel=_FLEET,
        help="Seconds between health checks.",
    ),
]
LogLevel = Annotated[str, option("--log-level", help="debug, info, warning or error.")]
Output = Annotated[str, option("--output", "-o", help="text, or json: one line when ready.")]
