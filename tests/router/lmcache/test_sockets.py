"""The three sockets: order, answers, nonsense, large and many messages, a taken port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.lmcache import wire
from router.lmcache.sockets import PIECE, ControllerSockets

from .recorded import ANSWERS, SENT


class Taken:
    """What the loop was handed."""

    def __init__(self) -> None:
        self.pushed: list[tuple[wire.Push, int, int]] = []
        self.asked: list[wire.Ask] = []

    def push(self, message: wire.Push, start: int, stop: int) -> None:
        if message.instance_id == "fails":
            raise RuntimeError("as asked")
        self.pushed.append((message, start, stop))

    def ask(self, message: wire.Ask) -> wire.Answer:
        if message.instance_id == "fails":
            raise RuntimeError("as asked")
        self.asked.append(message)
        return wire.HeartbeatRetMsg()


@contextlib.contextmanager
def listening(taken: Taken, loop: asyncio.AbstractEventLoop, **options: Any) -> Iterator[ControllerSockets]:
    made = ControllerSockets(taken.push, taken.ask, loop, "127.0.0.1", (0, 0, 0), **options)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
async def client() -> AsyncIterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


def connected(context: zmq.asyncio.Context, kind: int, port: int) -> Any:
    one = context.socket(kind)
    one.connect(f"tcp://127.0.0.1:{port}")
    return one


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def asked(socket: Any, payload: bytes) -> bytes:
    async with asyncio.timeout(20):
        await socket.send_multipart([b"", payload])
        frames = await socket.recv_multipart()
    assert frames[0] == b""
    return bytes(frames[1])


async def test_pushed_messages_arrive_in_order(client: zmq.asyncio.Context) -> None:
    taken = Taken()
    with listening(taken, asyncio.get_running_loop()) as made:
        push = connected(client, zmq.PUSH, made.ports[0])
        await push.send_multipart([SENT["ops"], SENT["sync_batch"]])
        await push.send(SENT["sync_end"])
        await until(lambda: len(taken.pushed) == 3)
    assert [type(message).__name__ for message, _start, _stop in taken.pushed] == [
        "BatchedKVOperationMsg",
        "FullSyncBatchMsg",
        "FullSyncEndMsg",
    ]


@pytest.mark.parametrize("socket", [1, 2])
async def test_a_question_gets_its_answer_on_either_port(client: zmq.asyncio.Context, socket: int) -> None:
    taken = Taken()
    with listening(taken, asyncio.get_running_loop()) as made:
        dealer = connected(client, zmq.DEALER, made.ports[socket])
        assert await asked(dealer, SENT["heartbeat"]) == ANSWERS["heartbeat_ret"]
    assert len(taken.asked) == 1


async def test_each_worker_gets_its_own_answer(client: zmq.asyncio.Context) -> None:
    taken = Taken()
    with listening(taken, asyncio.get_running_loop()) as made:
        dealers = [connected(client, zmq.DEALER, made.ports[1]) for _ in range(5)]
        found = await asyncio.gather(*(asked(dealer, SENT["register"]) for dealer in dealers))
    assert found == [ANSWERS["heartbeat_ret"]] * 5


async def test_a_long_list_is_handed_on_in_pieces(client: zmq.asyncio.Context) -> None:
    taken = Taken()
    long = msgspec.msgpack.encode(
        msgspec.structs.replace(wire.decode(SENT["sync_batch"]), keys=list(range(2 * PIECE + 1)))  # type: ignore[type-var]
    )
    with listening(taken, asyncio.get_running_loop()) as made:
        await connected(client, zmq.PUSH, made.ports[0]).send(long)
        await until(lambda: len(taken.pushed) == 3)
    assert [(start, stop) for _message, start, stop in taken.pushed] == [
        (0, PIECE),
        (PIECE, 2 * PIECE),
        (2 * PIECE, 2 * PIECE + 1),
    ]


async def test_nonsense_is_answered_and_counted_and_the_next_message_served(client: zmq.asyncio.Context) -> None:
    taken = Taken()
    with listening(taken, asyncio.get_running_loop()) as made:
        dealer = connected(client, zmq.DEALER, made.ports[1])
        for payload in (b"\xc1", b"", SENT["orch_lookup"], SENT["ops"]):
            assert msgspec.msgpack.decode(await asked(dealer, payload))["type"] == "ErrorMsg"
        await dealer.send(b"one frame only")
        assert await asked(dealer, SENT["heartbeat"]) == ANSWERS["heartbeat_ret"]
        assert made.counts["malformed"] == 3
        assert made.counts["unknown_type"] == 2


async def test_old_workers_are_named(client: zmq.asyncio.Context, caplog: pytest.LogCaptureFixture) -> None:
    taken = Taken()
    with listening(taken, asyncio.get_running_loop()) as made:
        push = connected(client, zmq.PUSH, made.ports[0])
        await push.send_multipart([SENT["register"], SENT["old_admit"]])
        await until(lambda: made.counts["old_wire"] == 2)
    assert "LMCache before 0.3.12" in caplog.text


async def test_a_handler_that_fails_is_counted_and_its_worker_answered(client: zmq.asyncio.Context) -> None:
    taken = Taken()
    broken = {"instance_id": "fails", "worker_id": 0, "ip": "x", "port": 1}
    with listening(taken, asyncio.get_running_loop()) as made:
        dealer = connected(client, zmq.DEALER, made.ports[1])
        answer = await asked(dealer, msgspec.msgpack.encode({"type": "RegisterMsg", **broken}))
        assert msgspec.msgpack.decode(answer)["type"] == "ErrorMsg"
        await connected(client, zmq.PUSH, made.ports[0]).send(
            msgspec.msgpack.encode({"type": "DeRegisterMsg", **broken})
        )
        await until(lambda: made.counts["handler_failed"] == 2)
        assert await asked(dealer, SENT["heartbeat"]) == ANSWERS["heartbeat_ret"]


async def test_a_frame_that_is_too_large_is_dropped_with_its_connection(client: zmq.asyncio.Context) -> None:
    taken = Taken()
    with listening(taken, asyncio.get_running_loop()) as made:
        push = connected(client, zmq.PUSH, made.ports[0])
        await push.send(b"x" * (wire.MAX_FRAME + 1))
        other = connected(client, zmq.PUSH, made.ports[0])
        await other.send(SENT["sync_end"])
        await until(lambda: len(taken.pushed) == 1)
        assert made.counts["taken"] == 1


async def test_more_than_may_wait_is_left_with_the_sender_and_not_lost(client: zmq.asyncio.Context) -> None:
    taken = Taken()
    with listening(taken, asyncio.get_running_loop(), max_queued=3) as made:
        push = connected(client, zmq.PUSH, made.ports[0])
        for _ in range(300):
            await push.send(SENT["sync_end"])
        await until(lambda: len(taken.pushed) == 300)


async def test_a_taken_port_is_named() -> None:
    taken = Taken()
    loop = asyncio.get_running_loop()
    with listening(taken, loop) as made:
        with pytest.raises(OSError) as caught:
            ControllerSockets(taken.push, taken.ask, loop, "127.0.0.1", (made.ports[0], 0, 0))
        assert caught.value.filename == f"127.0.0.1:{made.ports[0]}"


async def test_it_can_be_closed_twice_and_with_messages_waiting(client: zmq.asyncio.Context) -> None:
    taken = Taken()
    with listening(taken, asyncio.get_running_loop()) as made:
        await connected(client, zmq.PUSH, made.ports[0]).send_multipart([SENT["ops"]] * 100)
        await asyncio.sleep(0.01)
        made.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(st.binary(max_size=60), min_size=1, max_size=5))
async def test_any_frames_leave_all_three_sockets_alive(frames: list[bytes]) -> None:
    taken = Taken()
    context = zmq.asyncio.Context()
    try:
        with listening(taken, asyncio.get_running_loop()) as made:
            push = connected(context, zmq.PUSH, made.ports[0])
            await push.send_multipart(frames)
            await push.send(SENT["sync_end"])
            for port in made.ports[1:]:
                await connected(context, zmq.DEALER, port).send_multipart(frames)
                assert await asked(connected(context, zmq.DEALER, port), SENT["heartbeat"]) == ANSWERS["heartbeat_ret"]
            await until(lambda: any(isinstance(message, wire.FullSyncEndMsg) for message, _a, _b in taken.pushed))
            assert made.failed == ""
    finally:
        context.destroy(linger=0)
