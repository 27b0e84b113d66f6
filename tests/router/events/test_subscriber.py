"""The listener on real sockets, against a scripted engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from router.events.subscriber import Cleared, Delivery, EventListener, Events, Lost, Source
from router.events.wire import BlockStored

from .engine import TOPIC, ScriptedEngine
from .frames import frame, removed


class Seen:
    """What was delivered, in order; a frame as (engine's first token, number)."""

    def __init__(self) -> None:
        self.all: list[Delivery] = []
        self.fail_on: int | None = None
        self.block = 0.0

    def __call__(self, delivery: Delivery) -> None:
        if self.block:
            time.sleep(self.block)
            self.block = 0.0
        self.all.append(delivery)
        if isinstance(delivery, Events) and delivery.seq == self.fail_on:
            raise RuntimeError("the index does not like it")

    @property
    def frames(self) -> list[int]:
        return [d.seq for d in self.all if isinstance(d, Events)]

    @property
    def story(self) -> list[object]:
        return [(_token(d), d.seq) if isinstance(d, Events) else type(d) for d in self.all]


def _token(delivery: Events) -> int:
    (event,) = delivery.events
    assert isinstance(event, BlockStored)
    return int(event.tokens[0])


async def until(fact: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not fact():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.005)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest_asyncio.fixture
async def listener(seen: Seen) -> AsyncIterator[EventListener]:
    made = EventListener(seen, asyncio.get_running_loop())
    yield made
    made.close()


@pytest.fixture
def engines() -> Iterator[Callable[..., ScriptedEngine]]:
    made: list[ScriptedEngine] = []

    def make(**options: int) -> ScriptedEngine:
        made.append(ScriptedEngine(**options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def listen(listener: EventListener, engine: ScriptedEngine, worker: str = "w", rank: int = 0) -> None:
    listener.add(Source(worker, rank, engine.endpoint, engine.replay_endpoint, TOPIC.decode()))
    engine.wait_for_reader()


async def settled(listener: EventListener, worker: str = "w") -> None:
    """Connected, and done with the replay of the beginning."""
    state = listener.states()[worker, 0]
    await until(lambda: state.connected and not state.replaying)


async def test_frames_are_decoded_and_delivered_in_order(listener, seen, engines) -> None:
    engine = engines()
    listen(listener, engine)
    engine.publish(5)
    await until(lambda: len(seen.frames) == 5)
    assert seen.story == [(0, n) for n in range(5)]
    state = listener.states()["w", 0]
    assert (state.last_seq, state.frames, state.blocks, state.complete) == (4, 5, 5, True)
    assert state.last_event_at is not None


async def test_a_late_joiner_learns_what_was_published_before(listener, seen, engines) -> None:
    engine = engines()
    engine.publish(4)
    listen(listener, engine)
    await until(lambda: len(seen.frames) == 4)
    engine.publish(2)
    await until(lambda: len(seen.frames) == 6)
    assert seen.story == [(0, n) for n in range(6)]
    assert listener.states()["w", 0].complete


async def test_a_late_joiner_behind_a_short_buffer_learns_what_there_is(listener, seen, engines) -> None:
    engine = engines()
    engine.publish(6)
    engine.begin = 4
    listen(listener, engine)
    await until(lambda: len(seen.frames) == 2)
    assert seen.story == [(0, 4), (0, 5)]
    assert not listener.states()["w", 0].complete


async def test_a_late_joiner_without_replay_follows_from_there(listener, seen, engines) -> None:
    engine = engines(replay=False)
    engine.lose(3)
    listen(listener, engine)
    engine.publish(2)
    await until(lambda: len(seen.frames) == 2)
    assert seen.story == [(0, 3), (0, 4)]


async def test_a_gap_is_repaired(listener, seen, engines) -> None:
    engine = engines()
    listen(listener, engine)
    engine.publish(2)
    await until(lambda: len(seen.frames) == 2)
    engine.lose(3)
    engine.publish(1)
    await until(lambda: len(seen.frames) == 6)
    assert seen.story == [(0, n) for n in range(6)]
    state = listener.states()["w", 0]
    await until(lambda: state.repaired == 1)
    assert (state.gaps, state.lost, state.complete) == (1, 0, True)


async def test_frames_that_come_during_a_repair_are_delivered_behind_it(listener, seen, engines) -> None:
    engine = engines()
    listen(listener, engine)
    await settled(listener)
    engine.publish(1)
    await until(lambda: len(seen.frames) == 1)
    engine.hold.clear()
    engine.lose(1)
    engine.publish(1)
    await until(lambda: engine.requests[-1] == 1)
    engine.publish(3)
    engine.hold.set()
    await until(lambda: len(seen.frames) == 6)
    assert seen.story == [(0, n) for n in range(6)]


async def test_a_gap_without_replay_is_lost_and_live_events_continue(listener, seen, engines) -> None:
    engine = engines(replay=False)
    listen(listener, engine)
    engine.publish(1)
    engine.lose(2)
    engine.publish(2)
    await until(lambda: len(seen.frames) == 3)
    assert seen.story == [(0, 0), Lost, (0, 3), (0, 4)]
    lost = seen.all[1]
    assert isinstance(lost, Lost)
    assert (lost.worker_id, lost.rank) == ("w", 0)
    assert "no replay socket" in lost.reason


async def test_a_gap_older_than_the_replay_buffer_is_lost(listener, seen, engines) -> None:
    engine = engines()
    listen(listener, engine)
    engine.publish(1)
    await until(lambda: len(seen.frames) == 1)
    engine.lose(3)
    engine.begin = 3
    engine.publish(1)
    await until(lambda: len(seen.frames) == 3)
    assert seen.story == [(0, 0), Lost, (0, 3), (0, 4)]


async def test_a_replay_that_is_not_answered_is_lost_after_the_patience(seen, engines) -> None:
    engine = engines()
    listener = EventListener(seen, asyncio.get_running_loop(), patience=0.2)
    try:
        listen(listener, engine)
        engine.publish(1)
        await until(lambda: len(seen.frames) == 1)
        engine.silent = True
        engine.lose(1)
        engine.publish(1)
        await until(lambda: len(seen.frames) == 2)
        assert seen.story == [(0, 0), Lost, (0, 2)]
    finally:
        listener.close()


async def test_a_lower_number_is_a_new_epoch_learnt_from_its_beginning(listener, seen, engines) -> None:
    engine = engines()
    listen(listener, engine)
    engine.publish(3)
    await until(lambda: len(seen.frames) == 3)
    engine.buffer.clear()
    engine.next, engine.first_token = 0, 9
    engine.lose(1)
    engine.publish(1)
    await until(lambda: len(seen.frames) == 5)
    assert seen.story == [(0, 0), (0, 1), (0, 2), Cleared, (9, 0), (9, 1)]


@pytest.mark.parametrize("replay", [True, False])
async def test_an_engine_restarted_on_its_port_is_a_new_epoch_and_never_mixed(listener, seen, engines, replay) -> None:
    engine = engines(replay=replay)
    listen(listener, engine)
    engine.publish(20)
    await until(lambda: len(seen.frames) == 20)
    engine.close()
    again = engines(port=engine.port, replay_port=engine.replay_port, replay=replay, first_token=9)
    again.wait_for_reader()
    again.publish(30)
    await until(lambda: len(seen.frames) == 50)
    assert seen.story == [(0, n) for n in range(20)] + [Cleared] + [(9, n) for n in range(30)]
    assert listener.states()["w", 0].reconnects == 1


async def test_a_dead_engine_is_not_connected(listener, seen, engines) -> None:
    engine = engines()
    listen(listener, engine)
    state = listener.states()["w", 0]
    await until(lambda: state.connected)
    engine.close()
    await until(lambda: not state.connected)


async def test_the_rank_of_a_frame_overrides_that_of_its_source(listener, seen, engines) -> None:
    engine = engines()
    listen(listener, engine)
    engine.publish(1)
    engine.publish(1, rank=3)
    await until(lambda: len(seen.frames) == 2)
    assert [delivery.rank for delivery in seen.all] == [0, 3]


async def test_a_loss_concerns_every_rank_that_the_source_named(listener, seen, engines) -> None:
    engine = engines(replay=False)
    listen(listener, engine)
    engine.publish(1, rank=3)
    engine.lose(1)
    engine.publish(1, rank=3)
    await until(lambda: len(seen.frames) == 2)
    assert [(type(d), d.rank) for d in seen.all] == [(Events, 3), (Lost, 0), (Lost, 3), (Events, 3)]


async def test_ranks_with_sockets_of_their_own_are_independent(listener, seen, engines) -> None:
    first, second = engines(), engines(first_token=5)
    listen(listener, first, rank=0)
    listen(listener, second, rank=1)
    first.publish(2)
    second.publish(1)
    await until(lambda: len(seen.frames) == 3)
    by_rank = {rank: [_token(d) for d in seen.all if d.rank == rank] for rank in (0, 1)}  # type: ignore[arg-type]
    assert by_rank == {0: [0, 0], 1: [5]}


async def test_malformed_frames_are_counted_and_the_next_is_delivered(listener, seen, engines) -> None:
    engine = engines(replay=False)
    listen(listener, engine)
    engine.publish(1)
    engine.send(1, b"\xc1 no msgpack")
    engine.send_raw(TOPIC, b"short", b"")
    engine.send_raw(TOPIC)
    engine.next = 2
    engine.publish(1)
    await until(lambda: len(seen.frames) == 2)
    assert listener.states()["w", 0].malformed == 3


@pytest.mark.parametrize("seq", [2**64 - 2, 2**63, 2**63 - 1])
async def test_a_sequence_number_beyond_all_counting_is_malformed_and_stops_no_other_source(
    listener, seen, engines, seq
) -> None:
    mad, other = engines(), engines(first_token=5)
    listen(listener, mad)
    listen(listener, other, rank=1)
    mad.send(seq - 3, mad.payload(0))
    mad.send(seq, mad.payload(0))
    await until(lambda: listener.states()["w", 0].malformed == 2)
    other.publish(1)
    mad.publish(1)
    await until(lambda: len(seen.frames) == 2)


async def test_events_left_out_are_counted(listener, seen, engines) -> None:
    engine = engines(replay=False)
    listen(listener, engine)
    engine.send(0, frame(removed([1], medium="TAPE")))
    state = listener.states()["w", 0]
    await until(lambda: state.frames == 1)
    assert state.ignored == {"unknown_medium": 1}


async def test_nothing_of_a_removed_worker_is_delivered(listener, seen, engines) -> None:
    gone, stays = engines(replay=False), engines(replay=False)
    listen(listener, gone, worker="gone")
    listen(listener, stays, worker="stays")
    gone.publish(3)
    listener.remove("gone")
    before = len(seen.all)
    gone.publish(3)
    stays.publish(3)
    await until(lambda: sum(d.worker_id == "stays" for d in seen.all) == 3)
    assert all(d.worker_id == "stays" for d in seen.all[before:])
    assert ("gone", 0) not in listener.states()


async def test_a_worker_can_be_added_again_after_its_removal(listener, seen, engines) -> None:
    engine = engines()
    listen(listener, engine)
    engine.publish(2)
    await until(lambda: len(seen.frames) == 2)
    listener.remove("w")
    listen(listener, engine)
    await until(lambda: len(seen.frames) == 4)
    assert seen.frames == [0, 1, 0, 1]


async def test_the_same_source_twice_is_refused(listener, engines) -> None:
    engine = engines()
    listen(listener, engine)
    with pytest.raises(ValueError, match="already"):
        listener.add(Source("w", 0, engine.endpoint))


async def test_a_bad_endpoint_is_told_in_the_state_and_harms_nobody(listener, seen, engines) -> None:
    listener.add(Source("bad", 0, "nonsense://x"))
    engine = engines()
    listen(listener, engine)
    engine.publish(1)
    await until(lambda: len(seen.frames) == 1)
    assert listener.states()["bad", 0].error


async def test_a_bad_replay_endpoint_is_told_and_live_events_come_all_the_same(listener, seen, engines) -> None:
    engine = engines(replay=False)
    listener.add(Source("w", 0, engine.endpoint, "nonsense://x", TOPIC.decode()))
    engine.wait_for_reader()
    engine.publish(2)
    await until(lambda: len(seen.frames) == 2)
    assert "nonsense" in listener.states()["w", 0].error


async def test_knowledge_is_complete_again_once_the_engine_emptied_its_cache(listener, seen, engines) -> None:
    engine = engines(replay=False)
    engine.lose(2)
    listen(listener, engine)
    engine.publish(1)
    state = listener.states()["w", 0]
    await until(lambda: state.frames == 1)
    assert not state.complete
    engine.send(3, frame(["AllBlocksCleared"]))
    await until(lambda: state.frames == 2)
    assert state.complete


async def test_a_delivery_that_raises_is_counted_and_the_next_one_comes(listener, seen, engines) -> None:
    seen.fail_on = 1
    engine = engines()
    listen(listener, engine)
    engine.publish(3)
    await until(lambda: len(seen.frames) == 3)
    assert listener.deliver_errors == 1


async def test_a_slow_loop_stops_the_reading_and_loses_nothing(seen, engines) -> None:
    engine = engines()
    listener = EventListener(seen, asyncio.get_running_loop(), max_queued=8)
    try:
        listen(listener, engine)
        await settled(listener)
        seen.block = 0.5
        engine.publish(500)
        await until(lambda: len(seen.frames) == 500)
        assert seen.story == [(0, n) for n in range(500)]
        assert listener.stalls > 0
    finally:
        listener.close()


async def test_close_can_be_called_twice_and_nothing_comes_after(seen, engines) -> None:
    engine = engines()
    listener = EventListener(seen, asyncio.get_running_loop())
    listen(listener, engine)
    listener.close()
    listener.close()
    engine.publish(1)
    await asyncio.sleep(0.05)
    assert seen.all == []
