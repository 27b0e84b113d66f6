"""What the user may ask of the probe, and its budget."""

from __future__ import annotations

import pytest

from checks.probe.options import Budget, Endpoint, ProbeError, ProbeOptions


@pytest.mark.parametrize(
    ("text", "base", "path", "chat"),
    [
        ("", "", "/v1/completions", False),
        ("/v1/chat/completions", "", "/v1/chat/completions", True),
        ("/invocations", "", "/invocations", False),
        ("http://gw:8080", "http://gw:8080", "/v1/completions", False),
        ("http://gw:8080/", "http://gw:8080", "/v1/completions", False),
        ("https://gw/v1/chat/completions", "https://gw", "/v1/chat/completions", True),
    ],
)
def test_an_endpoint_is_a_path_a_url_or_both(text: str, base: str, path: str, chat: bool) -> None:
    found = Endpoint.parse(text)
    assert (found.base, found.path, found.chat) == (base, path, chat)


@pytest.mark.parametrize("text", ["/a b", "/x?y=1", "ftp://gw", "http://gw:99999", "http://gw?x=1"])
def test_what_is_no_endpoint_is_refused_by_name(text: str) -> None:
    with pytest.raises(ProbeError, match="--probe-endpoint"):
        ProbeOptions(endpoint=text)


@pytest.mark.parametrize("number", [0, 5, 25])
def test_the_number_of_requests_has_limits(number: int) -> None:
    with pytest.raises(ProbeError, match=rf"--probe-requests {number}: 6 to 24"):
        ProbeOptions(requests=number)


def test_a_key_is_not_shown() -> None:
    assert "sesame" not in repr(ProbeOptions(api_key="sesame"))


def test_a_budget_ends_with_requests_or_tokens() -> None:
    budget = Budget(3, 1000)
    assert budget.allows(3, 333)
    assert not budget.allows(3, 334)
    assert not budget.allows(4, 1)


def test_what_the_engine_counted_replaces_the_estimate() -> None:
    budget = Budget(3, 1000)
    budget.spend(400)
    budget.correct(400, 700)
    assert (budget.requests, budget.tokens) == (2, 300)
