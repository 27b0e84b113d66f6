"""The load's requests are well formed, and their numbers make each one new."""

from __future__ import annotations

import json

import pytest

from bench.proxy.prompts import BLOCK, CONVERSATIONS, TURNS, Load, templates, token_ids


def body(request: bytes) -> dict[str, object]:
    head, _, text = request.partition(b"\r\n\r\n")
    length = next(int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: "))
    assert length == len(text)
    parsed: dict[str, object] = json.loads(text)
    return parsed


@pytest.mark.parametrize("load", list(Load))
def test_every_request_is_json_of_the_length_it_says(load: Load) -> None:
    for template in templates(load):
        assert body(template.request(123_456_789))["model"] == "sim"


@pytest.mark.parametrize("load", [Load.CHAT, Load.IDS])
def test_two_numbers_make_two_requests_that_differ_only_at_the_end(load: Load) -> None:
    one, other = (templates(load)[-1].request(number) for number in (1, 2))
    assert one != other
    assert len(one) == len(other)
    assert one[: len(one) * 3 // 4] == other[: len(other) * 3 // 4]


def test_prompts_of_ids_have_2000_tokens_on_average() -> None:
    lengths = [len(token_ids(c, t)) for c in range(CONVERSATIONS) for t in range(1, TURNS + 1)]
    assert abs(sum(lengths) / len(lengths) - 2000) < 2 * BLOCK


def test_a_prompt_begins_like_the_one_of_the_turn_before() -> None:
    before, after = token_ids(3, 4), token_ids(3, 5)
    assert after[: len(before) - 3] == before[:-3]
