"""`kvctl explain`: shows a decision of a running router, term by term."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvctl.errors import FAILED, UNREACHABLE, USAGE, Problem
from kvctl.options import ConfigFile, option
from kvctl.secret_options import AdminTokenFile, admin_headers

_MOST_LEGS = 16


def explain(
    decision: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="A decision id (x-kvctl-decision) or request id (x-request-id)."),
    ] = None,
    prompt: Annotated[
        str | None,
        option("--prompt", help="Where would this prompt go now? Nothing is sent."),
    ] = None,
    request: Annotated[
        Path | None,
        option("--request", help="The same for a request body in a JSON file ('-' is stdin)."),
    ] = None,
    model: Annotated[str | None, option("--model", help="With --prompt: the model.")] = None,
    mode: Annotated[
        str | None,
        option("--mode", help="With --prompt or --request: as this mode would decide."),
    ] = None,
    admin: Annotated[str, option("--admin", help="The router's admin port.")] = "http://127.0.0.1:9090",
    admin_token_file: AdminTokenFile = None,
    output: Annotated[str, option("--output", "-o", help="table or json.")] = "table",
    config: ConfigFile = None,
) -> None:
    """Why a request went, or would go, where it does. The answer to each request carries the id in its headers.

    Examples:

      kvctl explain d-1f3a9c2

      kvctl explain --prompt "Once upon a time" --mode least-loaded
    """
    if output not in ("table", "json"):
        raise Problem(f"-o must be table or json, not '{output}'")
    given = [value for value in (decision, prompt, request) if value is not None]
    if len(given) != 1:
        raise Problem("give one of: a decision or request id, --prompt TEXT, --request FILE")
    if not admin.startswith(("http://", "https://")):
        raise Problem(f"--admin is a URL such as http://127.0.0.1:9090, not '{admin}'")

    from urllib.parse import quote

    import httpx
    import msgspec

    headers = admin_headers(admin_token_file)
    earlier: list[Any] = []
    try:
        with httpx.Client(base_url=admin, timeout=30, trust_env=False, headers=headers) as client:
            if decision is not None:
                answer = client.get(f"/decisions/{quote(decision, safe='')}")
                earlier = _earlier(client, answer) if output == "table" else []
            else:
                body = _body(prompt, request, model)
                answer = client.post("/explain", content=body, params={"mode": mode} if mode else {})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Problem(
            f"no router's admin port at {admin}: {error or type(error).__name__}; "
            "start one with `kvctl serve`, or give --admin URL",
            code=UNREACHABLE,
        ) from None
    try:
        data: Any = msgspec.json.decode(answer.content)
    except msgspec.DecodeError:
        raise Problem(
            f"{admin} is not a router's admin port: it answered {answer.status_code} without JSON", code=UNREACHABLE
        ) from None
    if answer.status_code != 200:
        raise Problem(_refusal(data, answer.status_code, admin), code=USAGE if answer.status_code == 400 else FAILED)
    if not isinstance(data, dict) or not isinstance(data.get("candidates"), list):
        raise Problem(f"{admin} is not a router's admin port: its answer is no decision", code=UNREACHABLE)
    if output == "json":
        typer.echo(msgspec.json.encode(data).decode())
        return
    from kvctl.render import decision_report, refusal_report

    if data.get("winner") is None:
        refusal_report(data)
    else:
        for leg in earlier:
            decision_report(leg)
            typer.echo("")
        decision_report(data)


def _earlier(client: Any, answer: Any) -> list[Any]:
    """The decisions of the legs before this one, oldest first, where a stream broke and went on."""
    import msgspec

    found: list[Any] = []
    while len(found) < _MOST_LEGS and answer.status_code == 200:
        try:
            data = msgspec.json.decode(answer.content)
        except msgspec.DecodeError:
            break
        migration = data.get("migration") if isinstance(data, dict) else None
        before = migration.get("decision") if isinstance(migration, dict) else None
        if not isinstance(before, str):
            break
        answer = client.get(f"/decisions/{before}")
        if answer.status_code == 200:
            found.insert(0, msgspec.json.decode(answer.content))
    return found


def _refusal(data: Any, status: int, admin: str) -> str:
    """What the other side said; who the other side may be if it does not know the path."""
    error = data.get("error") if isinstance(data, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    if not isinstance(message, str):
        return f"{admin} answered {status}"
    if message.startswith("no such path"):
        return f"{admin} is not a router's admin port (`kvctl serve` names it when it starts): {message}"
    return message


def _body(prompt: str | None, request: Path | None, model: str | None) -> bytes:
    import sys

    import msgspec

    if prompt is not None:
        return msgspec.json.encode({"prompt": prompt} | ({"model": model} if model else {}))
    assert request is not None
    if str(request) == "-":
        return sys.stdin.buffer.read()
    try:
        return request.read_bytes()
    except OSError as error:
        raise Problem(f"{request}: {error}") from None
