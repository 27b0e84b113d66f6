"""What is read from an engine's answers."""

from __future__ import annotations

from router.fleet.probe import EventSource, cache_config, event_sources


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
