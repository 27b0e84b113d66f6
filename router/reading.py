"""A request's headers and body -> what routing is asked: pins, hints, mode, model, block keys.

Between the data plane's bytes and the core. Pure apart from counting its own request ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from router.admission import AdmissionSettings
from router.core import RoutingCore
from router.hints import READ, Asked, checked_weights, from_headers, with_nvext, with_session_field
from router.migration_settings import MigrationSettings
from router.model import BadRequest, Degraded, RouteRequest, UnknownModel
from router.policies.registry import UnknownMode, mode_name
from router.retry import RetrySettings
from router.tokens.body import Body
from router.tokens.conversation import media_mark
from router.tokens.service import Source, TokenResult

_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """`allow_mode_override` lets a request choose its mode and its kv weights. `session_header` (lower case) is read
    before the usual session headers; `session_field` is a top-level string field of the body, read where no header
    names a session. `aliases` are other names for models, name -> model.
    """

    mode: str = "kv"
    model: str | None = None
    retry: RetrySettings = field(default_factory=RetrySettings)
    migration: MigrationSettings = field(default_factory=MigrationSettings)
    allow_mode_override: bool = False
    session_header: str | None = None
    session_field: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)


class RequestReader:
    """`prefix` makes the ids of requests that bring none."""

    def __init__(self, core: RoutingCore, settings: DispatchSettings, prefix: str) -> None:
        self.core = core
        self.settings = settings
        self._prefix = prefix
        self._session_header = settings.session_header.encode() if settings.session_header else None
        self._count = 0
        self._plain: dict[int, list[tuple[bytes, bytes]]] = {}
        """Headers that ask for nothing, by identity, which is theirs as long as they are kept here."""

    def request(
        self, headers: list[tuple[bytes, bytes]], raw: bytes = b"", body: Body | None = None
    ) -> tuple[RouteRequest, str]:
        """The request's id, pins, hints and mode from its headers and, where there is one, its body's `nvext`."""
        asked = self._asked(headers)
        request = RouteRequest(id=self.new_id(), model="")
        if body is not None:
            if body.nvext is not None:
                asked, ids = with_nvext(asked, body.nvext)
                _use_ids(body, ids)
            if self.settings.session_field is not None:
                asked = with_session_field(asked, raw, self.settings.session_field)
        if asked is None:
            return request, self.settings.mode
        request.id = asked.request_id or request.id
        request.pin_worker, request.pin_param = asked.pin_worker, asked.pin_param
        request.pin_rank, request.rank_param = asked.pin_rank, asked.rank_param
        request.hints = asked.hints
        if not asked.weights and asked.mode is None:
            return request, self.settings.mode
        if not self.settings.allow_mode_override:
            name = "x-kvctl-mode" if asked.mode is not None else "x-kvctl-weights"
            raise BadRequest(
                f"{name} is not allowed here; the router takes it with --allow-mode-override",
                param=name,
            )
        request.weights = checked_weights(asked.weights)
        return request, self.settings.mode if asked.mode is None else self.mode(asked.mode)

    def new_id(self) -> str:
        self._count += 1
        return f"r-{self._prefix}{self._count:x}"

    def plain(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Whether these headers have been read before and none of them is for us; False says nothing."""
        return self._plain.get(id(headers)) is headers

    def _asked(self, headers: list[tuple[bytes, bytes]]) -> Asked | None:
        """What headers ask for. The heads of a client that asks for nothing repeat, and are the same list then."""
        if self.plain(headers):
            return None
        asked = from_headers(headers, self._session_header)
        if asked is None and not any(name in READ for name, _value in headers):
            if len(self._plain) >= _REMEMBERED:
                self._plain.clear()
            self._plain[id(headers)] = headers
        return asked

    @staticmethod
    def mode(spelling: str) -> str:
        try:
            return mode_name(spelling)
        except UnknownMode as error:
            raise BadRequest(str(error), param="x-kvctl-mode") from None

    def model(self, body: Body) -> str:
        model = body.model or self.settings.model or ""
        self.check_model(model)
        return model

    def check_model(self, model: str) -> None:
        """Raises UnknownModel when every worker has told its models and none has this one."""
        view = self.core.fleet.view
        known = (self.settings.model,) if self.settings.model else view.models
        if not model or not known or model in known:
            return
        if self.settings.model is None and any(not worker.models for worker in view.members):
            return
        raise UnknownModel(
            f"the model '{model[:200]}' is not served here; available: {', '.join(known[:20])}", param="model"
        )

    def take_tokens(self, request: RouteRequest, body: Body, result: TokenResult) -> None:
        request.prompt_tokens = len(result.ids)
        request.degraded = result.degraded
        request.joins = body.prompts == 1 and body.n == 1 and body.reads_cache
        view = self.core.fleet.view
        lora = request.model if request.model in view.adapters else None
        request.keys = self.core.keys_for(result.ids, lora=lora, salt=body.cache_salt)
        if result.source is Source.APPROXIMATE:
            return
        media = body.media
        if body.chat is not None and result.source is not Source.LOCAL:
            media = media_mark(body.chat.messages)
        if media is not None:
            request.own_keys = self.core.keys_for(result.ids, lora=lora, salt=body.cache_salt, media=media)
            request.degraded = (*result.degraded, Degraded.MULTIMODAL)
        elif self.core.chunks is not None:
            request.chunks = self.core.chunks.prompt(result.ids)
        longest = view.longest_context(request.model)
        if longest is not None and longest <= request.prompt_tokens:
            raise BadRequest(
                f"the prompt has {request.prompt_tokens} tokens, but the model's context holds {longest} in all",
                param="prompt" if body.chat is None else "messages",
            )


def _use_ids(body: Body, ids: list[int] | None) -> None:
    """Token ids that the caller gave beside the prompt are the prompt, for routing."""
    if not ids:
        return
    if not 0 <= min(ids) <= max(ids) < 2**32:
        raise BadRequest("nvext.token_data: token ids are integers from 0 to 2^32 - 1", param="nvext.token_data")
    if body.chat is not None:
        body.media = media_mark(body.chat.messages)
    body.ids, body.text, body.chat = np.array(ids, np.uint32), None, None


class _ModelOnly(msgspec.Struct):
    model: str | None = None


_MODEL_ONLY = msgspec.json.Decoder(_ModelOnly)


def model_in(body: bytes) -> str:
    """The `model` field of a JSON body; "" where there is none or the body is something else (an upload)."""
    try:
        return _MODEL_ONLY.decode(body).model or ""
    except (msgspec.DecodeError, RecursionError):
        return ""
