from __future__ import annotations

import pytest

from router.events.endpoint import resolve_endpoint


@pytest.mark.parametrize(
    ("told", "host", "rank", "reached"),
    [
        ("tcp://*:5561", "10.0.0.7", 0, "tcp://10.0.0.7:5561"),
        ("tcp://*:5561", "10.0.0.7", 3, "tcp://10.0.0.7:5564"),
        ("tcp://0.0.0.0:5561", "engine.local", 0, "tcp://engine.local:5561"),
        ("tcp://[::]:5561", "fd00::7", 1, "tcp://[fd00::7]:5562"),
        ("tcp://*:5561", "[fd00::7]", 0, "tcp://[fd00::7]:5561"),
        ("tcp://127.0.0.1:5561", "10.0.0.7", 2, "tcp://127.0.0.1:5563"),
        ("tcp://other:5561", "10.0.0.7", 0, "tcp://other:5561"),
        ("ipc:///tmp/kv", "10.0.0.7", 2, "ipc:///tmp/kv"),
    ],
)
def test_what_an_engine_tells_becomes_what_can_be_reached(told: str, host: str, rank: int, reached: str) -> None:
    assert resolve_endpoint(told, host, rank) == reached


@pytest.mark.parametrize("told", ["tcp://*", "tcp://*:0", "tcp://*:99999", "tcp://*:port", "tcp://a:b:1"])
def test_an_endpoint_without_a_usable_port_is_refused(told: str) -> None:
    with pytest.raises(ValueError, match="expected tcp://HOST:PORT"):
        resolve_endpoint(told, "10.0.0.7")


def test_a_rank_beyond_the_last_port_is_refused() -> None:
    with pytest.raises(ValueError, match="dp rank 10"):
        resolve_endpoint("tcp://*:65530", "10.0.0.7", 10)
