"""Traces in the Mooncake format (FAST '25): validated on load, jittered inside their time grid, sharing kept exact.

One JSON object a line: `timestamp` (ms), `input_length`, `output_length` (tokens), `hash_ids` (one id a 512-token
block; an id names the whole prefix up to it, the last block may be partial). Every id becomes 512 fixed token ids, so
two prompts share exactly what their ids share. Cost: one pass over the file; tokens are made later.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.workload.analysis import Accesses
from bench.workload.dealing import dealt
from bench.workload.model import Request, Workload, WorkloadError
from bench.workload.tokens import Piece, Vocabulary, piece_key

TRACE_BLOCK = 512
_64_BITS = 2**64 - 1
HOT_SHARE = 0.2
"""An id held by more than this share of the requests is a common prefix, not the mark of a session."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a trace. `at`: seconds."""

    line: int
    at: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def load(path: Path, limit: int | None = None) -> list[Row]:
    """The first `limit` rows of a trace file, checked, in the order of time.

    Raises:
        WorkloadError: naming the line and the field.
    """
    try:
        with path.open("rb") as file:
            return parse(file, str(path), limit)
    except OSError as error:
        raise WorkloadError(f"cannot read trace {path}: {error.strerror or error}") from error


def parse(lines: Iterable[bytes], name: str, limit: int | None = None) -> list[Row]:
    rows: list[Row] = []
    parents: dict[int, tuple[int | None, int]] = {}
    for number, raw in enumerate(lines, start=1):
        if limit is not None and len(rows) >= limit:
            break
        if not raw.strip():
            continue
        row = _row(raw, number, name)
        parent: int | None = None
        for position, block in enumerate(row.hash_ids):
            known, seen = parents.setdefault(block, (parent, number))
            if known != parent:
                raise WorkloadError(
                    f"{name}:{number}: hash_ids[{position}]: id {block} follows {parent} here and {known} on line "
                    f"{seen}; an id must name its whole prefix"
                )
            parent = block
        rows.append(row)
    if not rows:
        raise WorkloadError(f"{name}: no requests in it")
    rows.sort(key=lambda row: row.at)
    return rows


