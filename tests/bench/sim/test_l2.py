"""The store that engines share: in a process, and in a real Redis."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator

import pytest

from bench.sim.l2 import MemoryStore, RedisStore
from router.prefix.shared_keys import names
from router.redis_url import RedisUrl
from tests.redis_server import RedisServer, redis_server

PREFIX = "kvctl:kv:m:16:"
KEYS = list(range(1000, 1100))


@pytest.fixture(scope="module")
def running() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def server(running: RedisServer) -> RedisServer:
    running.client.flushall()
    return running


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    made = RedisStore(RedisUrl(server.url), PREFIX, ttl=100.0)
    yield made
    made.close()


def ended(store: RedisStore, count: int = 1) -> list[tuple[int, bool]]:
    """The next `count` writes that end."""
    done: list[tuple[int, bool]] = []
    deadline = time.monotonic() + 20.0
    while len(done) < count:
        assert time.monotonic() < deadline, "the writer has not ended"
        done += store.finished()
        time.sleep(0.005)
    return done


def holds(server: RedisServer, keys: list[int]) -> None:
    for name in names(PREFIX, keys):
        server.client.set(name, b"1")


def test_written_blocks_are_found_by_another_store(server: RedisServer, store: RedisStore) -> None:
    assert store.put(KEYS) == 1
    assert ended(store) == [(1, True)]
    other = RedisStore(RedisUrl(server.url), PREFIX)
    assert other.prefix(KEYS) == 100
    assert other.prefix([*KEYS[:7], 5, *KEYS[7:]]) == 7
    other.close()


@pytest.mark.parametrize("held", [0, 1, 31, 32, 33, 99, 100])
def test_a_prefix_ends_at_the_first_missing_block(server: RedisServer, store: RedisStore, held: int) -> None:
    holds(server, KEYS[:held])
    holds(server, KEYS[held + 1 :])
    assert store.prefix(KEYS) == held


def test_blocks_live_for_the_time_they_are_given(server: RedisServer, store: RedisStore) -> None:
    store.put(KEYS[:1])
    ended(store)
    assert 0 < server.client.pttl(names(PREFIX, KEYS[:1])[0]) <= 100_000


def test_blocks_written_a_short_while_ago_are_no_news(store: RedisStore) -> None:
    assert store.news(KEYS) == 0
    store.put(KEYS[:10])
    assert store.news(KEYS) == 10


def test_a_write_that_fails_is_told_counted_and_news_again() -> None:
    with redis_server() as server:
        store = RedisStore(RedisUrl(server.url), PREFIX)
        server.kill()
        number = store.put(KEYS)
        assert ended(store) == [(number, False)]
        assert store.news(KEYS) == 0
        assert not store.up
        assert store.counters.write_errors == 1
        assert store.put(KEYS) is None
        assert store.counters.dropped == 1
        store.close()


def test_a_redis_that_is_not_there_holds_nothing_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        store = RedisStore(RedisUrl(f"redis://:s3cret@127.0.0.1:{closed.getsockname()[1]}"), PREFIX)
        with caplog.at_level(logging.WARNING):
            assert [store.prefix(KEYS) for _each in range(5)] == [0] * 5
        assert store.counters.lookup_errors + store.counters.skipped == 5
        assert len(caplog.records) == 1
        assert "s3cret" not in caplog.text
        store.close()


def test_an_empty_prompt_asks_nothing(store: RedisStore) -> None:
    assert store.prefix([]) == 0
    assert store.counters.lookups == 0


def test_the_engines_of_a_process_share_their_memory_store() -> None:
    store = MemoryStore()
    one, other = store.client(), store.client()
    assert one.news(KEYS) == 0
    number = one.put(KEYS)
    assert one.finished() == [(number, True)]
    assert other.finished() == []
    assert other.prefix(KEYS) == 100
    assert other.news(KEYS) == 100


def test_a_memory_store_is_bounded() -> None:
    store = MemoryStore(10)
    store.client().put(KEYS)
    assert len(store) == 10
