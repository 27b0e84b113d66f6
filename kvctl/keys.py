"""`kvctl keys`: makes API keys for callers of a router."""

from __future__ import annotations

from typing import Annotated

import typer

from kvctl.errors import Problem
from kvctl.help_pages import HelpCommand
from kvctl.options import option

group = typer.Typer(no_args_is_help=True, help="API keys for callers of a router.\n\nExample: kvctl keys new team-a")


@group.callback()
def keys() -> None:
    """API keys for callers of a router."""


@group.command(cls=HelpCommand)
def new(
    name: Annotated[str, typer.Argument(help="Who will use the key; named in logs and metrics.")],
    tenant: Annotated[
        str | None, option("--tenant", help="Whose requests these are in the queue; NAME's by default.")
    ] = None,
    allow_model: Annotated[
        list[str] | None, option("--allow-model", help="A model it may use; all without. Repeatable.")
    ] = None,
    requests_per_minute: Annotated[int | None, option("--requests-per-minute", min=1, help="Limit.")] = None,
    tokens_per_minute: Annotated[
        int | None, option("--tokens-per-minute", min=1, help="Limit of prompt and answer together.")
    ] = None,
    concurrent_requests: Annotated[int | None, option("--concurrent-requests", min=1, help="Limit.")] = None,
    expires: Annotated[str | None, option("--expires", help="A date such as 2027-01-31; never without.")] = None,
    output: Annotated[str, option("--output", "-o", help="text or json.")] = "text",
) -> None:
    """Print a new key, once, and the line for the file of `kvctl serve --api-keys-file`.

    Example:  kvctl keys new team-a --tokens-per-minute 100000
    """
    if output not in ("text", "json"):
        raise Problem(f"-o must be text or json, not '{output}'")
    import json

    from router.callers.keys import KeysFileError, caller_of, digest_of, new_key

    key = new_key()
    entry: dict[str, object] = {"name": name, "sha256": digest_of(key.encode()).hex()}
    given = {
        "tenant": tenant,
        "models": allow_model,
        "requests-per-minute": requests_per_minute,
        "tokens-per-minute": tokens_per_minute,
        "concurrent-requests": concurrent_requests,
        "expires": expires,
    }
    entry |= {field: value for field, value in given.items() if value}
    try:
        caller_of(entry, f"key '{name}'")
    except KeysFileError as error:
        raise Problem(str(error)) from None
    if output == "json":
        print(json.dumps({"key": key, "entry": entry}))
        return
    line = json.dumps(entry)
    print(f"key (shown once, kept nowhere):\n  {key}\n")
    print(f"for a keys file of JSON lines:\n  {line}\nfor one in YAML:\n  - {line}")
