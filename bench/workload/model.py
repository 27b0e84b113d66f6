"""The nouns of a workload: what is sent, when, and in which slice of the experiment. Pure data.

A workload is materialised once and hashed; every arm replays the same one. Its requests are dealt into slices: slice
`i` is sent in round `i` of the experiment, by every arm. Sessions are never cut by a slice. Times are seconds from
the start of the slice.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.workload.tokens import Piece, PieceText, Tokens, Vocabulary


class WorkloadError(Exception):
    """The workload cannot be made or read. The message names what to change, for a file with line and field."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `at`: seconds from the slice's start to the intended send; `group`: who shares its first prefix."""

    id: str
    session: str
    turn: int
    group: str
    slice: int
    at: float
    output_len: int
    pieces: tuple[Piece, ...]

    @property
    def prompt_len(self) -> int:
        return sum(piece.length for piece in self.pieces)


@dataclass(slots=True)
class Workload:
    """Requests in the order (slice, at), and how they came to be.

    `facts` are the numbers a reader needs to repeat it (seed, speed-up, jitter cell), `notes` are sentences for him.
    """

    name: str
    requests: tuple[Request, ...]
    slices: int
    vocabulary: Vocabulary
    facts: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _sha256: str | None = None

    def of_slice(self, index: int) -> list[Request]:
        return [request for request in self.requests if request.slice == index]

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
    return b"".join(parts)


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
