"""Parameters of workloads: what is read, and what a wrong one says."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bench.workload.model import WorkloadError
from bench.workload.parameters import flag, number, parameters, read, split, text


@dataclass(frozen=True, slots=True)
class Sample:
    count: int = number(3, 1, 10, "how many")
    share: float = number(0.5, 0, 1, "how much")
    span: tuple[int, int] = number((2, 4), 1, 9, "how long")
    wait: bool = flag(False, "whether")
    names: str = text("a+b", "names joined by +", "who")


def test_a_name_alone_sets_nothing() -> None:
    assert split("zipf") == ("zipf", {})


def test_keys_and_values_are_split_and_dashes_are_underscores() -> None:
    assert split("x:think-time=1-2, b=3") == ("x", {"think_time": "1-2", "b": "3"})


@pytest.mark.parametrize(("bad", "said"), [("x:", "not key=value"), ("x:a", "not key=value"), ("x:a=1,a=2", "twice")])
def test_what_is_not_key_equals_value_is_refused(bad: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        split(bad)


def test_values_are_typed() -> None:
    given = {"count": "7", "share": "0.25", "span": "3-5", "wait": "yes", "names": "c"}
    assert read(Sample, "s", given) == Sample(7, 0.25, (3, 5), True, "c")


def test_one_number_is_a_range_of_itself() -> None:
    assert read(Sample, "s", {"span": "6"}).span == (6, 6)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("count", "0", "count: a whole number from 1 to 10 wanted, got '0'"),
        ("count", "2.5", "a whole number"),
        ("share", "nan", "share: a number from 0 to 1"),
        ("share", "1.5", "got '1.5'"),
        ("span", "5-3", "span: LOW-HIGH or one whole number"),
        ("span", "3-x", "LOW-HIGH"),
        ("wait", "maybe", "wait: yes or no wanted"),
        ("names", "x" * 2000, "names joined by"),
        ("other", "1", "no parameter 'other': it has count, share, span, wait, names"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_wanted(key: str, value: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        read(Sample, "s", {key: value})


def test_defaults_are_shown_as_they_are_written() -> None:
    assert [one.default for one in parameters(Sample)] == ["3", "0.5", "2-4", "no", "a+b"]
