"""Equal text under another salt or another block size is another block: what is promised is what the engine finds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.torture.system import System, system, text


def promised_and_found(found: System, prompt: str, **fields: Any) -> tuple[int, int]:
    answer = found.ask(prompt, **fields)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    return found.decision(answer)["predicted_cached_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("block_size", [16, 64])
def test_what_is_promised_is_found_with_and_without_salt(block_size: int) -> None:
    with system(1, speedup=50, block_size=block_size) as found:
        prompt = text(400)
        for salt in (None, "tenant-a", "tenant-b"):
            named = {} if salt is None else {"cache_salt": salt}
            assert promised_and_found(found, prompt, **named) == (0, 0)
            time.sleep(0.5)
            promised, really = promised_and_found(found, prompt, **named)
            assert promised == really > 0


def test_chat_and_completion_of_the_same_words_are_told_apart() -> None:
    with system(1, speedup=50) as found:
        import httpx

        words = text(300)
        body = {"model": "sim", "messages": [{"role": "user", "content": words}], "max_tokens": 2}
        for expected in (False, True):
            answer = httpx.post(f"{found.url}/v1/chat/completions", json=body, timeout=30.0)
            cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert (cached > 0) is expected
            assert found.decision(answer)["predicted_cached_tokens"] == cached
            time.sleep(0.5)
        assert promised_and_found(found, words)[0] == 0
