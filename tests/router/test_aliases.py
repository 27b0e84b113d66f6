"""Other names for models."""

from __future__ import annotations

import json

import msgspec
import pytest

from router.aliases import parse_aliases, with_model


def test_aliases_are_read_with_what_stands_around_them_removed() -> None:
    assert parse_aliases(["fast=org/small", " best = org/large ", "fast=org/small"]) == {
        "fast": "org/small",
        "best": "org/large",
    }


def test_a_model_may_have_an_equals_sign() -> None:
    assert parse_aliases(["a=b=c"]) == {"a": "b=c"}


@pytest.mark.parametrize(
    ("aliases", "words"),
    [
        (["fast"], "alias 'fast': expected NAME=MODEL"),
        (["=m"], "expected NAME=MODEL"),
        (["a="], "expected NAME=MODEL"),
        (["a=m", "a=n"], "alias 'a' is given for 'm' and for 'n'"),
        (["a=b", "b=m"], "alias 'a' names 'b', which is an alias itself"),
        (["a=a"], "is an alias itself"),
    ],
)
def test_a_wrong_alias_is_named(aliases: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_aliases(aliases)


def test_only_the_model_changes_and_every_other_field_keeps_its_bytes() -> None:
    odd = b'{"a": 1e400, "model" : "fast", "prompt": "\\u00e9 \\"model\\": \\"fast\\"", "n": 10000000000000000000000 }'
    new = with_model(odd, 'org/"big"')
    assert json.loads(new)["model"] == 'org/"big"'
    for kept in (b"1e400", b'"\\u00e9 \\"model\\": \\"fast\\""', b"10000000000000000000000"):
        assert kept in new


def test_a_model_named_twice_is_named_once_afterwards() -> None:
    assert with_model(b'{"model":"a","model":"fast"}', "m") == b'{"model":"m"}'


@pytest.mark.parametrize("body", [b"[]", b"{", b"5"])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        with_model(body, "m")
