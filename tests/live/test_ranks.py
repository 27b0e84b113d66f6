"""Data-parallel ranks, live: a publisher a rank on ports one after the other, and requests that follow them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.live.conftest import RunningRouter, running_router
from tests.live.test_models import Engine
from tests.router.events.engine import ScriptedEngine
from tests.router.events.frames import frame, stored

SIZE, BLOCKS, RANKS = 16, 6, 3


def neighbouring_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for _attempt in range(200):
        held: list[socket.socket] = []
        try:
            first = 0
            for number in range(count):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", first + number if first else 0))
                first = first or held[0].getsockname()[1]
            return first
        except (OSError, OverflowError):
            continue
        finally:
            for one in held:
                one.close()
    raise AssertionError("no free ports in a row")


def prompt(rank: int) -> list[int]:
    return [500 + rank] * (SIZE * BLOCKS)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.close()


@pytest.fixture(scope="module")
def router(engine: Engine) -> Iterator[RunningRouter]:
    port, replay = neighbouring_ports(RANKS), neighbouring_ports(RANKS)
    publishers = []
    try:
        for rank in range(RANKS):
            publisher = ScriptedEngine(port=port + rank, replay_port=replay + rank)
            publishers.append(publisher)
            told = stored([100 + block for block in range(BLOCKS)], prompt(rank), size=SIZE)
            publisher.buffer.append((0, frame(told, rank=rank)))
            publisher.next = 1
        spec = f"{engine.url},id=w,ranks={RANKS},kv=tcp://127.0.0.1:{port},replay=tcp://127.0.0.1:{replay}"
        with running_router("--worker", spec) as running:
            running.wait("all is indexed", lambda: running.get("/workers/w")["cached_blocks"] == RANKS * BLOCKS)
            yield running
    finally:
        for publisher in publishers:
            publisher.close()


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_prompt_goes_to_the_rank_that_holds_it_and_the_engine_is_told_which(
    router: RunningRouter, engine: Engine, rank: int
) -> None:
    answer = router.ask([*prompt(rank), 1, 2, 3], model="base")
    decision = router.decision(answer)
    assert decision["winner"] == {"worker": "w", "dp_rank": rank}
    assert [row["overlap"]["device"] for row in decision["candidates"]] == [
        BLOCKS if row == rank else 0 for row in range(RANKS)
    ]
    assert engine.headers[-1]["x-data-parallel-rank"] == str(rank)


def test_each_rank_has_a_source_of_its_own(router: RunningRouter) -> None:
    sources = router.get("/workers/w")["kv_sources"]
    assert [source["dp_rank"] for source in sources] == list(range(RANKS))
    assert len({source["endpoint"] for source in sources}) == RANKS
    assert all(source["connected"] and source["complete"] for source in sources)
