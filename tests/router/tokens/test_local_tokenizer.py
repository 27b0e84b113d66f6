"""Loading a model's tokenizer, special tokens around texts, and the messages when it cannot be loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from router.tokens.chat import Chat
from router.tokens.tokenizer import LocalTokenizer, TokenizerError

KINDS = ["chatml", "llama3", "qwen_nfc", "metaspace_first", "legacy_llama", "bert", "greedy_specials", "no_specials"]
TEXTS = ["", "Hello, world", "a<|im_end|>b", "[SEP] x [INST]", "日本 12\n"]
HI = [{"role": "user", "content": "Hi"}]


def test_a_folder_and_its_file_are_the_same_model(model_folder: Path) -> None:
    from_folder = LocalTokenizer.load(model_folder)
    from_file = LocalTokenizer.load(model_folder / "tokenizer.json")
    assert from_folder.encode_chat(Chat(messages=HI)).tolist() == from_file.encode_chat(Chat(messages=HI)).tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("special", [True, False])
def test_texts_have_the_ids_and_special_tokens_of_the_library(
    tokenizers_by_kind: dict[str, str], kind: str, special: bool
) -> None:
    reference = Tokenizer.from_str(tokenizers_by_kind[kind])
    local = LocalTokenizer(Tokenizer.from_str(tokenizers_by_kind[kind]))
    for text in TEXTS:
        assert local.encode_text(text, special).tolist() == reference.encode(text, add_special_tokens=special).ids


def test_a_chat_gets_no_second_bos(llama_folder: Path) -> None:
    local = LocalTokenizer.load(llama_folder)
    ids = local.encode_chat(Chat(messages=HI)).tolist()
    assert ids.count(0) == 1
    assert ids[0] == 0
    assert local.decode(ids).startswith("<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>")


def test_a_chat_that_asks_for_special_tokens_gets_them(llama_folder: Path) -> None:
    local = LocalTokenizer.load(llama_folder)
    assert local.encode_chat(Chat(messages=HI, add_special_tokens=True)).tolist()[:2] == [0, 0]


def test_truncation_and_padding_of_the_file_are_not_used(tokenizers_by_kind: dict[str, str]) -> None:
    tokenizer = Tokenizer.from_str(tokenizers_by_kind["chatml"])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=500)
    assert 2 < len(LocalTokenizer(tokenizer).encode_text("one two three four", False)) < 500


def test_special_tokens_may_be_objects(make_model: Callable[..., Path], tokenizers_by_kind: dict[str, str]) -> None:
    folder = make_model(tokenizers_by_kind["chatml"], "{{ bos_token }}", bos_token={"content": "<|im_start|>"})
    assert LocalTokenizer.load(folder).render(Chat(messages=HI)) == "<|im_start|>"


def test_tokens_that_only_the_configuration_names_are_added(
    make_model: Callable[..., Path], tokenizers_by_kind: dict[str, str]
) -> None:
    size = Tokenizer.from_str(tokenizers_by_kind["chatml"]).get_vocab_size()
    added = {str(size): {"content": "<|tool|>", "special": True, "normalized": False}}
    local = LocalTokenizer.load(make_model(tokenizers_by_kind["chatml"], added_tokens_decoder=added))
    assert local.encode_text("<|tool|>", False).tolist() == [size]


def test_a_configuration_of_another_model_is_named(
    make_model: Callable[..., Path], tokenizers_by_kind: dict[str, str]
) -> None:
    added = {"99999": {"content": "<|tool|>", "special": True}}
    with pytest.raises(TokenizerError, match="not of the same model"):
        LocalTokenizer.load(make_model(tokenizers_by_kind["chatml"], added_tokens_decoder=added))


def test_a_template_of_the_users_own_replaces_the_models(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("mine")
    local = LocalTokenizer.load(model_folder, chat_template=tmp_path / "mine.jinja")
    assert local.render(Chat(messages=HI)) == "mine"


def test_a_model_without_a_template_renders_no_chat(
    make_model: Callable[..., Path], tokenizers_by_kind: dict[str, str]
) -> None:
    assert not LocalTokenizer.load(make_model(tokenizers_by_kind["chatml"])).can_render(Chat(messages=HI))


@pytest.mark.parametrize(
    "chat",
    [
        Chat(messages=HI, local=False),
        Chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ],
)
def test_some_chats_cannot_be_rendered_here(model_folder: Path, chat: Chat) -> None:
    assert not LocalTokenizer.load(model_folder).can_render(chat)


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="does not exist; give a model's folder"):
        LocalTokenizer.load(tmp_path / "nothing")


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"holds no tokenizer\.json"):
        LocalTokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "hello", '{"model": 3}'])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is not a tokenizer"):
        LocalTokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("tokenizer_config.json", "[1", "is not a JSON object"),
        ("chat_template.jinja", "{% for %}", "cannot be compiled, line 1"),
        ("chat_template.json", "{", "not valid JSON"),
    ],
)
def test_a_broken_file_beside_it_is_named(
    tmp_path: Path, tokenizers_by_kind: dict[str, str], file: str, content: str, words: str
) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizers_by_kind["chatml"])
    (tmp_path / file).write_text(content)
    with pytest.raises(TokenizerError, match=words):
        LocalTokenizer.load(tmp_path)


def test_the_chat_template_file_must_be_there(model_folder: Path) -> None:
    with pytest.raises(TokenizerError, match=r"chat template .*x\.jinja does not exist"):
        LocalTokenizer.load(model_folder, chat_template="x.jinja")


def test_the_configuration_is_optional(tmp_path: Path, tokenizers_by_kind: dict[str, str]) -> None:
    data: dict[str, Any] = json.loads(tokenizers_by_kind["chatml"])
    (tmp_path / "any_name.json").write_text(json.dumps(data))
    assert len(LocalTokenizer.load(tmp_path / "any_name.json").encode_text("x"))
