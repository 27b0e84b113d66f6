"""Error answers in the shape OpenAI clients know: `{"error": {"message", "type", "code", "param"}}`.

Pure: builds bytes and `Answer`s. Also the small tree of exceptions by which parsing refuses a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from router.proxy.interface import Answer, Outcome

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_RETRY_LATER = frozenset((429, 503, 529))

REASONS: dict[int, str] = {status.value: status.phrase for status in HTTPStatus} | {529: "Overloaded"}


class MessageError(Exception):
    """Root of what is wrong with bytes from a peer."""


class BadRequest(MessageError):
    """A request the data plane refuses by itself; carries what to answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class BadResponse(MessageError):
    """An engine sent something that is not an HTTP/1.1 response."""


class BadChunk(MessageError):
    """The chunked coding of a body is broken."""


class BodyTooLarge(MessageError):
    """A body passed the limit while it was read."""


def error_body(
    status: int,
    message: str,
    code: str,
    param: str | None = None,
    extra: Mapping[str, object] | None = None,
) -> bytes:
    """The JSON of an error. `extra` adds keys beside the four, such as a limit, its value and the current one."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    error: dict[str, object] = {"message": message, "type": kind, "code": code, "param": param}
    if extra:
        error.update(extra)
    return msgspec.json.encode({"error": error})


def error_answer(
    status: int,
    message: str,
    code: str,
    param: str | None = None,
    extra: Mapping[str, object] | None = None,
    headers: tuple[tuple[str, str], ...] = (),
    retry_after: int = 1,
) -> Answer:
    """An `Answer` with that error; 429, 503 and 529 carry `Retry-After: retry_after` (seconds)."""
    if status in _RETRY_LATER:
        headers = (*headers, ("retry-after", str(retry_after)))
    return Answer(status, error_body(status, message, code, param, extra), headers=headers, code=code)


def refusal(error: BadRequest) -> Answer:
    """What a client hears whose request was refused."""
    return error_answer(error.status, str(error), error.code)


_GATEWAY: dict[Outcome, tuple[int, str, str]] = {
    Outcome.CONNECT_FAILED: (502, "engine_unreachable", "The engine could not be reached."),
    Outcome.CONNECT_TIMEOUT: (504, "engine_connect_timeout", "Connecting to the engine took too long."),
    Outcome.RESET: (502, "engine_reset", "The engine closed the connection before it answered."),
    Outcome.FIRST_BYTE_TIMEOUT: (504, "engine_timeout", "The engine did not begin to answer in time."),
    Outcome.IDLE_TIMEOUT: (504, "engine_stalled", "The engine fell silent inside the head of its answer."),
    Outcome.CUT: (502, "engine_cut", "The engine closed the connection inside the head of its answer."),
    Outcome.WORKER_DOWN: (502, "engine_down", "The engine stopped answering before it began."),
    Outcome.BAD_RESPONSE: (502, "engine_bad_response", "The engine sent something that is not HTTP."),
}


def gateway_answer(outcome: Outcome) -> Answer:
    """The answer for a leg that failed for good before anything was sent to the client."""
    status, code, message = _GATEWAY[outcome]
    return error_answer(status, message, code)


def internal_answer() -> Answer:
    return error_answer(500, "The router failed on this request; its log says why.", "internal_error")
