"""The admin port's lock: a bearer token before everything but `/health`, and `/metrics` where that is left open."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from router.proxy.errors import error_body
from router.secret import Secret

_LONGEST = 1024


class TokenGuard:
    """ASGI middleware. `refused` counts requests without the token."""

    def __init__(self, app: ASGIApp, token: Secret, *, open_metrics: bool) -> None:
        self._app = app
        self._token = token
        self._open = {"/health", "/metrics"} if open_metrics else {"/health"}
        self.refused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open or self._good(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        self.refused += 1
        message = "the admin port needs its token: send it as 'Authorization: Bearer TOKEN' (KVCTL_ADMIN_TOKEN)"
        answer = Response(
            error_body(401, message, "invalid_admin_token"),
            401,
            {"www-authenticate": "Bearer"},
            media_type="application/json",
        )
        await answer(scope, receive, send)

    def _good(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").strip().partition(" ")
        return scheme.lower() == "bearer" and len(given) <= _LONGEST and self._token.equals(given.strip().encode())
