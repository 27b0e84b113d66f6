"""The messages between LMCache workers and their controller (LMCache 0.3.12 to 0.5.6), as msgspec structs.

Workers PUSH deregistrations, batches of operations and full-sync batches, and ask over DEALER/ROUTER: register,
heartbeat, start and state of a full sync, lookup for a peer. A message is msgpack, or JSON where it starts with `{`;
its `type` is a tag. Every text, list and number that a peer chooses is bounded here; what does not fit is a
`WireError`. Pure. Cost: about 0.2 us an operation.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

MAX_FRAME: Final = 8 << 20
"""Bytes of a message; libzmq drops the connection of who sends more."""
MAX_KEYS: Final = 1 << 18
MAX_LOOKUP: Final = 1 << 14
MAX_BATCHES: Final = 1 << 16
MAX_MISSING: Final = 4096
"""Missing batches named in one answer; the rest is named in the next."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Text = Annotated[str, msgspec.Meta(max_length=256)]
Number = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Key = int
Keys = Annotated[list[Key], msgspec.Meta(max_length=MAX_KEYS)]

KEY_MASK: Final = (1 << 64) - 1
"""A key is 64 bits; builtin hashes come signed."""


class WireError(ValueError):
    """A message that is not understood. `kind` is why, closed: also the label of a metric."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Worker(msgspec.Struct, frozen=True, gc=False):
    """What all messages of a worker begin with."""

    instance_id: Name
    worker_id: Number


class RegisterMsg(_Worker, tag=True, frozen=True, gc=False):
    ip: Text
    port: Number
    peer_init_url: Text | None = None


class HeartbeatMsg(_Worker, tag=True, frozen=True, gc=False):
    ip: Text
    port: Number
    peer_init_url: Text | None = None


class DeRegisterMsg(_Worker, tag=True, frozen=True, gc=False):
    ip: Text
    port: Number


class KVOpEvent(msgspec.Struct, frozen=True, gc=False):
    op_type: str
    key: Key
    seq_num: Sequence


class BatchedKVOperationMsg(_Worker, tag=True, frozen=True):
    location: Name
    operations: Annotated[list[KVOpEvent], msgspec.Meta(max_length=MAX_KEYS)]


class FullSyncStartMsg(_Worker, tag=True, frozen=True, gc=False):
    location: Name
    sync_id: Name
    total_keys: Sequence
    batch_count: Annotated[int, msgspec.Meta(ge=0, le=MAX_BATCHES)]


class FullSyncBatchMsg(_Worker, tag=True, frozen=True):
    location: Name
    sync_id: Name
    batch_id: Annotated[int, msgspec.Meta(ge=0, le=MAX_BATCHES)]
    keys: Keys


class FullSyncEndMsg(_Worker, tag=True, frozen=True, gc=False):
    location: Name
    sync_id: Name
    actual_total_keys: Sequence


class FullSyncStatusMsg(_Worker, tag=True, frozen=True, gc=False):
    sync_id: Name


class BatchedP2PLookupMsg(msgspec.Struct, tag=True, frozen=True):
    hashes: Annotated[list[Key], msgspec.Meta(max_length=MAX_LOOKUP)]
    instance_id: Name
    worker_id: Number


Push = DeRegisterMsg | BatchedKVOperationMsg | FullSyncBatchMsg | FullSyncEndMsg
Ask = RegisterMsg | HeartbeatMsg | FullSyncStartMsg | FullSyncStatusMsg | BatchedP2PLookupMsg
Message = Push | Ask


# -- answers ---------------------------------------------------------------------------------------------------


class FullSyncCommand(msgspec.Struct, tag="full_sync", tag_field="command_type", frozen=True):
    reason: str | None = None
    args: dict[str, str] | None = None


class RegisterRetMsg(msgspec.Struct, tag=True, frozen=True):
    extra_config: dict[str, str] = {}


class HeartbeatRetMsg(msgspec.Struct, tag=True, frozen=True):
    commands: list[FullSyncCommand] = []


class FullSyncStartRetMsg(msgspec.Struct, tag=True, frozen=True):
    sync_id: str
    accepted: bool
    error_msg: str | None = None


class FullSyncStatusRetMsg(msgspec.Struct, tag=True, frozen=True):
    sync_id: str
    is_complete: bool
    global_progress: float
    can_exit_freeze: bool
    missing_batches: list[int] = []


class BatchedP2PLookupRetMsg(msgspec.Struct, tag=True, frozen=True):
    layout_info: list[tuple[str, str, int, str]]


class ErrorMsg(msgspec.Struct, tag=True, frozen=True):
    error: str


Answer = (
    RegisterRetMsg | HeartbeatRetMsg | FullSyncStartRetMsg | FullSyncStatusRetMsg | BatchedP2PLookupRetMsg | ErrorMsg
)


class _Tagged(msgspec.Struct):
    type: Annotated[str, msgspec.Meta(max_length=64)] = ""


_OLD: Final = frozenset({"KVAdmitMsg", "KVEvictMsg"})
_msgpack = msgspec.msgpack.Decoder(Message)
_json = msgspec.json.Decoder(Message)
_msgpack_tag = msgspec.msgpack.Decoder(_Tagged)
_json_tag = msgspec.json.Decoder(_Tagged)
_encoder = msgspec.msgpack.Encoder()
_KNOWN: Final = frozenset(
    kind.__name__
    for kind in (
        RegisterMsg,
        HeartbeatMsg,
        DeRegisterMsg,
        BatchedKVOperationMsg,
        FullSyncStartMsg,
        FullSyncBatchMsg,
        FullSyncEndMsg,
        FullSyncStatusMsg,
        BatchedP2PLookupMsg,
    )
)


def decode(payload: bytes) -> Message:
    """One message of a worker.

    Raises:
        WireError: `unknown_type` where the type is none that a worker sends to a controller, `old_wire` where it is
            one of LMCache before 0.3.12, `malformed` for all else.
    """
    text = payload[:1] == b"{"
    try:
        message: Message = (_json if text else _msgpack).decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _explained(payload, text, error) from None
    if not all(shown.isprintable() for shown in _shown(message)):
        raise WireError("malformed", "an instance id, location or IP address with characters that cannot be printed")
    return message


def _shown(message: Message) -> tuple[str, ...]:
    """The texts of a message that come to stand in logs and answers."""
    match message:
        case RegisterMsg() | HeartbeatMsg():
            return message.instance_id, message.ip
        case BatchedKVOperationMsg() | FullSyncStartMsg() | FullSyncBatchMsg() | FullSyncEndMsg():
            return message.instance_id, message.location
        case _:
            return (message.instance_id,)


def _explained(payload: bytes, text: bool, error: Exception) -> WireError:
    try:
        kind = (_json_tag if text else _msgpack_tag).decode(payload).type
    except (msgspec.MsgspecError, ValueError, RecursionError):
        kind = ""
    if kind in _OLD:
        return WireError("old_wire", f"{kind} is of LMCache before 0.3.12; upgrade the worker to 0.3.12 or later")
    if kind and kind not in _KNOWN:
        return WireError("unknown_type", f"Unknown worker message type: {kind!r}")
    return WireError("malformed", f"not a message of an LMCache worker: {str(error)[:200]!r}")


def encode(answer: Answer) -> bytes:
    return _encoder.encode(answer)
