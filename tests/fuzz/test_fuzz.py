"""A bounded run of both targets, the same messages each time. `python -m tests.fuzz` goes on."""

from __future__ import annotations

import pytest

from tests.fuzz.targets import run


@pytest.mark.parametrize("name", ["request", "response"])
def test_no_message_is_read_in_two_ways(name: str) -> None:
    taken = run(name, 0, 3000)
    assert 300 < taken < 2900, "nearly all or nearly none taken: the mutations show nothing"
