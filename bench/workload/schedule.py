"""A materialised workload as a file: JSONL, a head and a request a line. What is read back is what was written.

The head holds the workload's sha256, which is over everything that reaches the wire; a file that was changed is
refused. A prompt is kept as its pieces (key and length, or text), not as ids. Writes next to the file and renames, so
that no half file is left.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from bench.workload.datafiles import lines
from bench.workload.model import Deed, FleetAction, Request, Role, Workload, WorkloadError
from bench.workload.tokens import Piece, Vocabulary

VERSION = 1
MARK = b'{"kvctl_schedule":'
MOST_TOKENS = 1 << 32


class _Head(msgspec.Struct):
    kvctl_schedule: int
    name: str
    slices: int
    requests: int
    sha256: str
    vocabulary: tuple[int, int]
    facts: dict[str, Any]
    notes: list[str]
    users: int | None = None
    actions: list[tuple[float, Deed, int]] = []
    engine: dict[str, int | list[str]] = {}


class _Line(msgspec.Struct, omit_defaults=True):
    id: str
    session: str
    turn: int
    group: str
    slice: int
    at: float
    output: int
    pieces: list[tuple[int, int]]
    texts: list[str | None] = []
    after: str | None = None
    think: float = 0.0
    roles: list[Role] = []
    priority: int | None = None
    headers: list[tuple[str, str]] = []
    abort_after: int | None = None
    body: str | None = None
    model: str | None = None


def is_schedule(path: Path) -> bool:
    """Whether a file begins as a schedule does; False also if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(MARK)) == MARK
    except OSError:
        return False


def write(workload: Workload, path: Path) -> None:
    """Writes the schedule.

    Raises:
        WorkloadError: the file cannot be written.
    """
    vocabulary = workload.vocabulary
    head = _Head(
        VERSION, workload.name, workload.slices, len(workload.requests), workload.sha256,
        (vocabulary.low, vocabulary.high), workload.facts, workload.notes, workload.users,
        [(action.at, action.deed, action.worker) for action in workload.actions], workload.engine,
    )  # fmt: skip
    encoder = msgspec.json.Encoder()
    partial: Path | None = None
    try:
        with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            partial = Path(file.name)
            file.write(encoder.encode(head) + b"\n")
            for request in workload.requests:
                file.write(encoder.encode(_line(request)) + b"\n")
        partial.chmod(0o644)
        partial.replace(path)
    except OSError as error:
        raise WorkloadError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if partial is not None:
            with contextlib.suppress(FileNotFoundError):
                partial.unlink()


def _line(request: Request) -> _Line:
    texts = [piece.text for piece in request.pieces]
    return _Line(
        request.id, request.session, request.turn, request.group, request.slice, request.at, request.output_len,
        [(piece.key, piece.length) for piece in request.pieces], texts if any(one is not None for one in texts) else [],
        request.after, request.think, list(request.roles), request.priority, list(request.headers),
        request.abort_after, request.body.decode() if request.body is not None else None, request.model,
    )  # fmt: skip


def read(path: Path) -> Workload:
    """The workload of a schedule file.

    Raises:
        WorkloadError: naming the line; also for a file that was cut or changed.
    """
    numbered = lines(path)
    head_at = next(numbered, None)
    if head_at is None:
        raise WorkloadError(f"{path}: no requests in it")
    head = _decoded(head_at[1], _Head, f"{path}:{head_at[0]}")
    if head.kvctl_schedule != VERSION:
        raise WorkloadError(f"{path}: schedule version {head.kvctl_schedule}, this program reads {VERSION}")
    try:
        vocabulary = Vocabulary(*head.vocabulary)
    except ValueError as error:
        raise WorkloadError(f"{path}:{head_at[0]}: vocabulary: {error}") from error
    requests = [_request(raw, f"{path}:{number}", head.slices) for number, raw in numbered]
    if len(requests) != head.requests:
        raise WorkloadError(f"{path}: {len(requests)} requests where its head says {head.requests}: the file was cut")
    workload = Workload(
        head.name, tuple(requests), head.slices, vocabulary, head.facts, head.notes, head.users,
        tuple(FleetAction(*action) for action in head.actions), head.engine,
    )  # fmt: skip
    if workload.sha256 != head.sha256:
        raise WorkloadError(f"{path}: its sha256 is not the one in its head: the file was changed; make it again")
    return workload


def _request(raw: bytes, where: str, slices: int) -> Request:
    line = _decoded(raw, _Line, where)
    if not 0 <= line.slice < slices:
        raise WorkloadError(f"{where}: slice: from 0 to {slices - 1} wanted, got {line.slice}")
    numbers = {"at": line.at * 1e6, "think": line.think * 1e6, "turn": line.turn, "output": line.output}
    for name, value in numbers.items():
        if not 0 <= value < (1 << 32 if name in ("turn", "output") else 1 << 63):
            raise WorkloadError(f"{where}: {name}: out of range")
    if any(not one.isprintable() for header in line.headers for one in header):
        raise WorkloadError(f"{where}: headers: a name or value that is not printable")
    if line.texts and len(line.texts) != len(line.pieces):
        raise WorkloadError(f"{where}: texts: one a piece wanted, or none")
    for i, (key, length) in enumerate(line.pieces):
        if not 0 <= key < 2**64 or not 0 <= length < MOST_TOKENS:
            raise WorkloadError(f"{where}: pieces[{i}]: a 64-bit key and a length wanted")
    texts = line.texts or [None] * len(line.pieces)
    pieces = [Piece(key, length, text) for (key, length), text in zip(line.pieces, texts, strict=True)]
    try:
        return Request(
            line.id, line.session, line.turn, line.group, line.slice, line.at, line.output, tuple(pieces), line.after,
            line.think, tuple(line.roles), line.priority, tuple(line.headers), line.abort_after,
            line.body.encode() if line.body is not None else None, line.model,
        )  # fmt: skip
    except WorkloadError as error:
        raise WorkloadError(f"{where}: {error}") from error


def _decoded(raw: bytes, kind: type[Any], where: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise WorkloadError(f"{where}: {error}") from error
