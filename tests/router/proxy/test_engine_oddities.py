"""What an engine may say that is HTTP but not the usual answer, and when a request moves to another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from router.proxy.interface import Answer, Inbound, Leg, Outcome
from tests.router.proxy.scripted import (
    OK,
    PATIENT,
    Bind,
    Message,
    Wire,
    chunks,
    code,
    engine_script,
    get,
    post,
    serving,
    stage,
    until,
)

BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\nretry-after: 7\r\n\r\nbusy"


# Interim answers.


@pytest.mark.parametrize(
    "interim",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\n" * 200,
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </b>\r\n\r\n",
    ],
)
async def test_interim_answers_are_not_passed_on_and_the_final_one_is(interim: bytes) -> None:
    async with stage(serving(interim + OK)) as scene:
        answer = await scene.ask(post())
        assert (answer.status, answer.body, answer.all(b"link")) == (200, b"ok", [])
        assert await scene.ends() == [(Outcome.OK, 200)]


async def test_interim_answers_in_pieces_are_not_passed_on() -> None:
    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.trickle(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + OK)
        await wire.gone()

    async with stage(engine_script(script)) as scene:
        assert (await scene.ask(post())).body == b"ok"


# Answers that are errors, or lead elsewhere.


@pytest.mark.parametrize("status", [400, 404, 413, 422, 429, 500, 501, 502, 504, 529])
async def test_an_engines_error_is_passed_on_as_it_is_and_not_retried(status: int) -> None:
    said = b"HTTP/1.1 %d Whatever\r\ncontent-length: 3\r\nretry-after: 9\r\n\r\nwhy" % status
    async with stage(serving(said), serving(OK)) as scene:
        answer = await scene.ask(post())
        assert (answer.status, answer.body, answer.one(b"retry-after")) == (status, b"why", b"9")
        expected = Outcome.ENGINE_ERROR if status >= 500 else Outcome.OK
        assert await scene.ends() == [(expected, status)]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_passed_on_and_not_followed(status: int) -> None:
    asked: list[Message] = []

    def elsewhere(request: Message) -> bytes:
        asked.append(request)
        return b"HTTP/1.1 %d Moved\r\nlocation: /v1/other\r\ncontent-length: 0\r\n\r\n" % status

    async with stage(serving(elsewhere)) as scene:
        answer = await scene.ask(post())
        assert (answer.status, answer.one(b"location")) == (status, b"/v1/other")
        assert len(asked) == 1


# Lengths that are wrong.


def says(*pieces: bytes, then: Callable[[Wire], None] = Wire.close) -> Bind:
    async def script(wire: Wire) -> None:
        await wire.message()
        for piece in pieces:
            await wire.send(piece)
            await asyncio.sleep(0.01)
        then(wire)

    return engine_script(script)


async def test_a_content_length_that_is_too_long_leaves_the_client_an_answer_that_ends_early() -> None:
    async with stage(says(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n", b"all there is"), serving(OK)) as scene:
        wire = await scene.client()
        await wire.send(post())
        assert (await wire.head()).one(b"content-length") == b"100"
        assert await wire.rest() == b"all there is"
        assert await scene.ends() == [(Outcome.CUT, 200)]
        assert scene.stats.retries == 0


async def test_what_is_beyond_a_content_length_is_cut_off_and_the_connection_not_used_again() -> None:
    async with stage(serving(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokay and more")) as scene:
        wire = await scene.client()
        assert (await wire.ask(post())).body == b"ok"
        assert (await wire.ask(post())).body == b"ok"
        assert scene.stats.upstream_opened == 2


@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_truncated_chunk_reaches_the_client_as_a_stream_that_ends_early(pieces: int) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b"5\r\nhello\r\n8\r\nhal"
    said = (head + body,) if pieces == 1 else (head, body)
    async with stage(says(*said)) as scene:
        wire = await scene.client()
        await wire.send(post())
        await wire.head()
        assert await wire.rest() == body
        assert await scene.ends() == [(Outcome.CUT, 200)]


async def test_a_stream_without_its_last_chunk_is_cut() -> None:
    whole = chunks(b"data: 1\n\n")
    async with stage(says(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + whole[:-5])) as scene:
        wire = await scene.client()
        await wire.send(post())
        await wire.head()
        assert not (await wire.rest()).endswith(b"0\r\n\r\n")
        assert await scene.ends() == [(Outcome.CUT, 200)]


async def test_a_second_answer_that_nobody_asked_for_reaches_nobody() -> None:
    answered = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.send(OK)
        await answered.wait()
        await wire.send(OK.replace(b"ok", b"no"))
        await wire.gone()

    async with stage(engine_script(script)) as scene:
        wire = await scene.client()
        assert (await wire.ask(post())).body == b"ok"
        answered.set()
        await until(lambda: not any(pool.idle for pool in scene.plane._pools.values()))
        assert (await wire.ask(post())).body == b"ok"


# An engine that closes idle connections just as one is used again.


def closes_after_one(count: list[int]) -> Bind:
    """Closes each connection when the next request on it has come, as a server whose idle timeout runs out does."""

    async def script(wire: Wire) -> None:
        count.append(0)
        await wire.message()
        count[-1] += 1
        await wire.send(OK)
        await wire.message()
        wire.close()

    return engine_script(script)


async def test_a_request_whose_kept_connection_closes_under_it_is_sent_again_on_a_new_one() -> None:
    served: list[int] = []
    async with stage(closes_after_one(served)) as scene:
        wire = await scene.client()
        for _ in range(4):
            assert (await wire.ask(post())).body == b"ok"
        assert await scene.ends() == [(Outcome.OK, 200)] * 4
        assert scene.stats.upstream_refreshed == 3


async def test_a_request_with_effects_is_never_sent_on_a_kept_connection() -> None:
    served: list[int] = []
    async with stage(closes_after_one(served)) as scene:
        scene.placing.choose = lambda inbound: scene.placing.ticket(
            scene.placing.endpoints[0], repeatable=inbound.path != "/v1/files"
        )
        wire = await scene.client()
        assert (await wire.ask(post())).body == b"ok"
        assert (await wire.ask(post(target=b"/v1/files"))).body == b"ok"
        assert (scene.stats.upstream_opened, scene.stats.upstream_refreshed) == (2, 0)


# An engine that declines.


async def test_a_503_goes_to_another_worker_before_anything_of_it_was_passed_on() -> None:
    async with stage(serving(BUSY), serving(OK)) as scene:
        scene.placing.moves = True
        answer = await scene.ask(post())
        assert (answer.status, answer.body) == (200, b"ok")
        assert await scene.ends() == [(Outcome.ENGINE_ERROR, 503), (Outcome.OK, 200)]
        assert scene.stats.retries == 1


async def test_a_503_is_passed_on_with_its_headers_where_nobody_else_is() -> None:
    async with stage(serving(BUSY)) as scene:
        scene.placing.moves = True
        wire = await scene.client()
        answer = await wire.ask(post())
        assert (answer.status, answer.body, answer.one(b"retry-after")) == (503, b"busy", b"7")
        assert await scene.ends() == [(Outcome.ENGINE_ERROR, 503)]


@pytest.mark.parametrize("body", [b"", b"busy"])
async def test_an_unframed_503_goes_to_another_worker_and_its_end_is_not_the_others(body: bytes) -> None:
    async with stage(says(b"HTTP/1.1 503 No\r\n\r\n" + body), says(OK)) as scene:
        scene.placing.moves = True
        answer = await scene.ask(post())
        assert (answer.status, answer.body) == (200, b"ok")
        assert await scene.ends() == [(Outcome.ENGINE_ERROR, 503), (Outcome.OK, 200)]


async def test_elsewhere_that_raises_leaves_the_answer_as_it_is() -> None:
    async with stage(serving(BUSY)) as scene:

        def broken(inbound: Inbound, leg: Leg) -> Leg | None:
            raise RuntimeError("no idea")

        scene.placing.elsewhere = broken  # type: ignore[method-assign]
        assert (await scene.ask(post())).body == b"busy"
        assert scene.stats.faults == 1


# A worker that is found to be down while requests wait for it.


async def silent(wire: Wire) -> None:
    await wire.message()
    await wire.gone()


async def only_a_head(wire: Wire) -> None:
    await wire.message()
    await wire.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    await wire.gone()


@pytest.mark.parametrize("script", [silent, only_a_head])
async def test_requests_that_have_not_begun_on_a_worker_that_is_down_go_elsewhere(
    script: Callable[[Wire], None],
) -> None:
    async with stage(engine_script(script), serving(OK)) as scene:  # type: ignore[arg-type]
        scene.placing.moves = True
        wire = await scene.client()
        await wire.send(post())
        await until(lambda: scene.stats.upstream_opened)
        await asyncio.sleep(0.05)
        scene.plane.give_up(scene.placing.endpoints[0])
        assert (await wire.message()).body == b"ok"
        assert await scene.ends() == [(Outcome.WORKER_DOWN, 0), (Outcome.OK, 200)]


async def test_a_request_that_waits_for_the_only_worker_stays_with_it() -> None:
    go = asyncio.Event()

    async def slow(wire: Wire) -> None:
        await wire.message()
        await go.wait()
        await wire.send(OK)
        await wire.gone()

    async with stage(engine_script(slow)) as scene:
        scene.placing.moves = True
        wire = await scene.client()
        await wire.send(post())
        await until(lambda: scene.stats.upstream_opened)
        scene.plane.give_up(scene.placing.endpoints[0])
        go.set()
        assert (await wire.message()).body == b"ok"
        assert await scene.ends() == [(Outcome.OK, 200)]


async def test_a_stream_that_has_begun_stays_with_a_worker_that_is_down() -> None:
    go = asyncio.Event()

    async def begun(wire: Wire) -> None:
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nha")
        await go.wait()
        await wire.send(b"lf")
        await wire.gone()

    async with stage(engine_script(begun), serving(OK)) as scene:
        scene.placing.moves = True
        wire = await scene.client()
        await wire.send(post())
        await wire.head()
        scene.plane.give_up(scene.placing.endpoints[0])
        go.set()
        assert await wire.reader.readexactly(4) == b"half"
        assert await scene.ends() == [(Outcome.OK, 200)]


async def test_a_client_that_leaves_while_its_retry_waits_leaves_nothing_behind() -> None:
    cancelled = asyncio.Event()

    async with stage(says(b"", then=Wire.reset)) as scene:

        async def queue() -> Answer | Leg:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
            raise AssertionError

        asked = asyncio.Event()

        def waits(inbound: Inbound, failed: Leg, outcome: Outcome) -> object:
            asked.set()
            return queue()

        scene.placing.retry = waits  # type: ignore[method-assign, assignment]
        wire = await scene.client()
        await wire.send(post())
        await asked.wait()
        wire.close()
        await cancelled.wait()
        assert await scene.ends() == [(Outcome.RESET, 0)]
        assert scene.stats.open_requests == 0


# While the router stops.


async def test_a_stopping_router_refuses_new_requests_and_finishes_old_ones() -> None:
    go = asyncio.Event()

    async def slow(wire: Wire) -> None:
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nha")
        await go.wait()
        await wire.send(b"lf")
        await wire.gone()

    async with stage(engine_script(slow)) as scene:
        old = await scene.client()
        await old.send(post())
        await old.head()
        stopping = asyncio.ensure_future(scene.plane.stop(20))
        await asyncio.sleep(0)
        new = await scene.client()
        answer = await new.ask(post())
        assert (answer.status, code(answer), answer.one(b"retry-after")) == (503, "shutting_down", b"1")
        assert answer.one(b"connection") == b"close"
        go.set()
        assert await old.reader.readexactly(4) == b"half"
        await stopping
        with pytest.raises(ConnectionRefusedError):
            await scene.client()


async def test_a_stopping_router_still_says_how_it_is() -> None:
    async with stage(engine_script(silent)) as scene:
        scene.placing.choose = lambda inbound: (
            scene.placing.ticket(scene.placing.endpoints[0]) if inbound.method == "POST" else Answer(200, b"well")
        )
        wire = await scene.client()
        await wire.send(post())
        await until(lambda: scene.placing.tickets)
        stopping = asyncio.ensure_future(scene.plane.stop(20))
        await asyncio.sleep(0)
        assert (await scene.ask(get(b"/ready"))).body == b"well"
        scene.plane.hurry()
        await stopping


async def test_a_second_request_to_stop_cuts_off_what_is_running() -> None:
    async with stage(engine_script(silent), timeouts=replace(PATIENT)) as scene:
        wire = await scene.client()
        await wire.send(post())
        await until(lambda: scene.placing.tickets)
        stopping = asyncio.ensure_future(scene.plane.stop(1000))
        await asyncio.sleep(0)
        scene.plane.hurry()
        await stopping
        assert await scene.ends() == [(Outcome.CUT, 0)]
