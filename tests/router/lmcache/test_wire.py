"""The controller's wire against recorded bytes of the package, and against anything else."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.lmcache import wire
from router.lmcache.wire import WireError, decode, encode

from .recorded import ANSWERS, SENT

WHO = {"instance_id": "vllm-a", "worker_id": 0}
CPU = {"location": "LocalCPUBackend", "sync_id": "vllm-a_0_1"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("register", wire.RegisterMsg(**WHO, ip="10.0.0.7", port=8001)),
        ("register_p2p", wire.RegisterMsg(**WHO, ip="10.0.0.7", port=8001, peer_init_url="10.0.0.7:8200")),
        ("heartbeat", wire.HeartbeatMsg(**WHO, ip="10.0.0.7", port=8001)),
        ("deregister", wire.DeRegisterMsg(**WHO, ip="10.0.0.7", port=8001)),
        (
            "ops",
            wire.BatchedKVOperationMsg(
                **WHO,
                location="LocalCPUBackend",
                operations=[
                    wire.KVOpEvent("admit", -6197052367682486848, 0),
                    wire.KVOpEvent("evict", 9223372036854775813, 1),
                ],
            ),
        ),
        ("sync_start", wire.FullSyncStartMsg(**WHO, **CPU, total_keys=3, batch_count=2)),
        ("sync_batch", wire.FullSyncBatchMsg(**WHO, **CPU, batch_id=1, keys=[1, -2])),
        ("sync_end", wire.FullSyncEndMsg(**WHO, **CPU, actual_total_keys=3)),
        ("sync_status", wire.FullSyncStatusMsg(**WHO, sync_id="vllm-a_0_1")),
        ("lookup", wire.BatchedP2PLookupMsg(hashes=[5, 6], **WHO)),
    ],
)
def test_a_recorded_message_is_understood(name: str, expected: wire.Message) -> None:
    assert decode(SENT[name]) == expected


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("register_ret", wire.RegisterRetMsg({"heartbeat_url": "127.0.0.1:9002"})),
        ("heartbeat_ret", wire.HeartbeatRetMsg()),
        ("heartbeat_ret_sync", wire.HeartbeatRetMsg([wire.FullSyncCommand("sequence_gap")])),
        ("sync_start_ret", wire.FullSyncStartRetMsg("s", True)),
        ("sync_status_ret", wire.FullSyncStatusRetMsg("s", False, 0.5, False, [1])),
        ("lookup_ret", wire.BatchedP2PLookupRetMsg([("vllm-b", "LocalCPUBackend", 2, "10.0.0.8:8200")])),
        ("error", wire.ErrorMsg("no")),
    ],
)
def test_an_answer_is_byte_for_byte_the_packages_own(name: str, answer: wire.Answer) -> None:
    assert encode(answer) == ANSWERS[name]


def test_json_is_taken_where_a_message_starts_with_a_brace() -> None:
    text = b'{"type":"DeRegisterMsg","instance_id":"vllm-a","worker_id":0,"ip":"10.0.0.7","port":8001}'
    assert decode(text) == decode(SENT["deregister"])


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (SENT["orch_lookup"], "unknown_type"),
        (SENT["old_admit"], "old_wire"),
        (b"", "malformed"),
        (b"{", "malformed"),
        (b"\xc1", "malformed"),
        (b"\x81\xa4type\xabRegisterMsg", "malformed"),
        (b'{"a":' * 50_000, "malformed"),
        (b"\x91" * 50_000, "malformed"),
    ],
)
def test_what_is_not_understood_is_named_by_kind(payload: bytes, kind: str) -> None:
    with pytest.raises(WireError) as caught:
        decode(payload)
    assert caught.value.kind == kind
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


def told(**fields: object) -> bytes:
    return msgspec.msgpack.encode({"type": "FullSyncBatchMsg", **WHO, **CPU, "batch_id": 0, "keys": [], **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"instance_id": "x" * 257},
        {"instance_id": ""},
        {"instance_id": "a\nWorker registered: b"},
        {"location": "\x1b[31m"},
        {"sync_id": "y" * 257},
        {"worker_id": -1},
        {"worker_id": 70_000},
        {"batch_id": wire.MAX_BATCHES + 1},
        {"keys": [0] * (wire.MAX_KEYS + 1)},
        {"keys": ["1"]},
    ],
)
def test_what_a_peer_chooses_is_bounded(fields: dict[str, object]) -> None:
    with pytest.raises(WireError):
        decode(told(**fields))


def test_within_the_bounds_a_message_passes() -> None:
    assert len(decode(told(keys=[0] * wire.MAX_KEYS)).keys) == wire.MAX_KEYS  # type: ignore[union-attr]


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.sampled_from(sorted(SENT.values())).flatmap(lambda b: mutated(b))))
def test_any_bytes_decode_or_are_refused(payload: bytes) -> None:
    try:
        message = decode(payload)
    except WireError as error:
        assert error.kind in ("malformed", "unknown_type", "old_wire")
    else:
        assert message.instance_id.isprintable()


def mutated(payload: bytes) -> st.SearchStrategy[bytes]:
    places = st.integers(0, len(payload) - 1)
    return st.tuples(places, st.binary(min_size=0, max_size=4), st.integers(0, 4)).map(
        lambda cut: payload[: cut[0]] + cut[1] + payload[cut[0] + cut[2] :]
    )
