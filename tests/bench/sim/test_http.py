"""The engine over HTTP: what clients of vLLM rely on."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

IDS = list(range(3, 43))
CHAT = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 4}


def events(text: str) -> list[Any]:
    """The data of server-sent events, parsed; the end mark stays a string."""
    data = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


async def post(engine: Any, path: str, body: dict[str, Any]) -> Any:
    answer = await engine.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def connect(engine: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(engine.address.url)
    return await asyncio.open_connection(parts.hostname, parts.port)


def raw_post(path: str, body: dict[str, Any], version: str = "1.1") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (the condition is another object's state)
            await asyncio.sleep(0.005)


async def test_a_completion_has_text_reason_and_usage(start_engine: Any) -> None:
    engine = await start_engine()
    answer = await post(engine, "/v1/completions", {"model": "sim", "prompt": "def main", "max_tokens": 5})
    choice = answer["choices"][0]
    assert (answer["object"], choice["finish_reason"], choice["index"]) == ("text_completion", "length", 0)
    assert len(choice["text"].split()) == 5
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_a_completion_is_16_tokens_by_default(start_engine: Any) -> None:
    answer = await post(await start_engine(), "/v1/completions", {"prompt": IDS})
    assert answer["usage"]["completion_tokens"] == 16


async def test_a_chat_without_a_limit_stops_by_itself_at_the_default_output(start_engine: Any) -> None:
    engine = await start_engine(api={"default_output": 7}, speedup=0)
    answer = await post(engine, "/v1/chat/completions", {"messages": CHAT["messages"]})
    assert answer["usage"]["completion_tokens"] == 7
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_repeating_a_prompt_of_ids_reports_the_cached_tokens(start_engine: Any) -> None:
    engine = await start_engine()
    body = {"prompt": IDS, "max_tokens": 1}
    await post(engine, "/v1/completions", body)
    answer = await post(engine, "/v1/completions", body)
    assert answer["usage"]["prompt_tokens"] == 40
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}


async def test_cached_tokens_can_be_left_out(start_engine: Any) -> None:
    engine = await start_engine(api={"report_cached": False})
    answer = await post(engine, "/v1/completions", {"prompt": IDS})
    assert answer["usage"]["prompt_tokens_details"] is None


async def test_several_prompts_and_choices_are_numbered_in_order(start_engine: Any) -> None:
    engine = await start_engine()
    both = await post(engine, "/v1/completions", {"prompt": ["one", "two"], "n": 2, "max_tokens": 3})
    single = await post(engine, "/v1/completions", {"prompt": "two", "max_tokens": 3})
    assert [choice["index"] for choice in both["choices"]] == [0, 1, 2, 3]
    assert both["choices"][2]["text"] == single["choices"][0]["text"]
    assert len({choice["text"] for choice in both["choices"]}) == 4


async def test_lists_of_ids_are_prompts_of_their_own(start_engine: Any) -> None:
    answer = await post(await start_engine(), "/v1/completions", {"prompt": [IDS, IDS[:5]], "max_tokens": 1})
    assert (len(answer["choices"]), answer["usage"]["prompt_tokens"]) == (2, 45)


@pytest.mark.parametrize("warm_last", [True, False])
async def test_of_several_prompts_only_the_last_ones_cached_tokens_are_reported(
    start_engine: Any, warm_last: bool
) -> None:
    engine = await start_engine()
    await post(engine, "/v1/completions", {"prompt": IDS, "max_tokens": 1})
    cold = [9] * 20
    prompts = [cold, IDS] if warm_last else [IDS, cold]
    answer = await post(engine, "/v1/completions", {"prompt": prompts, "max_tokens": 2})
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 32 if warm_last else 0}
    assert answer["usage"]["prompt_tokens"] == 60


async def test_a_stream_of_several_prompts_reports_the_cached_tokens_of_the_first_answer(start_engine: Any) -> None:
    engine = await start_engine()
    await post(engine, "/v1/completions", {"prompt": IDS, "max_tokens": 1})
    options = {"stream": True, "stream_options": {"include_usage": True}}
    body = {"prompt": [[9] * 20, IDS], "max_tokens": 2} | options
    chunks = events((await engine.client.post("/v1/completions", json=body)).text)
    assert chunks[-2]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_an_answer_too_long_for_the_context_is_cut_to_fit(start_engine: Any) -> None:
    engine = await start_engine(engine={"max_model_len": 64})
    answer = await post(engine, "/v1/completions", {"prompt": IDS, "max_tokens": 25})
    assert answer["usage"]["completion_tokens"] == 24
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_stream_has_a_chunk_a_token_and_an_end_mark(start_engine: Any) -> None:
    engine = await start_engine()
    whole = await post(engine, "/v1/completions", {"prompt": IDS, "max_tokens": 4})
    answer = await engine.client.post("/v1/completions", json={"prompt": IDS, "max_tokens": 4, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    chunks = events(answer.text)
    assert chunks.pop() == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "length"]
    assert not any("usage" in chunk for chunk in chunks)


async def test_a_chat_stream_begins_with_the_role_and_may_end_with_usage(start_engine: Any) -> None:
    body = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    chunks = events((await (await start_engine()).client.post("/v1/chat/completions", json=body)).text)
    assert chunks.pop() == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [bool(chunk["choices"][0]["delta"]["content"]) for chunk in chunks[1:-1]] == [True] * 4
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 4)


async def test_continuous_usage_counts_up(start_engine: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": IDS, "max_tokens": 3, "stream": True, "stream_options": options}
    chunks = events((await (await start_engine()).client.post("/v1/completions", json=body)).text)[:-1]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 3]


async def test_the_clients_request_id_is_kept(start_engine: Any) -> None:
    engine = await start_engine()
    answer = await engine.client.post("/v1/chat/completions", json=CHAT, headers={"x-request-id": "abc"})
    assert answer.json()["id"] == "chatcmpl-abc"


async def test_a_conversation_reuses_its_own_answers(start_engine: Any) -> None:
    engine = await start_engine(speedup=0)
    messages = [{"role": "user", "content": "a question of some length, so that it fills blocks " * 4}]
    first = await post(engine, "/v1/chat/completions", {"messages": messages, "max_tokens": 64})
    said = first["choices"][0]["message"]
    again = [*messages, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": "go on"}]
    second = await post(engine, "/v1/chat/completions", {"messages": again, "max_tokens": 1})
    known = first["usage"]["prompt_tokens"] + 63
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == known // 16 * 16


async def test_responses_answer_whole_and_streamed(start_engine: Any) -> None:
    engine = await start_engine()
    body = {"input": "hello", "instructions": "be brief", "max_output_tokens": 3}
    whole = await post(engine, "/v1/responses", body)
    assert (whole["object"], whole["status"], whole["usage"]["output_tokens"]) == ("response", "incomplete", 3)
    streamed = events((await engine.client.post("/v1/responses", json=body | {"stream": True})).text)
    deltas = [event["delta"] for event in streamed if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == whole["output"][0]["content"][0]["text"]
    assert (streamed[0]["type"], streamed[-1]["type"]) == ("response.created", "response.incomplete")
    assert [event["sequence_number"] for event in streamed] == list(range(len(streamed)))


async def test_messages_answer_whole_and_streamed(start_engine: Any) -> None:
    engine = await start_engine()
    body = {"system": "be brief", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    whole = await post(engine, "/v1/messages", body)
    assert (whole["type"], whole["stop_reason"], whole["usage"]["output_tokens"]) == ("message", "max_tokens", 3)
    streamed = events((await engine.client.post("/v1/messages", json=body | {"stream": True})).text)
    deltas = [event["delta"]["text"] for event in streamed if event["type"] == "content_block_delta"]
    assert "".join(deltas) == whole["content"][0]["text"]
    assert (streamed[0]["type"], streamed[-1]["type"]) == ("message_start", "message_stop")


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"prompt": "x", "model": "other"}, 404, "`other` does not exist"),
        ({"prompt": [5] * 8192}, 400, "maximum context length is 8192 tokens"),
        ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"prompt": "x", "n": 0}, 400, "n must be"),
        ({"prompt": []}, 400, "prompt is empty"),
        ({"prompt": ""}, 400, "no tokens"),
        ({"prompt": ["a", 1]}, 400, "prompt must be"),
        ({"prompt": [5000]}, 400, "out of vocabulary"),
        ({"prompt": "x", "max_tokens": "many"}, 400, "max_tokens"),
        ({"prompt": "x", "echo": True}, 400, "echo"),
        ({}, 400, "prompt"),
    ],
)
async def test_a_wrong_completion_gets_a_clear_error(
    start_engine: Any, body: dict[str, Any], status: int, words: str
) -> None:
    answer = await (await start_engine()).client.post("/v1/completions", json=body)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] == status


async def test_a_body_that_is_not_json_is_a_400(start_engine: Any) -> None:
    answer = await (await start_engine()).client.post("/v1/completions", content=b"{")
    assert (answer.status_code, "not JSON" in answer.json()["error"]["message"]) == (400, True)


async def test_unknown_paths_and_methods(start_engine: Any) -> None:
    client = (await start_engine()).client
    assert [(await client.get("/nothing")).status_code, (await client.get("/v1/completions")).status_code] == [404, 405]


async def test_tokenize_gives_the_ids_that_chat_is_computed_with(start_engine: Any) -> None:
    engine = await start_engine()
    answer = await post(engine, "/tokenize", {"messages": CHAT["messages"]})
    chat = await post(engine, "/v1/chat/completions", CHAT)
    assert answer["count"] == len(answer["tokens"]) == chat["usage"]["prompt_tokens"]
    assert answer["max_model_len"] == 8192
    without = await post(engine, "/tokenize", {"messages": CHAT["messages"], "add_generation_prompt": False})
    assert without["tokens"] == answer["tokens"][: without["count"]]


async def test_detokenize_undoes_tokenize(start_engine: Any) -> None:
    engine = await start_engine()
    text = "for x in range(10): print('é', x)\n" * 300
    tokens = (await post(engine, "/tokenize", {"prompt": text}))["tokens"]
    assert (await post(engine, "/detokenize", {"tokens": tokens})) == {"prompt": text}


async def test_small_endpoints_answer(start_engine: Any) -> None:
    engine = await start_engine(api={"model": "m"})
    statuses = {path: (await engine.client.get(path)).status_code for path in ("/health", "/ping", "/version", "/load")}
    assert set(statuses.values()) == {200}
    card = (await engine.client.get("/v1/models")).json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("m", 8192)


async def test_kv_event_sources_name_the_bound_endpoints(start_engine: Any) -> None:
    engine = await start_engine(publisher={"topic": "t"})
    source = (await engine.client.get("/kv_event_sources")).json()["0"]
    assert (source["endpoint"], source["replay_endpoint"]) == (engine.address.kv, engine.address.replay)
    assert (source["topic"], source["buffer_steps"], source["publisher"]) == ("t", 10_000, "zmq")


async def test_without_kv_events_there_are_no_sources(start_engine: Any) -> None:
    engine = await start_engine(kv_events=False)
    assert (await engine.client.get("/kv_event_sources")).json() == {}
    assert engine.address.kv is None


async def test_metrics_have_vllms_names_and_count_tokens(start_engine: Any) -> None:
    engine = await start_engine(speedup=0)
    for _ in range(2):
        await post(engine, "/v1/completions", {"prompt": IDS, "max_tokens": 3})
    text = (await engine.client.get("/metrics")).text
    labels = 'engine="0",model_name="sim"'
    for line in (
        f"vllm:prefix_cache_queries_total{{{labels}}} 80.0",
        f"vllm:prefix_cache_hits_total{{{labels}}} 32.0",
        f"vllm:prompt_tokens_total{{{labels}}} 80.0",
        f"vllm:generation_tokens_total{{{labels}}} 6.0",
        f"vllm:num_requests_running{{{labels}}} 0.0",
        f"vllm:num_requests_waiting{{{labels}}} 0.0",
        f"vllm:kv_cache_usage_perc{{{labels}}} 0.0",
        f"vllm:num_preemptions_total{{{labels}}} 0.0",
        f"vllm:time_to_first_token_seconds_count{{{labels}}} 2.0",
        f"vllm:inter_token_latency_seconds_count{{{labels}}} 4.0",
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="sim"} 2.0',
    ):
        assert line in text.splitlines()
    info = next(line for line in text.splitlines() if line.startswith("vllm:cache_config_info{"))
    assert 'block_size="16"' in info and 'num_gpu_blocks="1024"' in info and 'enable_prefix_caching="True"' in info
    assert "kvctl_sim_lag_seconds_count" in text and "vllm:external_prefix_cache_hits_total" in text


async def test_reset_forgets_the_cache(start_engine: Any) -> None:
    engine = await start_engine()
    body = {"prompt": IDS, "max_tokens": 1}
    await post(engine, "/v1/completions", body)
    assert await post(engine, "/reset_prefix_cache", {}) == {"success": True}
    answer = await post(engine, "/v1/completions", body)
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


@pytest.mark.parametrize(("strict", "status"), [(False, 200), (True, 409)])
async def test_reset_is_refused_while_a_request_runs(start_engine: Any, strict: bool, status: int) -> None:
    engine = await start_engine(decode_ms=50, api={"strict_reset": strict})
    task = asyncio.create_task(post(engine, "/v1/completions", {"prompt": IDS, "max_tokens": 4000}))
    await until(lambda: engine.host.live.engine.snapshot().running)
    answer = await engine.client.post("/reset_prefix_cache")
    assert (answer.status_code, answer.json()["success"]) == (status, False)
    assert "in use" in answer.json()["reason"]
    task.cancel()


async def test_reset_may_preempt_what_runs(start_engine: Any) -> None:
    engine = await start_engine(decode_ms=5)
    task = asyncio.create_task(post(engine, "/v1/completions", {"prompt": IDS, "max_tokens": 30}))
    await until(lambda: engine.host.live.engine.counters.generation_tokens > 2)
    assert await post(engine, "/reset_prefix_cache?reset_running_requests=true", {}) == {"success": True}
    assert (await task)["usage"]["completion_tokens"] == 30


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(start_engine: Any, stream: bool) -> None:
    engine = await start_engine(decode_ms=20)
    reader, writer = await connect(engine)
    writer.write(raw_post("/v1/completions", {"prompt": IDS, "max_tokens": 8000, "n": 2, "stream": stream}))
    live = engine.host.live
    await until(lambda: live.engine.counters.generation_tokens > 2)
    if stream:
        assert await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await until(lambda: live.open_requests == 0)
    assert live.engine.snapshot()[:3] == (0, 0, 0)
    assert live.engine.counters.aborted == 2


async def test_a_client_that_leaves_does_not_disturb_the_others(start_engine: Any) -> None:
    engine = await start_engine(decode_ms=2)
    other = asyncio.create_task(post(engine, "/v1/completions", {"prompt": IDS, "max_tokens": 60}))
    _, writer = await connect(engine)
    writer.write(raw_post("/v1/completions", {"prompt": IDS, "max_tokens": 8000, "stream": True}))
    await until(lambda: engine.host.live.open_requests == 2)
    writer.close()
    assert (await other)["usage"]["completion_tokens"] == 60


async def test_many_streams_at_once_are_all_whole(start_engine: Any) -> None:
    engine = await start_engine(speedup=0, engine={"num_blocks": 600, "max_num_seqs": 16})
    prompts = [[number, *IDS] for number in range(3, 43)]

    async def one(prompt: list[int]) -> list[Any]:
        body = {"prompt": prompt, "max_tokens": 20, "stream": True}
        return events((await engine.client.post("/v1/completions", json=body)).text)

    answers = await asyncio.gather(*map(one, prompts))
    assert {len(answer) for answer in answers} == {21}
    assert engine.host.live.engine.counters.finished == {"length": 40}


async def test_stats_report_steps_and_lag(start_engine: Any) -> None:
    engine = await start_engine()
    await post(engine, "/v1/completions", {"prompt": IDS, "max_tokens": 5})
    await until(lambda: engine.host.live.lag.total_steps == 5)
    report = (await engine.client.get("/sim/stats")).json()
    assert (report["lag"]["steps"], report["counters"]["generation_tokens"]) == (5, 5)
    await engine.client.post("/sim/stats/reset")
    assert (await engine.client.get("/sim/stats")).json()["lag"]["steps"] == 0


async def test_httpx_reads_the_stream_as_it_comes(start_engine: Any) -> None:
    engine = await start_engine(decode_ms=5)
    first = asyncio.Event()
    body = {"prompt": IDS, "max_tokens": 20, "stream": True}
    async with engine.client.stream("POST", "/v1/completions", json=body) as answer:
        assert isinstance(answer, httpx.Response)
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                first.set()
                break
    assert first.is_set()
    await until(lambda: engine.host.live.open_requests == 0)
    assert engine.host.live.engine.counters.aborted == 1
