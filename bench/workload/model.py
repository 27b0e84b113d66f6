"""The nouns of a workload: what is sent, when or after which answer, and in which slice of the experiment. Pure data.

A workload is materialised once and hashed; every arm replays the same one. Its requests are dealt into slices: slice
`i` is sent in round `i` of the experiment, by every arm. Sessions are never cut by a slice. Times are seconds from
the start of the slice.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from bench.workload.tokens import Piece, PieceText, Tokens, Vocabulary

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\x20-\x7e]*")
_OWN_FIELDS = frozenset({"prompt", "messages", "input", "stream"})
_FURTHER = 0xFFFFFFFF
"""Marks what follows a plain request in the canonical encoding; no id is as long."""


class WorkloadError(Exception):
    """The workload cannot be made or read. The message names what to change, for a file with line and field."""


class Role(StrEnum):
    """Who says a piece of a prompt, for the chat and responses APIs."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a schedule.

    Args:
        id: unique in its slice.
        session: the conversation it belongs to.
        turn: its place in the session, from 0.
        group: who shares its first prefix.
        slice: which slice of the experiment it belongs to.
        at: seconds from the slice's start to the intended send. With `after`: when that would be if answers took no
            time, which orders and describes the schedule; the send itself waits.
        output_len: tokens of the answer.
        pieces: the prompt.
        after: id of an earlier request of the same slice. This one is then intended for `think` seconds after the end
            of that one's answer, and its lag counts from there. If that one fails, a request of the same session is
            not sent and counts as failed; one of another session (a user of a closed loop) goes on.
        think: seconds, see `after`.
        roles: one a piece; empty: one user message. Neighbours of one role are one message.
        priority: higher goes first; sent as the header `x-kvctl-priority`. An engine's own field belongs in `body`.
        headers: further request headers, (name, value).
        abort_after: content chunks after which the client hangs up. Such a request is aborted, not failed.
        body: a JSON object merged over the body that the client makes (what a batch file says), without a prompt.
    """

    id: str
    session: str
    turn: int
    group: str
    slice: int
    at: float
    output_len: int
    pieces: tuple[Piece, ...]
    after: str | None = None
    think: float = 0.0
    roles: tuple[Role, ...] = ()
    priority: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    abort_after: int | None = None
    body: bytes | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        if self.roles and len(self.roles) != len(self.pieces):
            raise WorkloadError(f"request {self.id}: {len(self.roles)} roles for {len(self.pieces)} pieces")
        if self.abort_after is not None and self.abort_after < 1:
            raise WorkloadError(f"request {self.id}: abort_after {self.abort_after}: at least 1 chunk wanted")
        if self.body is not None:
            _check_body(self.id, self.body)
        for name, value in self.headers:
            if not _HEADER.fullmatch(f"{name}: {value}"):
                raise WorkloadError(f"request {self.id}: header {name!r}: not a name and one line of printable text")
        if self.think < 0:
            raise WorkloadError(f"request {self.id}: think {self.think}: seconds from 0 wanted")

    @property
    def prompt_len(self) -> int:
        return sum(piece.length for piece in self.pieces)


class Deed(StrEnum):
    """What happens to an engine: `kill` is SIGKILL, `start` brings it back, empty, at the same ports."""

    KILL = "kill"
    START = "start"


@dataclass(frozen=True, slots=True)
class FleetAction:
    """Something done to engine number `worker` (from 0), `at` seconds after the start of every block."""

    at: float
    deed: Deed
    worker: int


def _check_body(name: str, body: bytes) -> None:
    try:
        fields = msgspec.json.decode(body, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise WorkloadError(f"request {name}: body: not a JSON object: {error}") from None
    taken = _OWN_FIELDS & fields.keys()
    if taken:
        raise WorkloadError(f"request {name}: body: {', '.join(sorted(taken))}: set by the client, leave it out")


@dataclass(slots=True)
class Workload:
    """Requests in the order (slice, at), and how they came to be.

    `facts` are the numbers a reader needs to repeat it (seed, speed-up, jitter cell), `notes` are sentences for him.
    `users`: of a closed loop; None if the schedule does not wait for a free user. `actions`: done to the engines in
    every block, in the order of time; only possible with engines that this program started. `engine`: options that
    simulated engines need for the workload to mean something (`num_blocks`, `lora`), as `kvctl sim` spells them.
    """

    name: str
    requests: tuple[Request, ...]
    slices: int
    vocabulary: Vocabulary
    facts: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    users: int | None = None
    actions: tuple[FleetAction, ...] = ()
    engine: dict[str, int | list[str]] = field(default_factory=dict)
    _sha256: str | None = None

    def of_slice(self, index: int) -> list[Request]:
        return [request for request in self.requests if request.slice == index]

    @property
    def loop(self) -> str:
        """How arrivals depend on answers: `open`, `partly open` (later turns wait for their answers) or `closed`."""
        if self.users is not None:
            return "closed"
        return "partly open" if any(request.after is not None for request in self.requests) else "open"

    def tokens(self, request: Request) -> Tokens:
        return PieceText(self.vocabulary).tokens(request.pieces)

    @property
    def sha256(self) -> str:
        """Of the canonical encoding: everything that reaches the wire, and the schedule. Cost: all tokens once."""
        if self._sha256 is None:
            digest = hashlib.sha256(b"kvctl-workload-1\n")
            text = PieceText(self.vocabulary)
            for request in self.requests:
                digest.update(encode_request(request, text))
            if self.actions:
                done = [(round(action.at * 1e6), action.deed, action.worker) for action in self.actions]
                digest.update(b"actions" + msgspec.json.encode(done))
            self._sha256 = digest.hexdigest()
        return self._sha256


def encode_request(request: Request, text: PieceText) -> bytes:
    """The canonical bytes of a request: lengths before strings, little endian, the offset in microseconds."""
    tokens = text.tokens(request.pieces)
    parts = []
    for name in (request.id, request.session, request.group):
        raw = name.encode()
        parts.append(struct.pack("<I", len(raw)) + raw)
    numbers = (request.turn, request.slice, round(request.at * 1e6), request.output_len, len(tokens))
    parts.append(struct.pack("<IIQII", *numbers))
    parts.append(tokens.astype("<u4").tobytes())
    further = _further(request)
    if further:
        raw = msgspec.json.encode(further)
        parts.append(struct.pack("<II", _FURTHER, len(raw)) + raw)
    return b"".join(parts)


def _further(request: Request) -> list[object]:
    """What a request has beyond a prompt at a time; empty for a plain one."""
    texts = [piece.text for piece in request.pieces]
    body = request.body.decode() if request.body is not None else None
    further: list[object] = [
        request.after, round(request.think * 1e6), request.roles, request.priority, request.headers,
        request.abort_after, body, texts if any(text is not None for text in texts) else None,
    ]  # fmt: skip
    if request.model is not None:
        return [*further, request.model]
    return further if any(further[i] for i in (0, 1, 2, 4, 5)) or any(further[i] is not None for i in (3, 6, 7)) else []


def chains(requests: Sequence[Request]) -> dict[str, list[int]]:
    """Id -> the indices of the requests that wait for it. `requests`: of one slice, in order.

    Raises:
        WorkloadError: an id appears twice, or `after` names no earlier request.
    """
    waiting: dict[str, list[int]] = {}
    seen: set[str] = set()
    for index, request in enumerate(requests):
        if request.after is not None:
            if request.after not in seen:
                raise WorkloadError(f"request {request.id}: after {request.after!r}: no earlier request of its slice")
            waiting.setdefault(request.after, []).append(index)
        if request.id in seen:
            raise WorkloadError(f"request {request.id}: the id appears twice in slice {request.slice}")
        seen.add(request.id)
    return waiting


def deal_sessions(sizes: Sequence[int], slices: int, order: Sequence[int]) -> list[int]:
    """Which slice each session goes to, so that the slices hold about equally many requests.

    Args:
        sizes: requests of each session.
        slices: at least 1.
        order: the sessions in the order in which they are dealt (a seeded shuffle).

    Returns:
        The slice of each session. Each goes to the slice that holds the fewest requests so far, the first on a tie.
    """
    held = [0] * slices
    where = [0] * len(sizes)
    for session in order:
        target = held.index(min(held))
        where[session] = target
        held[target] += sizes[session]
    return where
