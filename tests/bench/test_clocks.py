"""What servers add up themselves, read before and after a block."""

from __future__ import annotations

import asyncio

from bench.arms import Arm
from bench.clocks import BlockClocks, read_clocks
from bench.cold import Engine
from bench.control import ENGINE_CLOCKS, Clock, Control
from tests.bench.fakes import read_request, serving

TTFT = "vllm:time_to_first_token_seconds"


def exposition(seconds: float, count: int, name: str = TTFT) -> bytes:
    text = f'{name}_bucket{{m="x",le="1"}} 9\n{name}_sum{{m="x"}} {seconds}\n{name}_count{{m="x"}} {count}\n'
    return f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()


def server(answers: bytes):  # type: ignore[no-untyped-def]
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(answers)
            await writer.drain()

    return serving(handle)


async def test_the_clocks_of_all_engines_are_added_and_the_router_s_are_its_own() -> None:
    async with (
        server(exposition(1.5, 10)) as first,
        server(exposition(0.5, 4)) as second,
        server(exposition(3.0, 14, "kvctl_tokenize_seconds")) as admin,
        Control() as control,
    ):
        arm = Arm("kv", "kv", "http://127.0.0.1:1", admin, (Engine("a", first), Engine("b", second)))
        found = await read_clocks(control, arm)
    assert found == BlockClocks({"ttft": Clock(2.0, 14)}, {"tokenize": Clock(3.0, 14)})


async def test_an_engine_that_does_not_answer_leaves_the_engines_unknown() -> None:
    async with server(exposition(1.5, 10)) as first, Control() as control:
        arm = Arm("kv", "kv", "http://127.0.0.1:1", None, (Engine("a", first), Engine("b", "http://127.0.0.1:9")))
        assert await read_clocks(control, arm) == BlockClocks()


async def test_sglang_s_name_of_the_same_clock_is_known() -> None:
    async with server(exposition(1.5, 10, "sglang:time_to_first_token_seconds")) as url, Control() as control:
        assert await control.clocks(url, ENGINE_CLOCKS) == {"ttft": Clock(1.5, 10)}


async def test_an_arm_of_which_nothing_is_known_has_no_clocks() -> None:
    async with Control() as control:
        assert await read_clocks(control, Arm("other", "url", "http://127.0.0.1:1")) == BlockClocks()


def test_a_block_s_clocks_are_what_was_added() -> None:
    before = BlockClocks({"ttft": Clock(1.0, 5), "queue": Clock(1.0, 5)}, {})
    after = BlockClocks({"ttft": Clock(1.75, 8)}, {"decide": Clock(1.0, 1)})
    assert after.since(before) == BlockClocks({"ttft": Clock(0.75, 3)}, {})
