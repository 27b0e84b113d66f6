"""The model's own tokenizer and chat template, run in this process.

Reads files once, at load; afterwards pure. Cost: encoding is about 1 ms for 4,000 characters and releases the
interpreter while it runs; what the segment cache holds is not encoded again. No network: a model is a folder or a
tokenizer.json, never a name to download.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokenizers import AddedToken, Tokenizer

from router.tokens.chat import Chat
from router.tokens.conversation import has_media
from router.tokens.segments import Partial, SegmentCache, encode_whole
from router.tokens.template import BadTemplate, ChatTemplate, read_template
from router.tokens.token_ids import Tokens

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_AFFIX_CANARIES = ("a b", "Hello, world\n", "\u65e5\u672c 1 2 3 ", " x")


class TokenizerError(Exception):
    """The tokenizer cannot be loaded; the message says which file is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class _Affixes:
    """What the post-processor puts around a text's ids when special tokens are asked for."""

    before: Tokens
    after: Tokens


class LocalTokenizer:
    """Texts and chats -> token ids.

    Args:
        tokenizer: not changed by anybody once it is here.
        template: None for a model without one; chats are then not for this tokenizer.
        cache_bytes: limit of the segment cache; 0 switches it off.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None = None, *, cache_bytes: int = 64 << 20, name: str = ""
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.name = name
        self.template = template
        self.segments = SegmentCache(tokenizer, cache_bytes)
        self._tokenizer = tokenizer
        self._affixes = self._find_affixes()

    @classmethod
    def load(
        cls, path: str | Path, *, chat_template: str | Path | None = None, cache_bytes: int = 64 << 20
    ) -> LocalTokenizer:
        """The tokenizer of a model folder, or of a tokenizer.json file and what lies beside it.

        Args:
            path: the folder or the file.
            chat_template: a file with a jinja template, used instead of the model's own.

        Raises:
            TokenizerError: something is missing or is not what it should be.
        """
        file = _tokenizer_file(Path(path))
        config = _read_object(file.parent / "tokenizer_config.json")
        try:
            tokenizer = Tokenizer.from_buffer(file.read_bytes())
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"{file} is not a tokenizer of the tokenizers library: {error}") from None
        _add_missing_tokens(tokenizer, config)
        try:
            template = _load_template(file.parent, config, chat_template)
        except (BadTemplate, UnicodeDecodeError) as error:
            raise TokenizerError(f"{file.parent}: {error}") from None
        return cls(tokenizer, template, cache_bytes=cache_bytes, name=str(path))

    def can_render(self, chat: Chat) -> bool:
        """Whether the model's template, rendered here, gives what the engine would tokenise for this chat."""
        return self.template is not None and chat.local and not has_media(chat.messages)

    def render(self, chat: Chat, max_seconds: float = 1.0) -> str:
        """The chat's text; `can_render` must be true. Raises what `ChatTemplate.render` raises."""
        assert self.template is not None
        return self.template.render(chat, max_seconds)

    def encode_chat(self, chat: Chat) -> Tokens:
        """The ids of a chat: its rendered text, without a second BOS from the post-processor unless asked for."""
        return self.encode_text(self.render(chat), chat.add_special_tokens)

    def encode_text(self, text: str, add_special_tokens: bool = True) -> Tokens:
        """The ids of a text: uint32, shape (n,). With special tokens, the post-processor decides which and where."""
        return self.finish(self.look_up(text), add_special_tokens)

    def look_up(self, text: str) -> Partial:
        """What the segment cache knows of `text`; `finish` does the rest. `missing` tells how much work that is."""
        return self.segments.look_up(text)

    def finish(self, partial: Partial, add_special_tokens: bool) -> Tokens:
        """The ids of the text that was looked up. May be called in a thread.

        Raises:
            UnicodeEncodeError, or the library's Exception, for a text that it cannot encode.
        """
        if not add_special_tokens:
            return self.segments.finish(partial)
        if self._affixes is None:
            return encode_whole(self._tokenizer, "".join(partial.segments), add_special_tokens=True)
        ids = self.segments.finish(partial)
        if not len(self._affixes.before) and not len(self._affixes.after):
            return ids
        return np.concatenate((self._affixes.before, ids, self._affixes.after))

    def decode(self, ids: list[int]) -> str:
        """Text of some ids, special tokens shown."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def _find_affixes(self) -> _Affixes | None:
        """What stands around every text with special tokens; None where that depends on the text."""
        found: _Affixes | None = None
        for text in _AFFIX_CANARIES:
            inner = encode_whole(self._tokenizer, text)
            outer = encode_whole(self._tokenizer, text, add_special_tokens=True)
            place = _place(outer, inner)
            if place is None:
                return None
            affixes = _Affixes(outer[:place], outer[place + len(inner) :])
            if found is not None and not (
                np.array_equal(found.before, affixes.before) and np.array_equal(found.after, affixes.after)
            ):
                return None
            found = affixes
        assert found is not None
        empty = encode_whole(self._tokenizer, "", add_special_tokens=True)
        return found if np.array_equal(empty, np.concatenate((found.before, found.after))) else None


def _place(outer: Tokens, inner: Tokens) -> int | None:
    for place in range(len(outer) - len(inner) + 1):
        if np.array_equal(outer[place : place + len(inner)], inner):
            return place
    return None


def _tokenizer_file(path: Path) -> Path:
    file = path / "tokenizer.json" if path.is_dir() else path
    if not path.exists():
        raise TokenizerError(f"{path} does not exist; give a model's folder or its tokenizer.json")
    if not file.is_file():
        raise TokenizerError(f"{path} holds no tokenizer.json; give the folder of a model with a fast tokenizer")
    return file


def _read_object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise TokenizerError(f"{file} is not a JSON object: {error}") from None


def _add_missing_tokens(tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """Tokens that only tokenizer_config.json names; engines add them too."""
    listed = config.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for index, entry in sorted(listed.items(), key=lambda item: int(item[0])):
        if entry.get("content") in known:
            continue
        flags = {key: bool(entry.get(key)) for key in ("single_word", "lstrip", "rstrip", "special")}
        flags["normalized"] = bool(entry.get("normalized", not flags["special"]))
        tokenizer.add_tokens([AddedToken(entry["content"], **flags)])
        if tokenizer.token_to_id(entry["content"]) != int(index):
            raise TokenizerError(
                f"tokenizer_config.json gives {entry['content']!r} the id {index}, tokenizer.json does not: "
                "the two files are not of the same model"
            )


def _load_template(folder: Path, config: dict[str, Any], override: str | Path | None) -> ChatTemplate | None:
    if override is not None:
        file = Path(override)
        if not file.is_file():
            raise TokenizerError(f"the chat template {file} does not exist")
        source: str | dict[str, str] | None = file.read_text("utf-8")
    else:
        source = read_template(folder, config)
    if source is None:
        return None
    named = {**_read_object(folder / "special_tokens_map.json"), **config}
    special = {key: _content(named.get(key)) for key in _SPECIAL}
    return ChatTemplate(source, {key: text for key, text in special.items() if text is not None})


def _content(token: Any) -> str | None:
    """A special token is written as a string, or as an object with its flags."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
