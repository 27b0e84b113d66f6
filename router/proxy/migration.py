"""Follows a stream so that it can go on elsewhere when it breaks: what the client has, in whole events, and as what
events of another engine have to be written to fit on to it.

One `Carry` belongs to one request. It takes the payload of the engines' answers and gives what the client gets: of the
first engine its events as they came (without token ids that only the router asked for), of a later one the events
written anew, with the identity of the first. An event is passed on when its last byte has come. Touches nothing else.

The tokens of which the client has the text are known because the engine tells their ids (vLLM's `return_token_ids`). A
stream may go on only behind a token whose text has gone out whole: an engine whose prompt ends inside a character
sends the whole prompt's text with the next one (seen with vLLM's decoder). `clean` counts the ids up to there.

Cost: 3 to 5 us an event. Memory: four bytes a token of prompt and answer, the text of chats and where there are stop
strings, and one unfinished event; all bounded by `limit_bytes`, with eight times as much for an event, whose ids are
in decimal.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from router.proxy.heads import CHUNKED, ResponseHead
from router.proxy.interface import Outcome
from router.proxy.seam import StopSeam
from router.proxy.written import (
    DONE,
    Identity,
    chat_choice,
    completion_choice,
    framed,
    usage_event,
    whole_usage,
    without_ids,
)

_END = re.compile(rb"\r?\n\r?\n")
_LONGEST_END = 4
_LAST_CHUNK = b"0\r\n\r\n"
_INCOMPLETE = "\ufffd"
_EVENT_ALLOWANCE = 64 * 1024


_NOTHING = msgspec.Raw(b"")


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class _Error(msgspec.Struct):
    code: int | str | None = None


class _Event(msgspec.Struct):
    id: str | None = None
    created: int | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    prompt_token_ids: list[int] | None = None
    usage: msgspec.Raw = _NOTHING
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Event).decode
_encode = msgspec.json.Encoder().encode


class Carry:
    """What is known of one followed stream.

    `why` says why it cannot go on elsewhere; empty while it can. `turn` is set when the router has to end the leg:
    OK, the answer is complete; ENGINE_ERROR, the engine reported that it has failed.
    """

    __slots__ = (
        "_blind",
        "_checked",
        "_done",
        "_finish",
        "_held",
        "_identity",
        "_limit",
        "_output",
        "_part",
        "_prompt_tokens",
        "_seam",
        "_size",
        "_sure",
        "_text",
        "_usage_sent",
        "chat",
        "clean",
        "ids",
        "include_stop",
        "include_usage",
        "last_words",
        "moves",
        "moving",
        "prompt",
        "raw",
        "stops",
        "strip",
        "turn",
        "why",
    )

    def __init__(
        self,
        *,
        raw: bytes,
        chat: bool,
        strip: bool,
        limit_bytes: int,
        include_usage: bool = False,
        stops: tuple[str, ...] = (),
        include_stop: bool = False,
    ) -> None:
        """`raw`: the body, as the first engine gets it; `strip`: the client has not asked for token ids;
        `include_usage`: but for the usage."""
        self.raw = raw
        self.chat = chat
        self.strip = strip
        self.include_usage = include_usage
        self.stops = stops
        self.include_stop = include_stop
        self.prompt: array[int] | None = None
        self.ids: array[int] = array("I")
        """All generated tokens that are known. Those up to `clean` are in the client's text."""
        self.clean = 0
        self.moves = 0
        """How often the stream has gone on elsewhere."""
        self.moving = False
        """Whether it is to go on elsewhere, and nothing has come from there yet."""
        self.why = ""
        self.turn: Outcome | None = None
        self.last_words = b""
        """What an engine said that failed; the client gets it if nobody goes on."""
        self._limit = limit_bytes
        self._size = 0
        self._part = bytearray()
        self._blind = False
        self._identity: Identity | None = None
        self._text: list[str] = []
        self._sure = True
        self._checked = False
        self._finish: str | None = None
        self._done = False
        self._usage_sent = False
        self._seam: StopSeam | None = None
        self._held = ""
        self._prompt_tokens = 0
        self._output = 0

    # What the relay asks.

    @staticmethod
    def follows(head: ResponseHead) -> bool:
        """Whether this is an answer that can be followed: a good stream of events, in chunks, not compressed."""
        stream = head.content_type.startswith(b"text/event-stream") and not head.encoded
        return head.status == 200 and stream and head.length == CHUNKED

    def wire(self, payload: Iterable[bytes], chunked: bool) -> bytes:
        """The next payload of an engine -> bytes for the client, as one chunk if the client's answer is `chunked`."""
        self.moving = False
        self.last_words = b""
        return framed(self._feed(b"".join(payload)), chunked)

    def end(self, chunked: bool) -> bytes | None:
        """The engine's answer is over -> the last bytes for the client; None: it ended too early and may go on."""
        if not self.why and not self._finish and not self._done:
            return None
        rest = bytes(self._part)
        self._part.clear()
        return framed(rest, chunked) + (_LAST_CHUNK if chunked else b"")

    def finish(self, chunked: bool) -> bytes | None:
        """The stream broke. What is missing of it, if all of the text is out; None if it is not."""
        if self._done:
            return _LAST_CHUNK if chunked else b""
        if self._finish is None or self.why:
            return None
        self._part.clear()
        return framed(self._closing(), chunked) + (_LAST_CHUNK if chunked else b"")

    def give_up(self, chunked: bool) -> bytes | None:
        """Nobody goes on: an engine's own last words, with the end, if it had any."""
        if not self.last_words:
            return None
        return framed(self.last_words, chunked) + (_LAST_CHUNK if chunked else b"")

    # What the routing side asks, when the stream is broken.

    @property
    def begun(self) -> bool:
        """Whether the client has an event. If not, the request can be sent again as it is."""
        return self._identity is not None

    @property
    def needs_text(self) -> bool:
        """Whether the text of the ids has to be known, to find out how much of it the client has."""
        kept_back = self.stops and (not self.include_stop or self._seam is not None)
        return bool(kept_back) or self._checked or not self._sure

    @property
    def compares(self) -> bool:
        """Whether that is to be the text of all tokens, to be compared with what the client has."""
        return bool(self.stops) or self._checked

    def settle(self, ids: int, text: str) -> bool:
        """`text` is that of the first `ids` generated tokens, or of the last ones of them unless it `compares`.
        Returns whether the stream can go on behind these; if not, `why` may say that it cannot at all."""
        if text.endswith(_INCOMPLETE):
            return False
        if self.compares:
            sent = "".join(self._text)
            if not text.startswith(sent):
                text = " " + text  # some tokenizers drop the first space of a text
            if not text.startswith(sent) or len(text) - len(sent) > 2 * max(map(len, self.stops), default=0):
                self.why = "text_differs"
                return False
            self._held = text[len(sent) :]
        self.clean = ids
        return True

    def move(self) -> None:
        """The stream goes on behind the first `clean` tokens, or begins anew where the client has none of it."""
        self._part.clear()
        self.turn = None
        if not self.begun or self.moving:
            return
        self.moving = True
        self.moves += 1
        del self.ids[self.clean :]
        self._output = self.clean
        self._sure = True
        if self.stops:
            tail = ""
            if self.include_stop:
                # The engine kept nothing back: what the client has may be the beginning of a stop string.
                sent = "".join(self._text)
                tail = sent[max(len(sent) - max(map(len, self.stops)) + 1, 0) :]
            before, self._held = tail + self._held, ""
            self._seam = StopSeam(before, len(tail), self.stops, self.include_stop) if before else None

    # Events.

    def _feed(self, data: bytes) -> bytes:
        if self._blind:
            return data
        if self.turn is not None:
            return b""
        part = self._part
        begin = max(len(part) - _LONGEST_END, 0)
        part += data
        ends = [match.span() for match in _END.finditer(part, begin)]
        if not ends:
            return self._too_long()
        out: list[bytes] = []
        at = 0
        for end, after in ends:
            out.append(self._event(bytes(part[at:after]), end - at))
            at = after
            if self.turn is not None:
                break
        del part[:at]
        return b"".join(out) + self._too_long()

    def _too_long(self) -> bytes:
        """What is kept of an event, if that is too much to go on waiting for its end."""
        if len(self._part) <= 8 * self._limit + _EVENT_ALLOWANCE:
            return b""
        self._unfollow("buffer")
        self._blind = True
        whole = bytes(self._part)
        self._part.clear()
        return whole

    def _event(self, whole: bytes, end: int) -> bytes:
        """One event, whose lines are those up to `end` -> what the client gets for it."""
        block = whole[:end]
        if not block.startswith(b"data:"):
            if b"data:" in block:
                self._unfollow("unknown_event")
            return whole
        document = block[5:]
        if document.strip() == b"[DONE]":
            self._done = True
            return whole
        try:
            event = _decode(document)
        except (msgspec.MsgspecError, RecursionError):
            self._unfollow("unknown_event")
            return whole
        if event.error is not None:
            return self._failure(event.error, whole)
        if self._identity is None:
            self._identity = event.id, event.created, event.model
            if event.prompt_token_ids is not None:
                self._take_prompt(event.prompt_token_ids)
        if not event.choices and bytes(event.usage) not in (b"", b"null"):
            self._usage_sent = True
        kept = True
        text: str | None = None
        choice: _Choice | None = None
        if event.choices:
            choice = event.choices[0]
            text, kept = self._choice(event.choices, choice)
        if self.moves:
            return self._written_anew(document, choice, text or "")
        if not kept:
            return b""
        return without_ids(whole) if self.strip and b'token_ids"' in whole else whole

    def _failure(self, error: _Error, whole: bytes) -> bytes:
        """An engine that dies may still say so in the stream."""
        code = error.code
        own = isinstance(code, int) and code >= 500
        if not own or self.why or self._finish is not None:
            self._unfollow("error_event")
            return whole
        self.turn = Outcome.ENGINE_ERROR
        self.last_words = whole + DONE
        return b""

    def _choice(self, choices: list[_Choice], choice: _Choice) -> tuple[str, bool]:
        """Takes note of tokens and text. Returns the text, and whether the client would have got the event."""
        kept = True
        text = choice.text or ""
        if self.chat and not self.moves:
            delta = choice.delta or {}
            content = delta.get("content")
            text = content if isinstance(content, str) else ""
            if any(value for key, value in delta.items() if key not in ("role", "content")):
                self._unfollow("parsed")
            elif content is None and choice.token_ids and choice.finish_reason is None:
                # A parser of the engine has seen no text, or keeps it back. The event is there for the ids alone.
                self._checked = True
                kept = not self.strip
        if choice.finish_reason is not None:
            self._finish = choice.finish_reason
        ids = choice.token_ids or ()
        self._output += len(ids)
        if self.why:
            return text, kept
        if len(choices) > 1 or choice.index:
            self._unfollow("choices")
            return text, kept
        if choice.prompt_token_ids is not None and not self.moves:
            self._take_prompt(choice.prompt_token_ids)
        if (self.prompt is None and not self.why) or (text and not ids):
            self._unfollow("no_token_ids")
        if not self.why:
            self._remember(ids, text)
        return text, kept

    def _remember(self, ids: Sequence[int], text: str) -> None:
        if ids:
            try:
                self.ids.extend(ids)
            except OverflowError:
                self._unfollow("unknown_event")
                return
            self._grow(4 * len(ids))
        if text:
            self.clean = len(self.ids)
            self._sure = len(ids) == 1
            if (self.stops or self.chat) and self._seam is None:
                self._note(text)

    def _note(self, text: str) -> None:
        self._grow(len(text))
        self._text.append(text)

    def _take_prompt(self, ids: list[int]) -> None:
        try:
            self.prompt = array("I", ids)
        except OverflowError:
            self._unfollow("unknown_event")
            return
        self._prompt_tokens = len(ids)
        self._grow(4 * len(ids))

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._limit:
            self._unfollow("buffer")

    def _unfollow(self, why: str) -> None:
        """It can no longer go on elsewhere, and what was kept for that is let go."""
        if not self.why:
            self.why = why
        self.prompt = None
        self.ids = array("I")
        self._text.clear()

    # Events of a later engine.

    def _written_anew(self, document: bytes, choice: _Choice | None, text: str) -> bytes:
        found: dict[str, Any] = msgspec.json.decode(document)
        assert self._identity is not None
        event: dict[str, Any] = dict(found)
        event["id"], event["created"], event["model"] = self._identity
        if self.chat:
            event["object"] = "chat.completion.chunk"
        if found.get("usage"):
            event["usage"] = whole_usage(found["usage"], self._prompt_tokens, self._output)
        event.pop("prompt_token_ids", None)
        if choice is None:
            return b"data: %b\n\n" % _encode(event)
        finish: str | None = choice.finish_reason
        stop_reason = found["choices"][0].get("stop_reason")
        if self._seam is not None:
            text, passed, hit = self._seam.feed(text, finish is not None)
            if passed:
                self._seam = None
            if hit is not None:
                self._finish = finish = "stop"
                stop_reason = hit
                self.turn = Outcome.OK
            if text and not self.why:
                self._note(text)
        write = chat_choice if self.chat else completion_choice
        event["choices"] = [write(found["choices"][0], text, finish, stop_reason, ids=not self.strip)]
        whole = b"data: %b\n\n" % _encode(event)
        return whole + self._closing() if self.turn is Outcome.OK else whole

    def _closing(self) -> bytes:
        """The end of an answer that no engine has written: the usage, if it is wanted and missing, and the mark."""
        if not self.include_usage or self._usage_sent or self._identity is None:
            return DONE
        return usage_event(self._identity, self._prompt_tokens, self._output, chat=self.chat) + DONE
