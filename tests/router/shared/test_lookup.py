"""Asking a real Redis for a prompt's blocks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from router.prefix.hashing import Tokens
from router.prefix.shared_keys import names, namespace, shared_keys
from router.redis_url import RedisUrl
from router.shared.lookup import LookupSettings, RedisLookup
from tests.redis_server import RedisServer, redis_server

BLOCK = 4
TOKENS: Tokens = np.arange(1, 4001, dtype=np.uint32)
LENGTH = len(TOKENS) // BLOCK


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def running() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def server(running: RedisServer) -> RedisServer:
    running.client.flushall()
    return running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def lookup(server: RedisServer, clock: Clock) -> AsyncIterator[RedisLookup]:
    asked = RedisLookup(LookupSettings(RedisUrl(server.url), timeout=10.0), clock)
    yield asked
    await asked.close()


def put(server: RedisServer, *blocks: int, model: str = "m", salt: str | None = None) -> None:
    """As an engine would write some blocks of the prompt."""
    keys = shared_keys(TOKENS, BLOCK, None, salt).tolist()
    for name in names(namespace(model, BLOCK), [keys[block] for block in blocks]):
        server.client.set(name, b"1")


async def depth(lookup: RedisLookup, model: str = "m", **other: Any) -> int:
    depths, sure = await lookup.depths(model, TOKENS, (BLOCK,), **other)
    assert sure
    return depths[BLOCK]


async def test_an_empty_store_holds_nothing_of_a_prompt(lookup: RedisLookup) -> None:
    assert await depth(lookup) == 0
    assert lookup.outcomes == {"miss": 1}


@pytest.mark.parametrize("held", [1, 31, 32, 33, 159, 160, 161, 415, 416, 417, 999, 1000])
async def test_the_leading_blocks_are_counted_to_the_first_that_is_missing(
    server: RedisServer, lookup: RedisLookup, held: int
) -> None:
    put(server, *range(held))
    assert await depth(lookup) == held


async def test_blocks_behind_a_gap_do_not_count(server: RedisServer, lookup: RedisLookup) -> None:
    put(server, *range(10), *range(11, 60))
    assert await depth(lookup) == 10


async def test_a_prompt_whose_first_block_is_missing_has_nothing(server: RedisServer, lookup: RedisLookup) -> None:
    put(server, *range(1, 32))
    assert await depth(lookup) == 0


async def test_models_salts_and_adapters_are_apart(server: RedisServer, lookup: RedisLookup) -> None:
    put(server, *range(5))
    put(server, *range(7), salt="s")
    assert await depth(lookup, "other") == 0
    assert await depth(lookup, lora="adapter") == 0
    assert await depth(lookup, salt="s") == 7


async def test_found_blocks_are_believed_for_a_while_and_missing_ones_asked_again(
    server: RedisServer, lookup: RedisLookup, clock: Clock
) -> None:
    put(server, *range(10))
    await depth(lookup)
    server.client.flushall()
    put(server, 10, 11)
    assert await depth(lookup) == 12
    clock.now += 11.0
    assert await depth(lookup) == 0


async def test_a_prompt_that_is_believed_whole_is_not_asked_for(server: RedisServer, lookup: RedisLookup) -> None:
    put(server, *range(LENGTH))
    await depth(lookup)
    asked = lookup.blocks["asked"]
    assert await depth(lookup) == LENGTH
    assert lookup.blocks["asked"] == asked


async def test_what_is_believed_is_bounded(server: RedisServer, clock: Clock) -> None:
    put(server, *range(50))
    lookup = RedisLookup(LookupSettings(RedisUrl(server.url), timeout=10.0, most_believed=20), clock)
    assert await depth(lookup) == 50
    assert lookup.believed == 20
    await lookup.close()


async def test_no_more_than_the_most_blocks_are_asked_for(server: RedisServer, clock: Clock) -> None:
    put(server, *range(50))
    lookup = RedisLookup(LookupSettings(RedisUrl(server.url), timeout=10.0, most_blocks=40), clock)
    assert await depth(lookup) == 40
    await lookup.close()


async def test_each_block_size_is_asked_for_on_its_own(server: RedisServer, lookup: RedisLookup) -> None:
    put(server, *range(8))
    assert await lookup.depths("m", TOKENS, (BLOCK, 2 * BLOCK)) == ({BLOCK: 8, 2 * BLOCK: 0}, True)


async def test_a_redis_that_is_gone_makes_the_answer_unsure_and_is_left_alone_for_a_second(clock: Clock) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = RedisUrl(f"redis://127.0.0.1:{closed.getsockname()[1]}")
        lookup = RedisLookup(LookupSettings(url, timeout=10.0), clock)
        assert await lookup.depths("m", TOKENS, (BLOCK,)) == ({BLOCK: 0}, False)
        assert not lookup.up
        assert await lookup.depths("m", TOKENS, (BLOCK,)) == ({BLOCK: 0}, False)
        assert lookup.outcomes == {"failed": 1, "skipped": 1}
        clock.now += 1.5
        await lookup.depths("m", TOKENS, (BLOCK,))
        assert lookup.outcomes == {"failed": 2, "skipped": 1}
        await lookup.close()


async def test_what_is_believed_still_counts_while_redis_is_late(server: RedisServer, clock: Clock) -> None:
    lookup = RedisLookup(LookupSettings(RedisUrl(server.url), timeout=1.0), clock)
    put(server, *range(6))
    assert await depth(lookup) == 6
    server.pause()
    try:
        assert await lookup.depths("m", TOKENS, (BLOCK,)) == ({BLOCK: 6}, False)
    finally:
        server.resume()
    assert lookup.outcomes == {"hit": 1, "late": 1}
    await lookup.close()


async def test_a_prompt_too_long_for_its_time_keeps_what_was_found_and_blames_nobody(clock: Clock) -> None:
    async def one_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Says that the first 32 names exist, and nothing more."""
        while (line := await reader.readline()).startswith(b"*"):
            words = [await _bulk(reader) for _word in range(int(line[1:]))]
            if words[0] != b"EXISTS":
                writer.write(b"+OK\r\n")
            elif len(words) == 33:
                writer.write(b":32\r\n")
        writer.close()

    server = await asyncio.start_server(one_answer, "127.0.0.1", 0)
    url = RedisUrl(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    lookup = RedisLookup(LookupSettings(url, timeout=1.0), clock)
    assert await lookup.depths("m", TOKENS, (BLOCK,)) == ({BLOCK: 32}, False)
    assert lookup.outcomes == {"late": 1}
    assert lookup.up
    await lookup.close()
    server.close()


async def _bulk(reader: asyncio.StreamReader) -> bytes:
    length = int((await reader.readline())[1:])
    return (await reader.readexactly(length + 2))[:-2]


async def test_a_redis_that_refuses_is_unsure_too(server: RedisServer, clock: Clock) -> None:
    host = server.url.removeprefix("redis://")
    lookup = RedisLookup(LookupSettings(RedisUrl(f"redis://:wrong@{host}"), timeout=10.0), clock)
    assert await lookup.depths("m", TOKENS, (BLOCK,)) == ({BLOCK: 0}, False)
    await lookup.close()


def test_a_timeout_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="timeout must be between"):
        LookupSettings(RedisUrl("redis://h"), timeout=0.0)
