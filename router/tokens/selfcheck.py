"""Do our token ids equal the engine's? A canary text and a canary chat are tokenised here and by the engine's
`/tokenize`; a difference is named by its cause, and the service turns to the engine until a later check is good.

Touches nothing but the `fetch_tokenize` it is given. Run at start and for each new worker: a few short calls. The
canaries hold no user data, so the two decoded snippets in the message may be logged.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from router.tokens.chat import Chat
from router.tokens.remote import Fetched
from router.tokens.service import Cause, TokenService
from router.tokens.template import TemplateRejected, TemplateTooLong
from router.tokens.token_ids import Tokens
from router.tokens.tokenizer import LocalTokenizer

log = logging.getLogger(__name__)

FetchTokenize = Callable[[dict[str, Any]], Awaitable[Fetched]]
"""Asks one engine: the JSON object of a `/tokenize` request in, what it said out. Does not raise."""

_TEXT = "Canary 12345: Grüße, 日本語 \U0001f426.\n\tif x <= 3:\n        return 'it''s'\r\n  end  "
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Finds a canary.",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}
_SYSTEM = {"role": "system", "content": "You keep canaries."}
_TURNS = [
    {"role": "user", "content": "How many are there?"},
    {"role": "assistant", "content": "There are 12."},
    {"role": "user", "content": "Grüße 日本語 \U0001f426\n 3 < 45, and 's?"},
]
_CHATS: tuple[tuple[str, list[dict[str, Any]], list[dict[str, Any]] | None], ...] = (
    ("a chat", [_SYSTEM, *_TURNS], None),
    ("a chat with a tool", [_SYSTEM, *_TURNS], [_TOOL]),
    ("a chat without a system message", _TURNS, None),
)
_AROUND = 8
_DIFFERENCES = (Cause.VOCABULARY, Cause.BOS, Cause.TEMPLATE)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What the check found. `ok`: nothing differs, as far as it could be compared (`compared` counts the canaries).

    `cause` is also set where nothing could be compared; the service is switched only for a difference. `position` is
    the first differing token, `ours` and `theirs` the decoded texts around it.
    """

    ok: bool
    cause: Cause | None
    message: str
    compared: int = 0
    position: int | None = None
    ours: str = ""
    theirs: str = ""
    text_differs: bool = False
    chat_differs: bool = False
    max_model_len: int | None = None


async def check(service: TokenService, fetch_tokenize: FetchTokenize, model: str | None) -> CheckResult:
    """Compare `service`'s local tokenizer with one engine, and switch the service accordingly.

    Args:
        fetch_tokenize: asks the engine that is to be compared with.
        model: the name the engine serves the model by; None leaves it out.
    """
    local = service.local
    if local is None:
        return CheckResult(True, None, "there is no local tokenizer to check")
    result = await _compare(local, fetch_tokenize, {} if model is None else {"model": model})
    if result.cause in _DIFFERENCES:
        service.distrust(result.cause, text=result.text_differs, chat=result.chat_differs)
    elif result.ok and result.compared:
        service.trust()
    log.log(logging.INFO if result.ok else logging.WARNING, "Tokenizer self-check: %s", result.message)
    return result


async def _compare(local: LocalTokenizer, ask: FetchTokenize, named: dict[str, Any]) -> CheckResult:
    bare = await ask({**named, "prompt": _TEXT, "add_special_tokens": False})
    if bare.ids is None:
        return _nothing_to_compare(bare)
    ours = local.encode_text(_TEXT, add_special_tokens=False)
    if not np.array_equal(ours, bare.ids):
        what = "a plain text has other ids: not the same vocabulary"
        return _difference(Cause.VOCABULARY, what, local, ours, bare.ids, text=True, chat=True)
    special = await ask({**named, "prompt": _TEXT, "add_special_tokens": True})
    if special.ids is None:
        return _nothing_to_compare(special)
    chats = await _compare_chats(local, ask, named, special.max_model_len)
    ours = local.encode_text(_TEXT, add_special_tokens=True)
    if np.array_equal(ours, special.ids):
        return chats
    what = "a text has other special tokens around it (BOS, EOS)"
    return _difference(Cause.BOS, what, local, ours, special.ids, text=True, chat=chats.chat_differs)


