"""The open loop: what is sent does not depend on what is answered."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

from bench.client.bodies import BodyStyle
from bench.client.connection import Target
from bench.client.load import BlockRun, LoadGenerator
from bench.client.watch import busy_share, cpu_ticks
from bench.workload.model import Request
from bench.workload.tokens import Piece, PieceText, Vocabulary
from tests.bench.fakes import FakeEngine, read_request, serving

TEXT = PieceText(Vocabulary())


def requests(count: int, gap: float = 0.002) -> list[Request]:
    return [Request(f"r{i}", f"s{i}", 0, "g", 0, i * gap, 2, (Piece(i + 1, 40),)) for i in range(count)]


async def run(url: str, count: int, patience: float = 10.0, style: BodyStyle | None = None) -> BlockRun:
    generator = LoadGenerator(TEXT, timeout=patience)
    try:
        return await generator.run(requests(count), Target.parse(url), style or BodyStyle("m"), label="t")
    finally:
        generator.pool.close()


async def test_all_requests_are_sent_though_none_is_answered() -> None:
    got: list[str] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append((await read_request(reader))[1])
        await reader.read()

    async with serving(silent) as url:
        block = await run(url, 150, patience=1.0)
    assert len(got) == 150
    assert {timing.error for timing in block.timings} == {"timeout"}


async def test_a_request_that_timed_out_is_closed_so_that_the_server_stops() -> None:
    closed = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await reader.read()
        closed.set()

    async with serving(hang) as url:
        generator = LoadGenerator(TEXT, timeout=0.2)
        await generator.run(requests(1), Target.parse(url), BodyStyle("m"), label="t")
        await asyncio.wait_for(closed.wait(), 10)


async def test_each_timing_belongs_to_its_request() -> None:
    async with serving(FakeEngine()) as url:
        block = await run(url, 30)
    assert [r.id for r in block.requests] == [f"r{i}" for i in range(30)]
    offsets = [timing.t_sched - block.start for timing in block.timings]
    assert all(math.isclose(a, r.at, abs_tol=1e-9) for a, r in zip(offsets, block.requests, strict=True))
    assert all(timing.ok for timing in block.timings)


async def test_no_request_is_sent_before_its_time() -> None:
    async with serving(FakeEngine()) as url:
        block = await run(url, 30)
    assert all(timing.sched_lag >= 0 for timing in block.timings)


async def test_the_body_asks_for_exactly_the_planned_answer() -> None:
    engine = FakeEngine()
    async with serving(engine) as url:
        await run(url, 1, style=BodyStyle("m", {"priority": 3}))
    body = dict(engine.seen[0])
    assert body.pop("prompt") == TEXT.tokens((Piece(1, 40),)).tolist()
    assert body == {
        "model": "m", "max_tokens": 2, "min_tokens": 2, "ignore_eos": True, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, "priority": 3,
    }  # fmt: skip


async def test_the_nonce_stands_before_every_prompt() -> None:
    engine = FakeEngine()
    lead = (Piece(99, 16),)
    async with serving(engine) as url:
        await run(url, 3, style=BodyStyle("m", {}, lead))
    starts = [json.dumps(body["prompt"][:16]) for body in engine.seen]  # type: ignore[index]
    assert set(starts) == {json.dumps(TEXT.tokens(lead).tolist())}


async def test_a_cancelled_block_returns_what_it_has() -> None:
    engine = FakeEngine(answer_delay=30)
    async with serving(engine) as url:
        generator = LoadGenerator(TEXT, timeout=60)
        task = asyncio.create_task(generator.run(requests(5), Target.parse(url), BodyStyle("m"), label="t"))
        while len(engine.seen) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        block = await task
    assert block.interrupted
    assert {timing.error for timing in block.timings} == {"interrupted"}


def test_the_machines_busy_share_leaves_out_idle_and_waiting(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  10 0 10 60 20 0 0 0 0 0\ncpu0 1 1 1 1\n")
    before = cpu_ticks(stat)
    stat.write_text("cpu  40 0 30 90 40 0 0 0 0 0\n")
    assert before == (20, 100)
    assert busy_share(before, cpu_ticks(stat)) == 0.5
    assert cpu_ticks(tmp_path / "absent") is None


async def test_the_client_watches_itself() -> None:
    async with serving(FakeEngine()) as url:
        block = await run(url, 60)
    assert block.watch.wall > 0
    assert block.watch.cpu > 0
    assert block.watch.loop_lag
    assert 1 <= block.watch.connections <= 60
