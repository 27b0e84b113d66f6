"""What is kept of a request while it runs, where somebody follows requests to their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.callers.keys import Caller
from router.callers.limits import Account
from router.proxy.interface import Answer, Leg, Outcome

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class RequestRecord:
    """The data plane's `Record`, and what the routing side adds: `at` is seconds since the epoch when the request was
    complete; `caller`: whose key it brought; `account`: where it is counted as open; `charge`: the tokens counted for
    it beforehand, of which `expected_output` are the answer's; `tokenise_s`: from body to token ids; `span`: its
    trace."""

    __slots__ = (
        "account",
        "answer",
        "at",
        "began",
        "bytes_out",
        "caller",
        "charge",
        "expected_output",
        "leg",
        "legs",
        "outcome",
        "sent",
        "span",
        "status",
        "tokenise_s",
    )

    def __init__(self, at: float) -> None:
        self.at = at
        self.leg: Leg | None = None
        self.legs = 0
        self.answer: Answer | None = None
        self.status = 0
        self.outcome: Outcome | None = None
        self.sent = 0.0
        self.began = 0.0
        self.bytes_out = 0
        self.caller: Caller | None = None
        self.account: Account | None = None
        self.charge: tuple[int, int] | None = None
        self.expected_output = 0
        self.tokenise_s = 0.0
        self.span: Span | None = None
