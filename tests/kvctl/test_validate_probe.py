"""Options of `kvctl validate --probe`: what is refused, and how it is said."""

from __future__ import annotations

from typing import Any

import pytest

from checks.probe.options import ProbeOptions
from kvctl.errors import Problem
from kvctl.validate_run import probe_of

PLAIN: dict[str, Any] = {
    "wanted": True,
    "endpoint": "",
    "requests": 24,
    "heartbeat": False,
    "api_key": "",
    "yes": False,
    "force": False,
}


def test_without_the_flag_there_is_no_probe() -> None:
    assert probe_of(**PLAIN | {"wanted": False}) is None


def test_the_options_are_passed_on() -> None:
    assert probe_of(**PLAIN | {"requests": 8, "yes": True}) == ProbeOptions(requests=8, yes=True)


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"endpoint": "/x"}, "--probe-endpoint"),
        ({"heartbeat": True}, "--probe-heartbeat"),
        ({"force": True}, "--probe-force"),
    ],
)
def test_how_to_probe_without_a_probe_is_a_mistake(given: dict[str, Any], flag: str) -> None:
    with pytest.raises(Problem, match=f"{flag} says how to probe: add --probe"):
        probe_of(**PLAIN | {"wanted": False} | given)


def test_an_endpoint_that_is_none_is_named() -> None:
    with pytest.raises(Problem, match="--probe-endpoint"):
        probe_of(**PLAIN | {"endpoint": "nowhere at all"})