async def _compare_chats(
    local: LocalTokenizer, ask: FetchTokenize, named: dict[str, Any], max_model_len: int | None
) -> CheckResult:
    if local.template is None:
        message = "texts agree; there is no chat template here, so the engine tokenises the chats"
        return CheckResult(True, Cause.NO_TEMPLATE_HERE, message, compared=2, max_model_len=max_model_len)
    compared, refused = 2, ""
    for name, messages, tools in _CHATS:
        asked: dict[str, Any] = {**named, "messages": messages, "add_generation_prompt": True}
        if tools is not None:
            asked["tools"] = tools
        theirs = await ask(asked)
        ours = _render(local, messages, tools)
        if theirs.ids is None and not 400 <= theirs.status < 500:
            return _nothing_to_compare(theirs)
        if theirs.ids is None and ours is None:
            continue  # both refuse it: they agree
        if theirs.ids is None:
            refused = theirs.message
            continue
        if ours is None:
            message = f"{name}: our template refuses it, the engine's does not"
            return CheckResult(False, Cause.TEMPLATE, message, compared, chat_differs=True)
        if not np.array_equal(ours, theirs.ids):
            return _chat_difference(name, local, ours, theirs.ids)
        compared += 1
    if compared == 2 and refused:
        message = f"texts agree; the engine tokenises no chat: {refused[:200]}"
        return CheckResult(True, Cause.NO_TEMPLATE_THERE, message, compared, max_model_len=max_model_len)
    if refused:
        message = f"the engine's template refuses a chat that ours takes: {refused[:200]}"
        return CheckResult(False, Cause.TEMPLATE, message, compared, chat_differs=True)
    return CheckResult(True, None, f"{compared} canaries have the engine's ids", compared, max_model_len=max_model_len)


def _render(local: LocalTokenizer, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> Tokens | None:
    try:
        return local.encode_chat(Chat(messages=messages, tools=tools))
    except (TemplateRejected, TemplateTooLong):
        return None


def _nothing_to_compare(fetched: Fetched) -> CheckResult:
    if fetched.status in (404, 405, 501):
        return CheckResult(False, Cause.NO_TOKENIZE, f"the engine has no /tokenize (status {fetched.status})")
    what = f"status {fetched.status}" if fetched.status else "no answer"
    return CheckResult(False, Cause.NO_ANSWER, f"the engine's /tokenize gave no ids ({what}): {fetched.message[:200]}")


def _chat_difference(name: str, local: LocalTokenizer, ours: Tokens, theirs: Tokens) -> CheckResult:
    if np.array_equal(ours[1:], theirs) or np.array_equal(ours, theirs[1:]):
        what = f"{name} differs by its first token only (BOS)"
        return _difference(Cause.BOS, what, local, ours, theirs, chat=True)
    what = f"{name} is rendered differently: not the same template"
    return _difference(Cause.TEMPLATE, what, local, ours, theirs, chat=True)


def _difference(
    cause: Cause,
    what: str,
    local: LocalTokenizer,
    ours: Tokens,
    theirs: Tokens,
    *,
    text: bool = False,
    chat: bool = False,
) -> CheckResult:
    shared = min(len(ours), len(theirs))
    differing = np.flatnonzero(ours[:shared] != theirs[:shared])
    position = int(differing[0]) if len(differing) else shared
    here, there = _snippet(local, ours, position), _snippet(local, theirs, position)
    return CheckResult(
        ok=False,
        cause=cause,
        message=f"{what}; from token {position} on: here {here!r}, there {there!r}",
        position=position,
        ours=here,
        theirs=there,
        text_differs=text,
        chat_differs=chat,
    )


def _snippet(local: LocalTokenizer, ids: Tokens, position: int) -> str:
    """Text around a position; ids that our vocabulary lacks are left out by the decoder."""
    return local.decode(ids[max(0, position - _AROUND) : position + _AROUND].tolist())
