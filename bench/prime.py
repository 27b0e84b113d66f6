"""The prime phase: what the requests of a group share is computed once, serially, before a block is measured. Pure.

Without it the first requests of a group arrive together and race to fill the cache; with it the block measures a
cache that holds the shared prefixes and nothing else. The priming requests are the cold ones: they are reported apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.workload.model import Request
from bench.workload.tokens import Piece

MOST = 256
"""Groups primed in one block; the largest go first."""


def prime_requests(requests: Sequence[Request]) -> list[Request]:
    """One request of one token for each group that at least two sessions of these requests share, the largest group
    first; its prompt is the longest prefix that all requests of the group share. Each waits for the one before.
    """
    groups: dict[str, list[Request]] = {}
    for request in requests:
        groups.setdefault(request.group, []).append(request)
    shared = [members for members in groups.values() if len({member.session for member in members}) > 1]
    shared.sort(key=len, reverse=True)
    made: list[Request] = []
    for members in shared[:MOST]:
        pieces = common_prefix([member.pieces for member in members])
        if pieces:
            first = members[0]
            made.append(
                replace(
                    first,
                    id=f"prime-{len(made)}",
                    session=f"prime-{len(made)}",
                    at=0.0,
                    output_len=1,
                    pieces=pieces,
                    roles=first.roles[: len(pieces)],
                    after=made[-1].id if made else None,
                    think=0.0,
                    abort_after=None,
                )
            )
    return made


def common_prefix(prompts: Sequence[Sequence[Piece]]) -> tuple[Piece, ...]:
    """The longest prefix of all prompts. Pieces of one key share as many ids as the shortest of them has."""
    found: list[Piece] = []
    for column in zip(*prompts, strict=False):
        if len({piece.key for piece in column}) > 1:
            break
        shortest = min(piece.length for piece in column)
        found.append(Piece(column[0].key, shortest))
        if any(piece.length != shortest for piece in column):
            break
    return tuple(piece for piece in found if piece.length)
