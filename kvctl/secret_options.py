"""Options that hold a secret: from the environment, a file or the config file, never from the command line, which every
user of the machine can read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvctl.errors import Problem
from kvctl.options import env, option

if TYPE_CHECKING:
    from router.secret import Secret

_FIT = re.compile(r"[!-~]{1,4096}")
_SHORTEST_TOKEN = 16
_LARGEST_FILE = 64 * 1024


def _not_shown(ctx: typer.Context, param: typer.CallbackParam, value: str | None) -> str | None:
    source = ctx.get_parameter_source(param.name or "")
    if value is not None and source is not None and source.name == "COMMANDLINE":
        name = param.opts[0]
        raise Problem(
            f"{name} is not taken from the command line, which every user of this machine can read: set {env(name)}, "
            f"or give {name}-file FILE"
        )
    return value


def secret_option(name: str, **settings: Any) -> Any:
    """An option without a visible value, and whose value on the command line is refused."""
    return option(name, callback=_not_shown, metavar="(environment only)", **settings)


AdminTokenFile = Annotated[
    Path | None,
    option("--admin-token-file", help="File with the token of the router's admin port (or KVCTL_ADMIN_TOKEN)."),
]
"""For commands that ask a router's admin port."""


def secret_of(value: str | None, file: Path | None, name: str) -> Secret | None:
    """The secret that an option, its environment twin or its file gives; white space around it is dropped.

    Raises:
        Problem: two are given, or it is nothing that a header can carry.
    """
    if value is not None and file is not None:
        raise Problem(f"{name} and {name}-file are both given; leave one out ({env(name)} counts as {name})")
    if file is not None:
        value = _read(file, name)
    if value is None:
        return None
    value = value.strip()
    if not _FIT.fullmatch(value):
        raise Problem(f"{name}: it must be 1 to 4096 visible ASCII characters in one line")

    from router.secret import Secret

    return Secret(value)


def admin_token(value: str | None, file: Path | None) -> Secret | None:
    """The admin port's token, long enough not to be guessed. Raises Problem."""
    token = secret_of(value, file, "--admin-token")
    if token is not None and len(token.reveal()) < _SHORTEST_TOKEN:
        raise Problem(
            f"--admin-token has fewer than {_SHORTEST_TOKEN} characters and could be guessed; "
            "`openssl rand -hex 32` makes a good one"
        )
    return token


def admin_headers(file: Path | None, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a request to an admin port carries: the token of the file, else of KVCTL_ADMIN_TOKEN; {} without one."""
    token = secret_of(None if file is not None else environment.get("KVCTL_ADMIN_TOKEN"), file, "--admin-token")
    if token is None:
        return {}
    from router.secret import bearer

    return {"authorization": bearer(token)}


def _read(file: Path, name: str) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(_LARGEST_FILE)
        return raw.decode("ascii")
    except OSError as error:
        raise Problem(f"{name}-file {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise Problem(f"{name}-file {file}: it must be 1 to 4096 visible ASCII characters in one line") from None
