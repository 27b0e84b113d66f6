"""Options of `kvctl serve`: HTTP as it is spoken on both sides, and TLS."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kvctl.errors import Problem
from kvctl.options import option
from kvctl.quantities import size

if TYPE_CHECKING:
    from router.tls import EngineFiles, ServerFiles

_HTTP = "HTTP"
_TLS = "TLS"
_LARGEST_HEAD = 16 << 20

MaxBody = Annotated[
    str, option("--max-body", rich_help_panel=_HTTP, metavar="SIZE", help="Largest request body, such as 64MiB.")
]
MaxHead = Annotated[
    str,
    option("--max-head", rich_help_panel=_HTTP, metavar="SIZE", help="Largest head of a request or an answer."),
]
MaxHeaders = Annotated[
    int, option("--max-headers", min=1, max=10_000, rich_help_panel=_HTTP, help="Headers of a request at most.")
]
RequestTimeout = Annotated[
    float,
    option(
        "--request-timeout",
        min=0.01,
        rich_help_panel=_HTTP,
        help="Seconds a client has for the head of a request, and again for its body (one more for each 64 KiB).",
    ),
]
KeepaliveTimeout = Annotated[
    float,
    option(
        "--keepalive-timeout",
        min=0.01,
        rich_help_panel=_HTTP,
        help="Seconds after which an unused connection of a client is closed.",
    ),
]
PoolIdleTimeout = Annotated[
    float,
    option(
        "--pool-idle-timeout",
        min=0.01,
        rich_help_panel=_HTTP,
        help="Seconds after which an unused connection to an engine is closed; less than the engine's own.",
    ),
]
MaxRequestsPerConnection = Annotated[
    int,
    option(
        "--max-requests-per-connection",
        min=0,
        rich_help_panel=_HTTP,
        help="A client's connection ends after so many requests; 0: any number.",
    ),
]
MaxConnectionAge = Annotated[
    float,
    option(
        "--max-connection-age",
        min=0,
        rich_help_panel=_HTTP,
        help="A client's connection older than so many seconds ends with its next answer; 0: no matter how old.",
    ),
]
XForwarded = Annotated[
    str,
    option(
        "--x-forwarded",
        rich_help_panel=_HTTP,
        metavar="off|append|replace",
        help="Tell engines of the client in x-forwarded-for, -proto, -host and forwarded: not at all (what the client "
        "sent is passed on), after what the client sent, or instead of it.",
    ),
]
TlsCert = Annotated[
    Path | None,
    option("--tls-cert", rich_help_panel=_TLS, help="Speak TLS on the data port with this certificate chain (PEM)."),
]
TlsKey = Annotated[
    Path | None,
    option("--tls-key", rich_help_panel=_TLS, help="Its key (PEM), unless it is in the file of the certificate."),
]
TlsClientCa = Annotated[
    Path | None,
    option("--tls-client-ca", rich_help_panel=_TLS, help="Take only clients with a certificate that these CAs signed."),
]
TlsHandshakeTimeout = Annotated[
    float,
    option("--tls-handshake-timeout", min=0.01, rich_help_panel=_TLS, help="Seconds a client has for the handshake."),
]
UpstreamTlsCa = Annotated[
    Path | None,
    option(
        "--upstream-tls-ca",
        rich_help_panel=_TLS,
        help="Who signs the certificates of https workers, instead of the CAs that the system trusts.",
    ),
]
UpstreamTlsCert = Annotated[
    Path | None,
    option("--upstream-tls-cert", rich_help_panel=_TLS, help="The router's own certificate for https workers (PEM)."),
]
UpstreamTlsKey = Annotated[
    Path | None,
    option("--upstream-tls-key", rich_help_panel=_TLS, help="Its key, unless it is in the file of the certificate."),
]
UpstreamTlsInsecure = Annotated[
    bool,
    option(
        "--upstream-tls-insecure",
        rich_help_panel=_TLS,
        help="Do not check the certificates of https workers. Only to try something out.",
    ),
]


def max_body(text: str) -> int:
    """Bytes.

    Raises:
        Problem
    """
    return size(text, "--max-body")


def max_head(text: str) -> int:
    """Bytes; bounded, since a head is held in memory and read at once.

    Raises:
        Problem
    """
    found = size(text, "--max-head")
    if not 256 <= found <= _LARGEST_HEAD:
        raise Problem(f"--max-head must be from 256 bytes to {_LARGEST_HEAD >> 20}MiB")
    return found


def server_files(cert: Path | None, key: Path | None, client_ca: Path | None) -> ServerFiles | None:
    """The files of the data port's TLS, None for plain HTTP.

    Raises:
        Problem: a key or a client CA without a certificate.
    """
    from router.tls import ServerFiles

    if cert is None:
        for given, name in ((key, "--tls-key"), (client_ca, "--tls-client-ca")):
            if given is not None:
                raise Problem(f"{name} is for TLS on the data port; give the certificate too, with --tls-cert")
        return None
    return ServerFiles(cert, key, client_ca)


def engine_files(ca: Path | None, cert: Path | None, key: Path | None, insecure: bool) -> EngineFiles:
    """The files of TLS with https workers.

    Raises:
        Problem: a key without a certificate, or a CA that would not be asked.
    """
    from router.tls import EngineFiles

    if cert is None and key is not None:
        raise Problem("--upstream-tls-key belongs to a certificate; give it too, with --upstream-tls-cert")
    if insecure and ca is not None:
        raise Problem("--upstream-tls-insecure checks nothing; leave out --upstream-tls-ca, or the former")
    return EngineFiles(ca, cert, key, insecure)
