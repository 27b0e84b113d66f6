"""What is read from an engine's answers."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from router.fleet.probe import EngineFacts, EventSource, Prober, cache_config, event_sources


def test_block_size_and_blocks_are_read_from_vllms_gauge() -> None:
    text = (
        "# TYPE vllm:cache_config_info gauge\n"
        'vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="2048",x="a\\"b"} 1.0\n'
    )
    assert cache_config(text) == (32, 2048)


def test_a_block_count_of_none_is_unknown() -> None:
    assert cache_config('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n') == (16, None)


def test_without_the_gauge_nothing_is_assumed() -> None:
    assert cache_config("vllm:num_requests_running 0\n") == (None, None)


def test_event_sources_are_read_by_rank() -> None:
    config = {"publisher": "zmq", "endpoint": "tcp://*:5561", "replay_endpoint": "tcp://*:5571", "topic": "kv"}
    assert event_sources({"0": config, "1": {**config, "replay_endpoint": None}}) == [
        EventSource(0, "tcp://*:5561", "tcp://*:5571", "kv"),
        EventSource(1, "tcp://*:5561", None, "kv"),
    ]


def test_a_null_publisher_or_nonsense_is_no_source() -> None:
    assert event_sources({"0": {"publisher": "null", "endpoint": "tcp://*:1"}}) == []
    assert event_sources({"x": {}, "0": 3}) == []
    assert event_sources([1]) == []
    assert event_sources(None) == []


def test_a_rank_that_is_named_twice_is_one_source() -> None:
    config = {"endpoint": "tcp://*:1"}
    assert [source.rank for source in event_sources({"0": config, "00": config, "1": config})] == [0, 1]


def test_numbers_of_thousands_of_digits_are_nonsense() -> None:
    endless = "9" * 5000
    assert event_sources({endless: {"endpoint": "tcp://*:1"}}) == []
    assert cache_config(f'vllm:cache_config_info{{block_size="{endless}",num_gpu_blocks="7"}} 1.0\n') == (None, 7)


def facts(answers: dict[str, bytes]) -> EngineFacts:
    """What a prober learns from an engine that answers so, and 404 to the rest."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
        body = answers.get(path)
        status = b"404 Not Found" if body is None else b"200 OK"
        writer.write(b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (status, len(body or b"")))
        writer.write(body or b"")
        writer.close()

    async def ask() -> EngineFacts:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        prober = Prober(20)
        try:
            return await prober.facts(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        finally:
            await prober.close()
            server.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("length", [b"-1", b"0", b"true", b"1.5", b'"x"', b"null"])
def test_a_context_length_that_is_none_is_unknown(length: bytes) -> None:
    found = facts({"/v1/models": b'{"data": [{"id": "m", "max_model_len": %b}]}' % length})
    assert (found.models, found.max_model_len) == (("m",), None)


def test_a_model_name_with_line_breaks_or_without_end_is_left_out() -> None:
    names = b'{"data": [{"id": "a\\nERROR b"}, {"id": ""}, {"id": "%b"}, {"id": "m"}, {"id": "m"}]}' % (b"x" * 300)
    assert facts({"/v1/models": names}).models == ("m",)


def test_an_answer_that_nests_without_end_is_no_answer() -> None:
    deep = b'{"data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    found = facts({"/v1/models": deep, "/kv_event_sources": deep, "/version": b'{"version": "0.32"}'})
    assert (found.models, found.sources, found.version) == ((), [], "0.32")


async def test_adapters_are_the_models_that_have_a_parent() -> None:
    cards = [{"id": "base", "parent": None}, {"id": "tuned", "parent": "base"}, {"id": "plain"}]

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"data": cards}) if request.url.path == "/v1/models" else httpx.Response(404)

    prober = Prober(1.0)
    prober._http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    facts = await prober.facts("http://engine")
    await prober.close()
    assert (facts.models, facts.adapters) == (("base", "tuned", "plain"), ("tuned",))
