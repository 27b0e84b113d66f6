"""A folder that `kvctl bench --out` left, read back: result.json, and requests.jsonl as the blocks that it was.

Reads two files, checks what it reads; a folder that is none raises one sentence. Memory: columns, no object a request
(a row is read, written to the columns and forgotten).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec

from bench.arms import Arm
from bench.client.table import Table
from bench.client.timing import Events, Timing
from bench.client.watch import SelfWatch
from bench.cold import ColdProof
from bench.control import DecisionFacts
from bench.design import Block
from bench.experiment import BlockResult
from bench.guards import BlockFacts
from bench.metrics import Measurements
from bench.requests_file import NAME
from bench.result import SCHEMA_VERSION
from bench.verdict import ArmResult, arm_result
from bench.workload.model import Request
from bench.workload.tokens import Piece

MOST_BYTES = 4 << 30
"""Of requests.jsonl; about four million requests."""


class NotAResult(ValueError):
    """The folder is no result of kvctl bench, or a broken one. The message names it."""


class _Row(msgspec.Struct):
    """The keys of requests.jsonl that are read back."""

    id: str
    arm: str
    block: int
    round: int
    session: str
    ok: bool
    t_sched: float | None
    prompt_tokens: int
    output_planned: int
    turn: int = 0
    group: str = ""
    aborted: bool = False
    error: str | None = None
    detail: str = ""
    status: int = 0
    worker: str | None = None
    decision: str | None = None
    decide_us: float | None = None
    cached_tokens: int | None = None
    predicted_cached_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_source: str = "none"
    t_send: float | None = None
    t_hdr: float | None = None
    t_first: float | None = None
    t_last: float | None = None
    t_end: float | None = None
    stall_ms: float | None = None
    first_chunk_tokens: int = 0
    coalesced: int = 0
    resent: bool = False
    events: dict[str, int] = {}
    interrupted: bool = False


@dataclass(slots=True)
class Stored:
    """`data`: the content of result.json. `arms`: of its complete blocks, in the order of result.json."""

    folder: Path
    data: dict[str, Any]
    arms: list[ArmResult]

    @property
    def sha256(self) -> str:
        return str(self.data["provenance"]["workload_sha256"])

    def arm(self, name: str) -> ArmResult:
        return next(arm for arm in self.arms if arm.arm.name == name)


def load(folder: Path) -> Stored:
    """The result in `folder`.

    Raises:
        NotAResult: it is not one, or cannot be read.
    """
    data = _result(folder)
    names = [str(arm["name"]) for arm in data["arms"]]
    if not names:
        raise NotAResult(f"{folder} holds a sweep or a capacity search, which has no arms to compare")
    blocks: dict[str, list[BlockResult]] = {name: [] for name in names}
    arms = {arm["name"]: Arm(arm["name"], arm["mode"], "http://127.0.0.1:0") for arm in data["arms"]}
    try:
        for rows in _blocks(folder / NAME):
            first = rows[0]
            if first.arm not in blocks:
                raise NotAResult(f"{folder / NAME} has requests of an arm {first.arm!r} that result.json does not name")
            blocks[first.arm].append(_block(rows, arms[first.arm], names.index(first.arm)))
    except OSError as error:
        raise NotAResult(f"cannot read {folder / NAME}: {error.strerror or error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotAResult(f"{folder / NAME} is no list of requests of kvctl bench: {error}") from None
    return Stored(folder, data, [arm_result(arms[name], blocks[name], sorted(_workers(data, name))) for name in names])


def _result(folder: Path) -> dict[str, Any]:
    path = folder / "result.json"
    try:
        data = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        version, sha = data["schema_version"], data["provenance"]["workload_sha256"]
        complete = all(
            isinstance(arm["name"], str) and isinstance(arm["mode"], str) and isinstance(arm["stable"], bool)
            for arm in data["arms"]
        )
        reasons = data["verdict"]["reasons"]
        complete = complete and isinstance(sha, str) and isinstance(reasons, list)
    except OSError as error:
        raise NotAResult(
            f"{folder} is no result of kvctl bench --out: {path.name}: {error.strerror or error}"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
        raise NotAResult(f"{folder} is no result of kvctl bench --out: {path.name} has another form") from None
    if version != SCHEMA_VERSION or not complete:
        raise NotAResult(f"{folder} has schema version {version!r}, this kvctl reads {SCHEMA_VERSION}")
    return data


def _workers(data: dict[str, Any], name: str) -> list[str]:
    return next(list(arm.get("workers") or {}) for arm in data["arms"] if arm["name"] == name)


def _blocks(path: Path) -> Iterator[list[_Row]]:
    """The rows of one block after the other."""
    if path.stat().st_size > MOST_BYTES:
        raise NotAResult(f"{path} is larger than {MOST_BYTES >> 30} GiB")
    decoder = msgspec.json.Decoder(_Row)
    rows: list[_Row] = []
    with path.open("rb") as file:
        for line in file:
            row = decoder.decode(line)
            if rows and (row.block, row.arm) != (rows[0].block, rows[0].arm):
                yield rows
                rows = []
            rows.append(row)
    if rows:
        yield rows


def _block(rows: list[_Row], arm: Arm, place: int) -> BlockResult:
    requests, table, decisions = [], Table(len(rows)), {}
    for index, row in enumerate(rows):
        table.put(index, _timing(row))
        requests.append(
            Request(
                row.id, row.session, row.turn, row.group, row.round, _or_nan(row.t_sched), row.output_planned,
                (Piece(0, row.prompt_tokens),),
            )
        )  # fmt: skip
        if row.decision is not None and (row.decide_us is not None or row.predicted_cached_tokens is not None):
            decisions[row.decision] = DecisionFacts(row.decide_us, row.predicted_cached_tokens)
    facts = BlockFacts(Measurements.block(requests, table, decisions), SelfWatch())
    block = Block(rows[0].block, rows[0].round, place)
    return BlockResult(block, arm, facts, ColdProof("stored"), 0.0, interrupted=rows[0].interrupted)


_EVENTS = frozenset(item.name for item in fields(Events))


def _timing(row: _Row) -> Timing:
    if not row.ok and row.error is None:
        row.error = "unfinished"
    return Timing(
        _or_nan(row.t_sched), _or_nan(row.t_send), _or_nan(row.t_hdr), _or_nan(row.t_first), _or_nan(row.t_last),
        _or_nan(row.t_end), row.status,
        worker=row.worker,
        decision=row.decision,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        n_out=row.output_tokens,
        n_out_source=row.output_tokens_source,
        n_first=row.first_chunk_tokens,
        coalesced=row.coalesced,
        retried=row.resent,
        events=Events(**{name: count for name, count in row.events.items() if name in _EVENTS}),
        gaps=[] if row.stall_ms is None else [row.stall_ms / 1000],
        error=row.error,
        detail=row.detail,
        aborted=row.aborted,
    )  # fmt: skip


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
