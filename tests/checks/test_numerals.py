"""Numbers that strangers wrote."""

from __future__ import annotations

import pytest

from checks.numerals import loads, whole


@pytest.mark.parametrize(
    ("text", "number"),
    [("8000", 8000), ("0", 0), ("9" * 18, 10**18 - 1), ("9" * 19, None), ("9" * 5000, None), ("-1", None), ("", None)],
)
def test_a_row_of_digits_is_a_number(text: str, number: int | None) -> None:
    assert whole(text) == number


def test_nothing_is_no_number() -> None:
    assert whole(None) is None


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 19, "-" + "9" * 5000])
def test_numbers_that_cannot_be_reckoned_with_are_null(text: str) -> None:
    assert loads(f'{{"a": [{text}, 1]}}') == {"a": [None, 1]}


@pytest.mark.parametrize(("text", "number"), [("-" + "9" * 18, 1 - 10**18), ("0.5", 0.5), ("1e3", 1000.0), ("7", 7)])
def test_other_numbers_stay(text: str, number: float) -> None:
    assert loads(text) == number


def test_what_is_nested_too_deeply_is_refused_like_what_is_no_json() -> None:
    with pytest.raises(ValueError, match="too deeply"):
        loads("[" * 200_000)
