"""The segment cache: of a text that grows, only what is new is tokenised, and the ids are those of the whole text.

Pure. Exact because it cuts only where the tokenizer itself does: `tokenizers` first splits a text at its added tokens
(leftmost, longest first), then normalises, pre-tokenises and encodes each piece on its own. The text is cut *after*
special tokens that take no spaces with them; all added tokens of that first step take part in the search, so that none
is found where the tokenizer would find a longer one. Each segment but the first is encoded behind such a special token,
whose id is dropped, so that a tokenizer that treats the start of a text differently (a prefix space on the first word)
is followed too. At load a few canary texts are compared; a tokenizer that differs on any gets no cache.

Cost: one regular-expression search and one look-up a segment (about a microsecond each) on top of encoding what is new.
Entries are bounded by bytes; the text itself is the key, so two texts never share ids by a hash collision.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from router.tokens.lru import ByteLru
from router.tokens.token_ids import NO_TOKENS, Tokens

_ENTRY_OVERHEAD = 400
"""Bytes of an entry beside its text and ids: two tuples, an array header, a slot of the ordered dictionary."""

_LARGEST_SHARE = 64
"""A segment above 1/64 of the limit is not kept: a few huge prompts should not empty the cache."""

_CANARIES = (
    "{a}user\nHello, world 123{b}\n{a}assistant\n  two spaces, then  more {b}",
    "plain words {a}then{b} more",
    "{a}{b}{a}",
    " {a} {b} ",
    "{a}e{b}\u0301 \ufb01 \u212b Stra\u00dfe{a}\u65e5\u672c\u8a9e \U0001f600\U0001f3fd{b}\t\n\n x",
    "word{a}word{b}word 's'{a}'s 12{b}34",
)


def encode_whole(tokenizer: Tokenizer, text: str, add_special_tokens: bool = False) -> Tokens:
    """The ids of `text`: uint32, shape (n,). Releases the interpreter while it works (`encode` would not)."""
    return np.array(tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids, np.uint32)


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where a tokenizer's texts may be cut: after the tokens in `safe`, found by `pattern` among all others of the
    first step. `anchor` is what a later segment is encoded behind; it is one id, and no other token begins with it.
    """

    pattern: re.Pattern[str]
    safe: frozenset[str]
    anchor: str

    def segments(self, text: str) -> Iterator[str]:
        """`text` in pieces; joined they are `text`. At least one, only the last may lack a special token's end."""
        start = 0
        for match in self.pattern.finditer(text):
            if match.group() in self.safe:
                yield text[start : match.end()]
                start = match.end()
        if start < len(text) or start == 0:
            yield text[start:]


def find_cuts(tokenizer: Tokenizer) -> Cuts | str:
    """The cut points of a tokenizer, or the reason why there are none. Not yet proven on texts."""
    first_step = [token for token in tokenizer.get_added_tokens_decoder().values() if not token.normalized]
    if any(token.single_word for token in first_step):
        return "one of its added tokens matches only as a single word"
    contents = sorted({token.content for token in first_step if token.content}, key=lambda text: (-len(text), text))
    safe = [t.content for t in first_step if t.special and t.content and not (t.lstrip or t.rstrip)]
    if not safe:
        return "it has no special token to cut at"
    anchors = [t for t in safe if not any(other != t and other.startswith(t) for other in contents)]
    anchors = [t for t in anchors if len(encode_whole(tokenizer, t)) == 1]
    if not anchors:
        return "none of its special tokens is one id of its own"
    return Cuts(re.compile("|".join(map(re.escape, contents))), frozenset(safe), anchors[0])


@dataclass(slots=True)
class Partial:
    """A text cut into segments. `ids[i]` is None for a segment not in the cache; `missing` counts their characters."""

    segments: list[str]
    ids: list[Tokens | None]
    missing: int


class SegmentCache:
    """Encodes texts, without the tokens a post-processor adds, and keeps the ids of their segments.

    `enabled` is False where cutting is not exact for this tokenizer or there is nothing to cut at (`why_off` says
    which): then a text is encoded whole and not kept.
    """

    def __init__(self, tokenizer: Tokenizer, limit: int = 64 << 20) -> None:
        self.lru: ByteLru[tuple[bool, str], Tokens] = ByteLru(limit)
        self.why_off = ""
        self._tokenizer = tokenizer
        self._cuts: Cuts | None = None
        cuts = find_cuts(tokenizer) if limit > 0 else "its limit is 0 bytes"
        if isinstance(cuts, str):
            self.why_off = cuts
            return
        self._cuts = cuts
        if not self._proven(cuts):
            self._cuts = None
            self.why_off = "the ids of the segments differ from the ids of the whole text"
        self.lru = ByteLru(limit)

    @property
    def enabled(self) -> bool:
        return self._cuts is not None

    def _proven(self, cuts: Cuts) -> bool:
        names = sorted(cuts.safe)
        pairs = {(names[0], names[-1]), (cuts.anchor, names[0]), (names[-1], cuts.anchor)}
        texts = [canary.format(a=a, b=b) for canary in _CANARIES for a, b in sorted(pairs)]
        return all(np.array_equal(self.encode(text), encode_whole(self._tokenizer, text)) for text in texts)

    def encode(self, text: str) -> Tokens:
        """The ids of `text`, those of `encode_whole(tokenizer, text)`."""
        return self.finish(self.look_up(text))

    def look_up(self, text: str) -> Partial:
        """What the cache holds of `text`; tokenises nothing."""
        if self._cuts is None:
            return Partial([text], [None], len(text))
        segments = list(self._cuts.segments(text))
        ids = [self.lru.get((place == 0, segment)) for place, segment in enumerate(segments)]
        return Partial(segments, ids, sum(len(s) for s, found in zip(segments, ids, strict=True) if found is None))

    def finish(self, partial: Partial) -> Tokens:
        """Encode what is missing, keep it, and return the ids of the whole text: uint32, shape (n,)."""
        if self._cuts is None:
            return encode_whole(self._tokenizer, partial.segments[0])
        places = [place for place, found in enumerate(partial.ids) if found is None]
        if places:
            anchor = self._cuts.anchor
            texts = [anchor + partial.segments[place] if place else partial.segments[0] for place in places]
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            for place, encoding in zip(places, encodings, strict=True):
                ids = np.array(encoding.ids[1:] if place else encoding.ids, np.uint32)
                ids.setflags(write=False)
                partial.ids[place] = ids
                self._keep((place == 0, partial.segments[place]), ids)
        found = [ids for ids in partial.ids if ids is not None]
        if not found:
            return NO_TOKENS
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _keep(self, key: tuple[bool, str], ids: Tokens) -> None:
        size = sys.getsizeof(key[1]) + ids.nbytes + _ENTRY_OVERHEAD
        if size * _LARGEST_SHARE <= self.lru.limit:
            self.lru.put(key, ids, size)
