"""Finding a worker's way of making keys from prompts and the keys admitted after them."""

from __future__ import annotations

import random

import pytest

from router.lmcache.chunks import Algorithm, Form, Scheme, root_of
from router.lmcache.learn import SeenPrompt, find_scheme, shows

from . import recorded as told
from .build import FORM, SIZE, keys, prompt

NONE_HASH = -6197052367682486848


def sent(*seeds: int, at: float = 1.0, chunks: int = 3, size: int = SIZE) -> list[SeenPrompt]:
    return [SeenPrompt(prompt(seed, chunks, size), "w", at) for seed in seeds]


def admitted(form: Form, none_hash: int, *prompts: SeenPrompt, at: float = 2.0) -> list[tuple[int, float]]:
    """The keys of the prompts among keys of others, in no order."""
    mine = [(key, at) for one in prompts for key in keys(one.tokens, none_hash, form)]
    others = [(random.Random(seed).getrandbits(64), at) for seed in range(50)]
    found = mine + others
    random.Random(1).shuffle(found)
    return found


@pytest.mark.parametrize("extra_none", [False, True])
@pytest.mark.parametrize("size", [16, 64, 256])
def test_builtin_with_any_none_hash_is_found_from_one_prompt(size: int, extra_none: bool) -> None:
    form = Form(Algorithm.BUILTIN, size, extra_none)
    prompts = sent(1, 2, chunks=2, size=size)
    found = find_scheme(prompts, admitted(form, NONE_HASH, prompts[0]), [], 256)
    assert found is not None
    assert found.scheme == Scheme(form, root_of(form, NONE_HASH))
    assert found.rooted
    assert found.prompt is prompts[0]


@pytest.mark.parametrize(
    ("none_hash", "recorded"),
    [
        (told.CBOR_NONE_HASH, told.CBOR_256),
        (told.CBOR_UNSEEDED_NONE_HASH, told.CBOR_UNSEEDED_256),
    ],
)
def test_sha256_cbor_with_a_usual_seed_is_found(none_hash: int, recorded: list[int]) -> None:
    """PYTHONHASHSEED=0 and none, by keys that the package made."""
    prompts = [SeenPrompt(told.IDS, "w", 1.0)]
    found = find_scheme(prompts, [(key, 2.0) for key in recorded], [], 256)
    assert found is not None
    assert found.scheme == Scheme(Form(Algorithm.SHA256_CBOR), none_hash)


def test_sha256_cbor_with_an_unusual_seed_is_named_without_its_root() -> None:
    form = Form(Algorithm.SHA256_CBOR_64BIT, SIZE)
    prompts = sent(1)
    found = find_scheme(prompts, admitted(form, 123456789, prompts[0]), [], SIZE)
    assert found is not None
    assert found.scheme.form == form
    assert not found.rooted


def test_keys_of_other_prompts_show_nothing() -> None:
    assert find_scheme(sent(1, 2, 3), admitted(FORM, NONE_HASH, *sent(4, 5)), [], SIZE) is None


def test_one_chunk_shows_nothing_unless_the_guess_is_right() -> None:
    prompts = sent(1, chunks=1)
    recent = admitted(FORM, NONE_HASH, *prompts)
    assert find_scheme(prompts, recent, [], SIZE) is None
    guess = Scheme(FORM, root_of(FORM, NONE_HASH))
    found = find_scheme(prompts, recent, [guess], SIZE)
    assert found is not None
    assert found.scheme == guess


def test_a_prompt_shows_a_scheme_only_by_what_came_after_it() -> None:
    [one] = sent(1, at=5.0)
    scheme = Scheme(FORM, root_of(FORM, NONE_HASH))
    assert shows(one, admitted(FORM, NONE_HASH, one, at=5.0), scheme)
    assert not shows(one, admitted(FORM, NONE_HASH, one, at=4.0), scheme)
