"""Options of `kvctl serve`: API keys, the engines' key, the admin port's token, access log, traces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kvctl.errors import Problem
from kvctl.options import option
from kvctl.secret_options import secret_option

if TYPE_CHECKING:
    from router.journal.access_log import AccessLogSettings
    from router.journal.trace_settings import TraceSettings

_KEYS = "Keys"
_JOURNAL = "Access log and traces"

ApiKeysFile = Annotated[
    Path | None,
    option(
        "--api-keys-file",
        rich_help_panel=_KEYS,
        help="Callers need a key of this file (`kvctl keys new NAME` makes one); read again when it changes.",
    ),
]
UpstreamKey = Annotated[
    str | None,
    secret_option(
        "--upstream-key",
        rich_help_panel=_KEYS,
        help="The engines' API key: takes the place of a client's Authorization, and goes with health checks.",
    ),
]
UpstreamKeyFile = Annotated[
    Path | None, option("--upstream-key-file", rich_help_panel=_KEYS, help="The same from a file.")
]
AdminToken = Annotated[
    str | None,
    secret_option("--admin-token", rich_help_panel=_KEYS, help="Token of the admin port; needed beyond loopback."),
]
AdminTokenFile = Annotated[
    Path | None, option("--admin-token-file", rich_help_panel=_KEYS, help="The same from a file.")
]
AdminOpenMetrics = Annotated[
    bool,
    option("--admin-open-metrics", rich_help_panel=_KEYS, help="/metrics on the admin port asks for no token."),
]
AccessLog = Annotated[
    str,
    option(
        "--access-log",
        rich_help_panel=_JOURNAL,
        metavar="off|FILE|-",
        help="A line a request at its end; - is standard output. SIGHUP opens the file anew.",
    ),
]
AccessLogFormat = Annotated[str, option("--access-log-format", rich_help_panel=_JOURNAL, help="text or json.")]
OtelEndpoint = Annotated[
    str | None,
    option(
        "--otel-endpoint",
        rich_help_panel=_JOURNAL,
        metavar="URL",
        help="Send OpenTelemetry traces there (OTLP over HTTP); also set by the OTEL_* variables. "
        "Needs `pip install 'kvctl\\[otel]'`.",
    ),
]
OtelSampleRatio = Annotated[
    float | None,
    option(
        "--otel-sample-ratio",
        min=0,
        max=1,
        rich_help_panel=_JOURNAL,
        help="Share of the requests that are traced where the client's traceparent does not say; by default "
        "OTEL_TRACES_SAMPLER decides, else all.",
    ),
]


def access_log(where: str, form: str) -> AccessLogSettings | None:
    """Raises Problem."""
    from router.journal.access_log import AccessLogSettings, LogFormat

    if form not in (*LogFormat,):
        raise Problem(f"--access-log-format must be text or json, not '{form}'")
    if where == "off":
        return None
    return AccessLogSettings(None if where == "-" else Path(where), LogFormat(form))


def traces(endpoint: str | None, ratio: float | None) -> TraceSettings | None:
    """Raises Problem."""
    from router.journal.trace_settings import TraceSettings, wanted_by

    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise Problem(f"--otel-endpoint is a URL such as http://127.0.0.1:4318, not '{endpoint}'")
    if endpoint is None and not wanted_by(os.environ):
        return None
    return TraceSettings(endpoint, ratio)
