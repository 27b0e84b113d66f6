"""TLS with clients and with engines, on the data plane's own sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from router.proxy.interface import Limits, Outcome
from router.tls import EngineFiles, engine_tls, server_tls
from tests.router.proxy.scripted import OK, PATIENT, Wire, engine_script, get, post, serving, stage
from tests.router.proxy.test_downstream import echo
from tests.router.proxy.tls import Papers

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers.made(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def clients(papers: Papers) -> Contexts:
    return server_tls(papers.server()).context, papers.client()


@pytest.fixture(scope="module")
def engines(papers: Papers) -> Contexts:
    return server_tls(papers.server("engine")).context, engine_tls(papers.engines()).context


# Clients.


async def test_requests_and_answers_go_over_tls(clients: Contexts) -> None:
    async with stage(serving(OK), tls=clients) as scene:
        wire = await scene.client()
        for _ in range(3):
            assert (await wire.ask(post())).body == b"ok"
        assert (scene.stats.tls_begun, scene.stats.tls_done) == (1, 1)


async def test_request_that_comes_byte_by_byte_over_tls_is_understood(clients: Contexts) -> None:
    async with stage(tls=clients) as scene:
        scene.placing.choose = echo
        wire = await scene.client()
        await wire.trickle(post(b"hello", target=b"/"))
        assert (await wire.message()).body == b"POST / hello"


async def test_client_that_leaves_over_tls_ends_its_leg(clients: Contexts) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.message()
        asked.set()
        await wire.gone()
        gone.set()

    async with stage(engine_script(script), tls=clients) as scene:
        wire = await scene.client()
        await wire.send(post())
        await asked.wait()
        wire.close()
        await gone.wait()
        assert await scene.ends() == [(Outcome.CLIENT_GONE, 0)]


async def test_refusal_over_tls_is_heard_by_a_client_that_is_still_sending(clients: Contexts) -> None:
    async with stage(tls=clients, limits=Limits(max_body=1000)) as scene:
        wire = await scene.client()
        wire.writer.write(post(b"x" * 3_000_000))
        answer = await wire.message()
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (413, "body_too_large")
        await asyncio.wait_for(wire.writer.drain(), 20)


async def test_stream_over_tls_that_is_not_read_is_not_read_from_the_engine_either(clients: Contexts) -> None:
    sent = 0

    async def script(wire: Wire) -> None:
        nonlocal sent
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 60000000\r\n\r\n")
        for _ in range(600):
            await wire.send(b"x" * 100_000)
            sent += 1

    async with stage(engine_script(script), tls=clients, limits=Limits(write_high_water=64 * 1024)) as scene:
        wire = await scene.client()
        await wire.send(post())
        await asyncio.sleep(0.3)
        assert sent < 500
        assert len((await wire.message()).body) == 60_000_000


async def test_plain_http_on_the_tls_port_is_not_served(clients: Contexts) -> None:
    async with stage(tls=clients) as scene:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", scene.port))
        await wire.send(get())
        assert b"HTTP/1.1" not in await wire.rest()
        wire.close()
        assert (scene.stats.requests, scene.stats.connections, scene.stats.tls_done) == (0, 0, 0)


async def test_client_that_never_shakes_hands_is_closed(clients: Contexts) -> None:
    async with stage(tls=clients, timeouts=replace(PATIENT, handshake=0.1)) as scene:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", scene.port))
        assert await wire.gone()
        wire.close()
        assert (scene.stats.tls_begun, scene.stats.tls_done) == (1, 0)


async def test_tls_1_1_is_refused(clients: Contexts, papers: Papers) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(papers.ca)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with stage(tls=(clients[0], old)) as scene:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await scene.client()


async def test_tls_1_2_is_spoken(clients: Contexts, papers: Papers) -> None:
    client = papers.client()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    async with stage(serving(OK), tls=(clients[0], client)) as scene:
        assert (await scene.ask(post())).body == b"ok"


async def test_http_2_is_not_agreed_on(clients: Contexts, papers: Papers) -> None:
    client = papers.client()
    client.set_alpn_protocols(["h2", "http/1.1"])
    async with stage(tls=(clients[0], client)) as scene:
        wire = await scene.client()
        assert wire.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


@pytest.mark.parametrize("by_other", [None, True])
async def test_client_without_a_good_certificate_is_turned_away_where_one_is_asked(
    papers: Papers, by_other: bool | None
) -> None:
    server = server_tls(papers.server("mutual", client_ca=papers.ca)).context
    chain = papers.issue("stranger", "stranger", by_other=True) if by_other else ()
    async with stage(serving(OK), tls=(server, papers.client(*chain))) as scene:
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await scene.ask(post())
        assert (scene.stats.requests, scene.stats.tls_done) == (0, 0)


async def test_client_with_a_good_certificate_is_served_where_one_is_asked(papers: Papers) -> None:
    server = server_tls(papers.server("mutual", client_ca=papers.ca)).context
    async with stage(serving(OK), tls=(server, papers.client(*papers.issue("friend", "friend")))) as scene:
        assert (await scene.ask(post())).body == b"ok"


# Engines.


async def test_engine_behind_tls_is_asked_and_its_connection_kept(engines: Contexts) -> None:
    async with stage(serving(OK), engines_tls=engines) as scene:
        wire = await scene.client()
        for _ in range(3):
            assert (await wire.ask(post(b"x" * 500_000))).body == b"ok"
        assert [len(request.body) for request in scene.engines[0].requests] == [500_000] * 3
        assert (scene.stats.upstream_opened, scene.stats.upstream_reused) == (1, 2)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_answer_that_ends_with_an_engines_tls_connection_is_whole(engines: Contexts, version: bytes) -> None:
    async def script(wire: Wire) -> None:
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")

    async with stage(engine_script(script), engines_tls=engines) as scene:
        assert (await scene.ask(get(version=version))).body == b"until the end"
        assert await scene.ends() == [(Outcome.OK, 200)]


async def refused_engine(files_of_engine: ssl.SSLContext, router: ssl.SSLContext) -> None:
    async with stage(serving(OK), engines_tls=(files_of_engine, router)) as scene:
        assert (await scene.ask(post())).status == 502
        assert await scene.ends() == [(Outcome.CONNECT_FAILED, 0)]
        assert scene.engines[0].requests == []


async def test_engine_signed_by_nobody_known_gets_no_request(papers: Papers, engines: Contexts) -> None:
    await refused_engine(engines[0], engine_tls(EngineFiles(ca=papers.other_ca)).context)


async def test_engine_with_another_name_in_its_certificate_gets_no_request(papers: Papers) -> None:
    other = server_tls(papers.server("elsewhere", "elsewhere.example")).context
    await refused_engine(other, engine_tls(papers.engines()).context)


async def test_unchecked_engine_is_asked_and_the_log_warns(
    papers: Papers, engines: Contexts, caplog: pytest.LogCaptureFixture
) -> None:
    context = engine_tls(EngineFiles(insecure=True)).context
    assert "not checked" in caplog.text
    async with stage(serving(OK), engines_tls=(engines[0], context)) as scene:
        assert (await scene.ask(post())).body == b"ok"


async def test_engine_that_asks_for_a_certificate_gets_the_routers(papers: Papers) -> None:
    engine = server_tls(papers.server("strict-engine", client_ca=papers.ca)).context
    cert, key = papers.issue("router", "router")
    async with stage(
        serving(OK), engines_tls=(engine, engine_tls(papers.engines(cert=cert, key=key)).context)
    ) as scene:
        assert (await scene.ask(post())).body == b"ok"


async def test_engine_that_never_shakes_hands_is_a_connect_timeout(papers: Papers, engines: Contexts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = serving(OK)
        async with stage(endpoint, engines_tls=engines, timeouts=replace(PATIENT, connect=0.1)) as scene:
            port = silent.getsockname()[1]
            scene.placing.endpoints[0] = scene.placing.endpoints[0]._replace(port=port)
            assert (await scene.ask(post())).status == 504
            assert await scene.ends() == [(Outcome.CONNECT_TIMEOUT, 0)]


async def test_http_where_https_was_promised_is_a_failed_connection(papers: Papers, engines: Contexts) -> None:
    async def script(wire: Wire) -> None:
        await wire.reader.read(1)
        await wire.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with stage(serving(OK), engines_tls=engines) as scene, stage(engine_script(script)) as plain:
        port = plain.placing.endpoints[0].port
        scene.placing.endpoints[0] = scene.placing.endpoints[0]._replace(port=port)
        assert (await scene.ask(post())).status == 502
        assert await scene.ends() == [(Outcome.CONNECT_FAILED, 0)]


async def test_https_engine_is_never_spoken_to_in_the_clear(engines: Contexts) -> None:
    async with stage(serving(OK)) as scene:
        scene.placing.endpoints[0] = scene.placing.endpoints[0]._replace(tls=True)
        assert (await scene.ask(post())).status == 502
        assert scene.engines[0].wires == []


async def test_both_sides_speak_tls_at_once(clients: Contexts, engines: Contexts) -> None:
    async with stage(serving(OK), tls=clients, engines_tls=engines) as scene:
        assert (await scene.ask(post())).body == b"ok"


# Files that change.


async def test_new_certificate_is_shown_to_new_connections_and_old_ones_go_on(papers: Papers) -> None:
    files = papers.server("renewed")
    tls = server_tls(files)
    async with stage(serving(OK), tls=(tls.context, papers.client())) as scene:
        before = await scene.client()
        papers.server("renewed", "127.0.0.1", "renewed.example")
        assert tls.changed
        tls.reload()
        assert not tls.changed
        after = await scene.client()
        names = [
            [value for _, value in wire.writer.get_extra_info("ssl_object").getpeercert()["subjectAltName"]]
            for wire in (before, after)
        ]
        assert names == [["127.0.0.1"], ["127.0.0.1", "renewed.example"]]
        assert (await before.ask(post())).body == b"ok"


async def test_files_that_broke_leave_the_old_certificate_in_use(papers: Papers, tmp_path: Path) -> None:
    files = papers.server("broken")
    tls = server_tls(files)
    files.cert.write_text("nothing")
    with pytest.raises(ValueError, match="--tls-cert"):
        tls.reload()
    assert not tls.changed, "not tried again until they change"
    async with stage(serving(OK), tls=(tls.context, papers.client())) as scene:
        assert (await scene.ask(post())).body == b"ok"
