"""The segment cache gives the ids of the whole text, for every kind of tokenizer that keeps it switched on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from router.tokens.segments import SegmentCache, find_cuts

CUTTING = [
    "chatml",
    "llama3",
    "qwen_nfc",
    "metaspace_first",
    "metaspace_always",
    "legacy_llama",
    "bert",
    "greedy_specials",
]
SPECIAL = {
    "chatml": ["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
    "llama3": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"],
    "qwen_nfc": ["<|im_start|>", "<|im_end|>", "<tool_call>"],
    "metaspace_first": ["<s>", "</s>", "[INST]", "[/INST]"],
    "metaspace_always": ["<s>", "</s>", "[INST]", "[/INST]"],
    "legacy_llama": ["<s>", "</s>", "[INST]", "[/INST]"],
    "bert": ["[CLS]", "[SEP]"],
    "greedy_specials": ["<|a|>", "<|b|>", "<|a|><|b|>", "<mask>", "<|c|>", "<|c|>!", "!"],
}
PLAIN = [
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "user",
    "assistant\n",
    "Hello",
    " world",
    "'s",
    "12345",
    "ü",
    "e",
    "\u0301",
    "日本",
    "\U0001f600",
    "<|",
    "|>",
]


def plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """The reference: one call for the whole text."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@pytest.fixture(scope="module")
def caches(tokenizers_by_kind: dict[str, str]) -> dict[str, SegmentCache]:
    return {kind: SegmentCache(Tokenizer.from_str(text), 1 << 20) for kind, text in tokenizers_by_kind.items()}


@pytest.fixture(scope="module")
def references(tokenizers_by_kind: dict[str, str]) -> dict[str, Tokenizer]:
    return {kind: Tokenizer.from_str(text) for kind, text in tokenizers_by_kind.items()}


@pytest.mark.parametrize("kind", CUTTING)
def test_the_cache_is_on_for_a_tokenizer_with_special_tokens(caches: dict[str, SegmentCache], kind: str) -> None:
    assert caches[kind].enabled, caches[kind].why_off


def test_the_cache_is_off_without_special_tokens(caches: dict[str, SegmentCache]) -> None:
    assert not caches["no_specials"].enabled
    assert caches["no_specials"].why_off == "it has no special token to cut at"


@pytest.mark.parametrize("kind", CUTTING)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_segments_give_the_ids_of_the_whole_text(
    caches: dict[str, SegmentCache], references: dict[str, Tokenizer], kind: str, data: st.DataObject
) -> None:
    pieces = st.sampled_from(SPECIAL[kind]) | st.sampled_from(PLAIN) | st.text(max_size=6)
    text = "".join(data.draw(st.lists(pieces, max_size=24)))
    expected = plain(references[kind], text)
    assert caches[kind].encode(text).tolist() == expected
    assert caches[kind].encode(text).tolist() == expected, "from the cache"


@settings(max_examples=30, deadline=None)
@given(turns=st.lists(st.text(max_size=30) | st.sampled_from(["", " ", "<|im_end|>", "\n"]), min_size=1, max_size=8))
def test_a_growing_chat_gives_the_ids_of_each_whole_text(
    caches: dict[str, SegmentCache], references: dict[str, Tokenizer], turns: list[str]
) -> None:
    text = ""
    for turn in turns:
        text += f"<|im_start|>user\n{turn}<|im_end|>\n"
        assert caches["chatml"].encode(text).tolist() == plain(references["chatml"], text)


@given(text=st.text(max_size=60))
@settings(max_examples=30, deadline=None)
def test_an_uncut_tokenizer_encodes_the_whole_text(
    caches: dict[str, SegmentCache], references: dict[str, Tokenizer], text: str
) -> None:
    assert caches["no_specials"].encode(text).tolist() == plain(references["no_specials"], text)


def test_only_the_new_turn_is_missing(tokenizers_by_kind: dict[str, str]) -> None:
    cache = SegmentCache(Tokenizer.from_str(tokenizers_by_kind["chatml"]), 1 << 20)
    first = "<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n"
    cache.encode(first)
    turn = "General Kenobi<|im_end|>"
    missing = cache.look_up("<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n" + turn).missing
    assert missing == len("assistant\n" + turn)


def test_the_segments_of_a_text_are_the_text(caches: dict[str, SegmentCache]) -> None:
    text = "a<|im_start|>b<|im_end|><|im_end|>c"
    assert caches["chatml"].look_up(text).segments == ["a<|im_start|>", "b<|im_end|>", "<|im_end|>", "c"]


def test_a_text_that_ends_in_a_special_token_has_no_empty_segment(caches: dict[str, SegmentCache]) -> None:
    assert caches["chatml"].look_up("b<|im_end|>").segments == ["b<|im_end|>"]


def test_an_empty_text_has_no_ids(caches: dict[str, SegmentCache]) -> None:
    assert caches["chatml"].encode("").tolist() == []


def test_the_cache_stays_below_its_limit(tokenizers_by_kind: dict[str, str]) -> None:
    limit = 128 * 1024
    cache = SegmentCache(Tokenizer.from_str(tokenizers_by_kind["chatml"]), limit)
    for number in range(400):
        cache.encode(f"<|im_start|>user\n{number} {'word ' * 20}<|im_end|>")
        assert cache.lru.bytes <= limit
    assert cache.lru.evictions > 0


def test_one_huge_segment_is_not_kept(tokenizers_by_kind: dict[str, str]) -> None:
    cache = SegmentCache(Tokenizer.from_str(tokenizers_by_kind["chatml"]), 64 * 1024)
    cache.encode("x" * 5000)
    assert len(cache.lru) == 0


def test_a_limit_of_zero_switches_it_off(tokenizers_by_kind: dict[str, str]) -> None:
    assert SegmentCache(Tokenizer.from_str(tokenizers_by_kind["chatml"]), 0).why_off == "its limit is 0 bytes"


def test_a_token_that_must_be_a_word_of_its_own_switches_it_off(tokenizers_by_kind: dict[str, str]) -> None:
    tokenizer = Tokenizer.from_str(tokenizers_by_kind["chatml"])
    tokenizer.add_special_tokens([AddedToken("stop", single_word=True, normalized=False)])
    assert "single word" in SegmentCache(tokenizer).why_off


def test_tokens_that_take_spaces_are_no_cut_points(tokenizers_by_kind: dict[str, str]) -> None:
    cuts = find_cuts(Tokenizer.from_str(tokenizers_by_kind["greedy_specials"]))
    assert not isinstance(cuts, str)
    assert "<mask>" not in cuts.safe


def test_the_anchor_is_no_beginning_of_another_token(tokenizers_by_kind: dict[str, str]) -> None:
    cuts = find_cuts(Tokenizer.from_str(tokenizers_by_kind["greedy_specials"]))
    assert not isinstance(cuts, str)
    assert cuts.anchor in ("<|a|><|b|>", "<|b|>")


def test_segments_and_whole_differ_without_the_anchor(tokenizers_by_kind: dict[str, str]) -> None:
    """Why segments are encoded behind a special token: the start of a text may be special to a tokenizer."""
    tokenizer = Tokenizer.from_str(tokenizers_by_kind["metaspace_first"])
    whole = plain(tokenizer, "[INST]word[/INST]")
    assert whole != plain(tokenizer, "[INST]") + plain(tokenizer, "word[/INST]")
    assert SegmentCache(tokenizer).encode("[INST]word[/INST]").tolist() == whole


def test_cached_ids_cannot_be_written_to(caches: dict[str, SegmentCache]) -> None:
    ids = caches["chatml"].encode("only one segment")
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1
    assert ids.dtype == np.uint32
