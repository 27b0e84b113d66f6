"""The self-check names why ids differ, and moves the service between the local tokenizer and the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from router.tokens.chat import Chat
from router.tokens.remote import Fetched
from router.tokens.selfcheck import CheckResult, check
from router.tokens.service import Cause, TokenService
from router.tokens.template import ChatTemplate, TemplateRejected
from router.tokens.tokenizer import LocalTokenizer

Ask = Callable[[dict[str, Any]], Awaitable[Fetched]]


def engine(tokenizer: LocalTokenizer, model: str | None = "m") -> Ask:
    """An engine that has `tokenizer`, as its `/tokenize` would answer."""

    async def ask(question: dict[str, Any]) -> Fetched:
        assert question.get("model") == model
        if "prompt" in question:
            return Fetched(tokenizer.encode_text(question["prompt"], question["add_special_tokens"]), 200)
        if tokenizer.template is None:
            return Fetched(None, 400, "default chat template is no longer allowed")
        try:
            return Fetched(tokenizer.encode_chat(Chat(question["messages"], question.get("tools"))), 200)
        except TemplateRejected as error:
            return Fetched(None, 400, str(error))

    return ask


def broken(status: int, message: str = "") -> Ask:
    async def ask(question: dict[str, Any]) -> Fetched:
        return Fetched(None, status, message)

    return ask


@pytest.fixture
def local(model_folder: Path) -> LocalTokenizer:
    return LocalTokenizer.load(model_folder)


@pytest.fixture
def service(local: LocalTokenizer) -> Iterator[TokenService]:
    made = TokenService(local)
    yield made
    made.close()


def with_template(tokenizers_by_kind: dict[str, str], source: str | None, kind: str = "chatml") -> LocalTokenizer:
    template = None if source is None else ChatTemplate(source, {"bos_token": "<|im_start|>"})
    return LocalTokenizer(Tokenizer.from_str(tokenizers_by_kind[kind]), template)


def trusted(service: TokenService) -> tuple[bool, bool]:
    """Whether texts and chats are still tokenised here."""
    return not service._distrust_text, not service._distrust_chat


async def test_the_same_tokenizer_is_good(service: TokenService, local: LocalTokenizer) -> None:
    result = await check(service, engine(local), "m")
    assert (result.ok, result.cause, result.compared) == (True, None, 5)
    assert trusted(service) == (True, True)


async def test_the_model_may_be_unnamed(service: TokenService, local: LocalTokenizer) -> None:
    assert (await check(service, engine(local, None), None)).ok


async def test_another_vocabulary_is_named(
    service: TokenService, tokenizers_by_kind: dict[str, str], templates: dict[str, str]
) -> None:
    other = with_template(tokenizers_by_kind, templates["chatml"], "llama3")
    result = await check(service, engine(other), "m")
    assert (result.ok, result.cause) == (False, Cause.VOCABULARY)
    assert trusted(service) == (False, False)


async def test_another_bos_is_named_and_chats_stay_here(
    service: TokenService, tokenizers_by_kind: dict[str, str], templates: dict[str, str]
) -> None:
    tokenizer = Tokenizer.from_str(tokenizers_by_kind["chatml"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    result = await check(service, engine(LocalTokenizer(tokenizer, ChatTemplate(templates["chatml"]))), "m")
    assert (result.ok, result.cause, result.position) == (False, Cause.BOS, 0)
    assert result.theirs.startswith("<|endoftext|>")
    assert trusted(service) == (False, True)


async def test_a_bos_in_the_template_is_named_and_texts_stay_here(
    service: TokenService, tokenizers_by_kind: dict[str, str], templates: dict[str, str]
) -> None:
    other = with_template(tokenizers_by_kind, "<|endoftext|>" + templates["chatml"])
    result = await check(service, engine(other), "m")
    assert (result.cause, result.text_differs, result.chat_differs) == (Cause.BOS, False, True)
    assert trusted(service) == (True, False)


async def test_another_template_is_named_with_both_texts(
    service: TokenService, tokenizers_by_kind: dict[str, str], templates: dict[str, str]
) -> None:
    other = with_template(tokenizers_by_kind, templates["chatml"].replace("'\n'", "': '"))
    result = await check(service, engine(other), "m")
    assert (result.ok, result.cause) == (False, Cause.TEMPLATE)
    assert result.position is not None
    assert "system\n" in result.ours
    assert "system:" in result.theirs
    assert repr(result.ours) in result.message
    assert trusted(service) == (True, False)


async def test_a_difference_in_the_tools_only_is_found(
    service: TokenService, tokenizers_by_kind: dict[str, str], templates: dict[str, str]
) -> None:
    other = with_template(tokenizers_by_kind, templates["chatml"] + "{% if tools %}tools{% endif %}")
    result = await check(service, engine(other), "m")
    assert (result.cause, result.message.startswith("a chat with a tool")) == (Cause.TEMPLATE, True)


@pytest.mark.parametrize(
    ("here", "there"), [("{{ raise_exception('no') }}", "x"), ("x", "{{ raise_exception('no') }}")]
)
async def test_a_chat_that_only_one_side_takes_is_a_difference_of_templates(
    tokenizers_by_kind: dict[str, str], templates: dict[str, str], here: str, there: str
) -> None:
    refuse = "{% if messages[0].role == 'system' %}SIDE{% endif %}" + templates["chatml"]
    service = TokenService(with_template(tokenizers_by_kind, refuse.replace("SIDE", here if "raise" in here else "")))
    other = with_template(tokenizers_by_kind, refuse.replace("SIDE", there if "raise" in there else ""))
    result = await check(service, engine(other), "m")
    assert (result.ok, result.cause) == (False, Cause.TEMPLATE)
    assert trusted(service) == (True, False)


async def test_a_chat_that_both_sides_refuse_is_no_difference(
    tokenizers_by_kind: dict[str, str], templates: dict[str, str]
) -> None:
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + templates["chatml"]
    service = TokenService(with_template(tokenizers_by_kind, source))
    result = await check(service, engine(with_template(tokenizers_by_kind, source)), "m")
    assert (result.ok, result.cause, result.compared) == (True, None, 3)


async def test_an_engine_without_a_template_is_named_and_changes_nothing(
    service: TokenService, tokenizers_by_kind: dict[str, str]
) -> None:
    result = await check(service, engine(with_template(tokenizers_by_kind, None)), "m")
    assert (result.ok, result.cause) == (True, Cause.NO_TEMPLATE_THERE)
    assert trusted(service) == (True, True)


async def test_a_missing_template_here_is_named(tokenizers_by_kind: dict[str, str], local: LocalTokenizer) -> None:
    service = TokenService(with_template(tokenizers_by_kind, None))
    assert (await check(service, engine(local), "m")).cause is Cause.NO_TEMPLATE_HERE


@pytest.mark.parametrize(
    ("status", "cause"),
    [(404, Cause.NO_TOKENIZE), (405, Cause.NO_TOKENIZE), (0, Cause.NO_ANSWER), (500, Cause.NO_ANSWER)],
)
async def test_an_engine_that_cannot_be_asked_changes_nothing(service: TokenService, status: int, cause: Cause) -> None:
    result = await check(service, broken(status, "refused"), "m")
    assert (result.ok, result.cause) == (False, cause)
    assert trusted(service) == (True, True)


async def test_a_later_good_check_brings_the_local_tokenizer_back(
    service: TokenService, local: LocalTokenizer, tokenizers_by_kind: dict[str, str], templates: dict[str, str]
) -> None:
    await check(service, engine(with_template(tokenizers_by_kind, templates["chatml"], "llama3")), "m")
    assert trusted(service) == (False, False)
    await check(service, broken(0), "m")
    assert trusted(service) == (False, False), "an engine that does not answer proves nothing"
    await check(service, engine(local), "m")
    assert trusted(service) == (True, True)


async def test_without_a_local_tokenizer_there_is_nothing_to_check() -> None:
    result: CheckResult = await check(TokenService(), broken(0), "m")
    assert (result.ok, result.compared) == (True, 0)
