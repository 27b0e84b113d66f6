"""Finding out how a worker makes its keys, from prompts it was sent and keys it admitted after them.

If the chunks of a prompt are among a worker's admitted keys, some admitted key K and the key that follows K over the
prompt's second chunk are both there: 64 bits do not agree by chance, and NONE_HASH is not needed to see it. For builtin
the first key and the prompt then give the root by inversion; for sha256_cbor the usual seeds are tried. So workers are
followed that each have a NONE_HASH of their own (PYTHONHASHSEED not set), which LMCache's own controller cannot match.

Pure; runs in a thread. Cost: about 20 us a prompt and form for builtin, 2 us a key, prompt and form for the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from router.lmcache.chunks import Algorithm, Form, PromptChunks, Scheme, cbor_key, first_root, following
from router.prefix.hashing import Keys, Tokens

LEARNT_TOKENS: Final = 2048
"""Tokens of a prompt that are kept for this: two chunks of the largest size tried."""
CHUNK_SIZES: Final = (256, 128, 512, 64, 1024, 32, 16)
_SEEDS: Final = ("vllm-none-hash", *map(str, range(101)), "123", "1234", "12345", "123456", "2024", "2025")
_MOST_GUESSES: Final = 16
_CBOR_PROMPTS: Final = 16
_CBOR_KEYS: Final = 128


@dataclass(frozen=True, slots=True)
class SeenPrompt:
    """The first LEARNT_TOKENS ids of a prompt, where it was sent, and when."""

    tokens: Tokens
    worker: str
    at: float


@dataclass(frozen=True, slots=True)
class Found:
    """`scheme` has root 0 and `rooted` is false where the form is known and NONE_HASH is not. `prompt`: what showed
    it."""

    scheme: Scheme
    rooted: bool
    prompt: SeenPrompt


def find_scheme(
    prompts: Sequence[SeenPrompt], recent: Sequence[tuple[int, float]], guesses: Iterable[Scheme], chunk_size: int
) -> Found | None:
    """How the worker that admitted `recent` (key, when) makes its keys; newest prompts are tried first.

    Args:
        guesses: tried as they are: what was configured, and what other workers were found to do.
        chunk_size: tried before the usual ones.
    """
    found = _by_guess(prompts, recent, guesses)
    if found is not None:
        return found
    keys = np.array([key for key, _at in recent], np.uint64)
    sizes = dict.fromkeys((chunk_size, *CHUNK_SIZES))
    for prompt in reversed(prompts):
        chunks = PromptChunks(prompt.tokens)
        for size in sizes:
            if len(prompt.tokens) < 2 * size:
                continue
            for extra_none in (False, True):
                found = _builtin(chunks, Form(Algorithm.BUILTIN, size, extra_none), keys, prompt)
                if found is not None:
                    return found
    newest = [key for key, _at in recent][-_CBOR_KEYS:]
    for prompt in list(reversed(prompts))[:_CBOR_PROMPTS]:
        for size in sizes:
            if len(prompt.tokens) >= 2 * size:
                found = _cbor(prompt, size, newest)
                if found is not None:
                    return found
    return None


def shows(prompt: SeenPrompt, recent: Sequence[tuple[int, float]], scheme: Scheme) -> bool:
    """Whether the prompt's first whole chunk was admitted after the prompt was sent."""
    size = scheme.form.chunk_size
    if len(prompt.tokens) < size:
        return False
    first = PromptChunks(prompt.tokens[:size]).keys(scheme)[0]
    return any(key == first and at >= prompt.at for key, at in recent)


def _by_guess(
    prompts: Sequence[SeenPrompt], recent: Sequence[tuple[int, float]], guesses: Iterable[Scheme]
) -> Found | None:
    for scheme in list(dict.fromkeys(guesses))[:_MOST_GUESSES]:
        for prompt in reversed(prompts):
            if shows(prompt, recent, scheme):
                return Found(scheme, True, prompt)
    return None


def _builtin(chunks: PromptChunks, form: Form, keys: Keys, prompt: SeenPrompt) -> Found | None:
    bodies = chunks.builtin(form.chunk_size)
    first = np.flatnonzero(np.isin(following(keys, int(bodies[1]), form), keys))
    if not len(first):
        return None
    root = first_root(int(keys[first[0]]), int(bodies[0]), form)
    return Found(Scheme(form, root), True, prompt)


def _cbor(prompt: SeenPrompt, size: int, keys: list[int]) -> Found | None:
    bodies = PromptChunks(prompt.tokens[: 2 * size]).cbor(size)
    known = set(keys)
    for algorithm in (Algorithm.SHA256_CBOR, Algorithm.SHA256_CBOR_64BIT):
        for extra_none in (False, True):
            form = Form(algorithm, size, extra_none)
            for key in keys:
                if cbor_key(key, bodies[1], form) not in known:
                    continue
                root = next((root for root in usual_roots(algorithm) if cbor_key(root, bodies[0], form) == key), None)
                return Found(Scheme(form, root or 0), root is not None, prompt)
    return None


@cache
def usual_roots(algorithm: Algorithm) -> tuple[int, ...]:
    """NONE_HASH of sha256_cbor for vLLM's own seed, for usual values of PYTHONHASHSEED, and 0."""
    roots = [0]
    for seed in _SEEDS:
        text = seed.encode()
        head = bytes([0x60 | len(text)]) if len(text) < 24 else bytes([0x78, len(text)])
        digest = hashlib.sha256(head + text).digest()
        roots.append(int.from_bytes(digest[:8] if algorithm is Algorithm.SHA256_CBOR else digest[-8:]))
    return tuple(roots)