def _row(raw: bytes, number: int, name: str) -> Row:
    where = f"{name}:{number}"
    try:
        data: Any = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise WorkloadError(f"{where}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise WorkloadError(f"{where}: a line must be a JSON object, this is {type(data).__name__}")
    if "delay" in data:
        raise WorkloadError(
            f"{where}: delay: turns that wait for one another, each with new tokens alone, are not read as a trace; "
            "write every prompt whole, with its timestamp"
        )
    timestamp = data.get("timestamp")
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float) or timestamp < 0:
        raise WorkloadError(f"{where}: timestamp: milliseconds from 0 wanted, got {timestamp!r}")
    lengths = []
    for field, least in (("input_length", 1), ("output_length", 0)):
        value = data.get(field)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise WorkloadError(f"{where}: {field}: an integer of at least {least} wanted, got {value!r}")
        lengths.append(value)
    ids = data.get("hash_ids")
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise WorkloadError(f"{where}: hash_ids: a list of integers wanted, got {str(ids)[:60]}")
    if not all(0 <= i <= _64_BITS for i in ids):
        raise WorkloadError(f"{where}: hash_ids: ids of 64 bits wanted, from 0 to {_64_BITS}")
    wanted = -(-lengths[0] // TRACE_BLOCK)
    if len(ids) != wanted:
        raise WorkloadError(
            f"{where}: hash_ids: {lengths[0]} tokens are {wanted} blocks of {TRACE_BLOCK}, the line names {len(ids)}"
        )
    if len(set(ids)) != len(ids):
        raise WorkloadError(f"{where}: hash_ids: an id appears twice in one prompt; an id must name its whole prefix")
    return Row(number, timestamp / 1000, lengths[0], lengths[1], tuple(ids))


def sessions(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """For each row its session and its group.

    The session is the first id that is not common to a large share of the trace: requests that continue one another
    share it. The group is the common prefix before it. A row of common ids alone is a session of its own.
    """
    holders = Counter(block for row in rows for block in row.hash_ids)
    limit = max(2.0, HOT_SHARE * len(rows))
    names = []
    for row in rows:
        depth = 0
        while depth < len(row.hash_ids) and holders[row.hash_ids[depth]] > limit:
            depth += 1
        session = f"s{row.hash_ids[depth]}" if depth < len(row.hash_ids) else f"line-{row.line}"
        group = f"p{row.hash_ids[depth - 1]}" if depth else "none"
        names.append((session, group))
    return names


def jitter(times: Sequence[float], rng: random.Random) -> tuple[list[float], float]:
    """Moves each time forward inside its cell: up to the next distinct time (the last: up to the median cell).

    Returns the new times, which keep the order of cells, and the median cell in seconds.
    """
    distinct = sorted(set(times))
    gaps = [b - a for a, b in pairwise(distinct)]
    cell = sorted(gaps)[len(gaps) // 2] if gaps else 0.0
    width = dict(zip(distinct, [*gaps, cell], strict=True))
    return [time + rng.uniform(0, width[time]) for time in times], cell


def build(
    path: Path,
    *,
    slices: int,
    seed: int,
    requests: int | None = None,
    speedup: float | None = None,
    whole: bool = False,
    token_rate: float = 1500.0,
    use_jitter: bool = True,
    vocabulary: Vocabulary | None = None,
) -> Workload:
    """A trace as a workload.

    Args:
        path: the trace.
        slices: into how many slices the sessions are dealt. Time inside a slice is compressed by the same number, so
            that `speedup` 1 has the trace's own request rate.
        seed: of the jitter and the dealing.
        requests: only the first so many.
        speedup: request rate relative to the trace's; None picks the one that gives `token_rate`.
        whole: every slice is the whole trace (each round replays all of it).
        token_rate: output tokens a second that None aims at.
        use_jitter: spread arrivals inside the trace's time grid.
        vocabulary: which ids to use.
    """
    rows = load(path, requests)
    vocabulary = vocabulary or Vocabulary()
    rng = random.Random(f"{seed}/trace")
    times = [row.at - rows[0].at for row in rows]
    cell = 0.0
    if use_jitter:
        times, cell = jitter(times, rng)
    names = sessions(rows)
    span = max(times) or 1.0
    outputs = [max(1, row.output_length) for row in rows]
    if speedup is None:
        speedup = round(token_rate * span / sum(outputs), 2) or 0.01
    if not speedup > 0:
        raise WorkloadError("speedup must be above 0")

    where = dealt([session for session, _ in names], slices, rng) if not whole else {}
    squeeze = speedup * (1 if whole else slices)
    turns: Counter[str] = Counter()
    drafts: list[Request] = []
    for i in sorted(range(len(rows)), key=lambda i: (times[i], i)):
        session, group = names[i]
        drafts.append(
            Request(
                id=f"t{rows[i].line:06d}",
                session=session,
                turn=turns[session],
                group=group,
                slice=where.get(session, 0),
                at=times[i] / squeeze,
                output_len=outputs[i],
                pieces=_pieces(rows[i]),
            )
        )
        turns[session] += 1
    if whole:
        drafts = [replace(request, slice=copy) for copy in range(slices) for request in drafts]
    drafts.sort(key=lambda request: (request.slice, request.at))
    facts: dict[str, object] = {
        "source": path.name,
        "seed": seed,
        "speedup": speedup,
        "time_compressed": squeeze,
        "trace_block": TRACE_BLOCK,
        "jitter": "uniform inside the cell" if use_jitter else "none",
        "jitter_cell_ms": round(cell * 1000, 3),
        "replay": "whole trace in every round" if whole else "sessions dealt over the rounds",
    }
    zeros = sum(row.output_length == 0 for row in rows)
    notes = [f"{zeros} requests with output_length 0 are sent with 1"] if zeros else []
    late = sum(after.line < before.line for before, after in pairwise(rows))
    if late:
        notes.append(
            f"timestamps are not in order at {late} places of the file; requests are sent in the order of time"
        )
    return Workload(path.stem, tuple(drafts), slices, vocabulary, facts, notes)


def _pieces(row: Row) -> tuple[Piece, ...]:
    last = row.input_length - TRACE_BLOCK * (len(row.hash_ids) - 1)
    lengths = [TRACE_BLOCK] * (len(row.hash_ids) - 1) + [last]
    return tuple(Piece(piece_key("trace", i), n) for i, n in zip(row.hash_ids, lengths, strict=True))


def block_accesses(rows: Sequence[Row]) -> Accesses:
    """What the trace says about sharing, by its own blocks of 512 tokens; the last of a prompt may hold fewer."""
    keys = np.array([block for row in rows for block in row.hash_ids], np.uint64)
    tokens = np.array([piece.length for row in rows for piece in _pieces(row)], np.int64)
    ends = np.cumsum([len(row.hash_ids) for row in rows], dtype=np.int64)
    return Accesses(keys, tokens, ends, TRACE_BLOCK)
