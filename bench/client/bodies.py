"""Request bodies for the APIs that the client speaks. Pure.

A prompt goes out as token ids (completions only) or as text; a piece that has a text of its own makes the whole prompt
text. Cost: a join of cached byte strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from bench.workload.model import Request, Role
from bench.workload.tokens import Piece, PieceText
from bench.workload.words import PieceWords


class Api(StrEnum):
    """Which endpoint of the engine is asked."""

    COMPLETIONS = "completions"
    CHAT = "chat"
    RESPONSES = "responses"


PATHS = {Api.COMPLETIONS: "/v1/completions", Api.CHAT: "/v1/chat/completions", Api.RESPONSES: "/v1/responses"}
_EXACT: dict[str, object] = {"temperature": 0, "stream": True}
_STREAM: dict[str, object] = {"ignore_eos": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True, slots=True)
class BodyStyle:
    """What every request has in common.

    Args:
        model: its name.
        extra: merged into each body.
        lead: pieces put before every prompt (the nonce).
        api: the endpoint.
        words: send completions as text too.
        real_answers: put the answers that the engine gave into the later turns of a session, in place of the planned
            ones. Each arm then continues its own answers.
        session_header: header that carries the session; None: none does.
    """

    model: str
    extra: dict[str, object] = field(default_factory=dict)
    lead: tuple[Piece, ...] = ()
    api: Api = Api.COMPLETIONS
    words: bool = False
    real_answers: bool = False
    session_header: str | None = "x-session-id"

    @property
    def path(self) -> str:
        return PATHS[self.api]


class Bodies:
    """Makes bodies; keeps the bytes of pieces that come again."""

    def __init__(self, text: PieceText) -> None:
        self._text = text
        self._words = PieceWords(text)

    def body(self, request: Request, style: BodyStyle, answers: Sequence[str] = ()) -> bytes:
        """A streaming request for an answer of exactly `output_len` tokens (responses: at most).

        `answers`: what the session's turns before this one were answered; used with `style.real_answers`.
        """
        model = request.model or style.model
        fields = {"model": model} | _limits(style.api, request.output_len) | style.extra
        if request.body is not None:
            fields |= msgspec.json.decode(request.body, type=dict[str, object]) | {"model": model}
        name, prompt = self._prompt(request, style, answers)
        return msgspec.json.encode(fields)[:-1] + b',"%b":%b}' % (name, prompt)

    def _prompt(self, request: Request, style: BodyStyle, answers: Sequence[str]) -> tuple[bytes, bytes]:
        if style.api is Api.COMPLETIONS:
            pieces = style.lead + request.pieces
            if style.words or any(piece.text is not None for piece in request.pieces):
                return b"prompt", self._words.json(pieces)
            return b"prompt", self._text.json(pieces)
        messages = [
            b'{"role":"%b","content":%b}' % (role.encode(), content)
            for role, content in self._messages(request, style.lead, answers if style.real_answers else ())
        ]
        return b"messages" if style.api is Api.CHAT else b"input", b"[" + b",".join(messages) + b"]"

    def _messages(self, request: Request, lead: tuple[Piece, ...], answers: Sequence[str]) -> list[tuple[Role, bytes]]:
        """Messages with their JSON content. The last `answers` replace the last planned ones."""
        grouped: list[tuple[Role, list[Piece]]] = []
        for piece, role in zip(request.pieces, request.roles or [Role.USER] * len(request.pieces), strict=True):
            if grouped and grouped[-1][0] is role:
                grouped[-1][1].append(piece)
            else:
                grouped.append((role, [piece]))
        if lead and grouped and grouped[0][0] is Role.SYSTEM:
            grouped[0][1][:0] = lead
        elif lead:
            grouped.insert(0, (Role.SYSTEM, list(lead)))
        contents = [self._words.json(tuple(pieces)) for _, pieces in grouped]
        planned = [i for i, (role, _) in enumerate(grouped) if role is Role.ASSISTANT]
        for place, answer in zip(reversed(planned), reversed(answers), strict=False):
            contents[place] = msgspec.json.encode(answer)
        return [(role, content) for (role, _), content in zip(grouped, contents, strict=True)]


def headers(request: Request, style: BodyStyle, label: str) -> list[tuple[str, str]]:
    """Further headers of a request. A session's name holds the block's label, so that no block meets the one before."""
    found = list(request.headers)
    if style.session_header is not None and request.session:
        found.append((style.session_header, f"{label}-{request.session}"))
    if request.priority is not None:
        found.append(("x-kvctl-priority", str(request.priority)))
    return found


def _limits(api: Api, tokens: int) -> dict[str, object]:
    if api is Api.RESPONSES:
        return {"max_output_tokens": tokens} | _EXACT
    return {"max_tokens": tokens, "min_tokens": tokens} | _STREAM | _EXACT
