"""Data sets of text as workloads: ShareGPT-style conversations and OpenAI batch files.

A message is one piece that carries its text; two prompts share what their first messages share. Tokens are not counted
with the engine's tokenizer: a length is an estimate of one token in four bytes, which shapes the description, never
the prompt. Pure apart from `bench.workload.lines`, which reads.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.workload.arrivals import Arrivals, Process, rearranged
from bench.workload.dealing import dealt
from bench.workload.frame import POISSON
from bench.workload.model import Request, Role, Workload, WorkloadError
from bench.workload.tokens import Piece, Vocabulary, piece_key

RATE = 8.0
THINK = 1.0
BYTES_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Said:
    """One message."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request of a data set before it has a time. `after`: it continues the one before it of its session."""

    session: str
    turn: int
    messages: tuple[Said, ...]
    output_len: int
    body: bytes | None = None


@dataclass(slots=True)
class DataSet:
    """What a file held. `api`: the endpoint its requests are for, None if it does not say. `roles`: whether the
    messages' roles matter (not for a plain prompt).
    """

    kind: str
    wanted: list[Wanted]
    api: str | None = None
    roles: bool = True
    notes: list[str] | None = None


def tokens_of(text: str) -> int:
    """About how many tokens a text has, at least 1."""
    return max(1, -(-len(text.encode()) // BYTES_A_TOKEN))


def turns(session: str, messages: Sequence[Said], default_output: int) -> list[Wanted]:
    """A request for each answer in a conversation, and one for a question at its end that has none."""
    found: list[Wanted] = []
    for i, message in enumerate(messages):
        if message.role is Role.ASSISTANT and i and messages[i - 1].role is not Role.ASSISTANT:
            found.append(Wanted(session, len(found), tuple(messages[:i]), tokens_of(message.text)))
    if messages and messages[-1].role is Role.USER:
        found.append(Wanted(session, len(found), tuple(messages), default_output))
    return found


def build(
    data: DataSet,
    *,
    name: str,
    slices: int,
    seed: int,
    requests: int | None = None,
    rate: float | None = None,
    speedup: float = 1.0,
    arrivals: Arrivals | None = None,
    whole: bool = False,
    vocabulary: Vocabulary | None = None,
) -> Workload:
    """A data set as a workload: sessions arrive by `arrivals` (Poisson), a later turn waits for the answer before it.

    `requests`: the first so many. `rate`: requests a second over a slice, 8 if None.
    """
    if arrivals is not None and arrivals.process is Process.TRACE:
        raise WorkloadError(f"--arrivals trace: {name} holds no times; choose another process")
    wanted = data.wanted if requests is None else data.wanted[:requests]
    if not wanted:
        raise WorkloadError(f"{name}: no requests in it")
    rng = random.Random(f"{seed}/data")
    where = {} if whole else dealt([one.session for one in wanted], slices, rng)
    pieces: dict[str, Piece] = {}
    drafts: list[Request] = []
    order = _shuffled([one.session for one in wanted], seed)
    last: dict[str, str] = {}
    for number, one in sorted(enumerate(wanted), key=lambda pair: (order[pair[1].session], pair[0])):
        own = tuple(_piece(said.text, pieces) for said in one.messages)
        before = last.get(one.session)
        drafts.append(
            Request(
                id=f"d{number:06d}", session=one.session, turn=one.turn, group=f"p{own[0].key:016x}",
                slice=where.get(one.session, 0), at=THINK / speedup * one.turn, output_len=one.output_len, pieces=own,
                after=before, think=THINK / speedup if before else 0.0,
                roles=tuple(said.role for said in one.messages) if data.roles else (), body=one.body,
            )
        )  # fmt: skip
        last[one.session] = drafts[-1].id
    if whole:
        drafts = [replace(request, slice=copy) for copy in range(slices) for request in drafts]
    drafts.sort(key=lambda request: request.slice)
    facts: dict[str, object] = {
        "source": name, "format": data.kind, "seed": seed, "speedup": speedup, "tokens": "estimated, 4 bytes each",
        "think_s": THINK / speedup,
        "replay": "whole file in every round" if whole else "sessions dealt over the rounds",
    }  # fmt: skip
    if data.api is not None:
        facts["api"] = data.api
    workload = Workload(name, tuple(drafts), slices, vocabulary or Vocabulary(), facts, list(data.notes or []))
    return rearranged(workload, arrivals or POISSON, (rate or RATE) * speedup, seed)


def _piece(text: str, known: dict[str, Piece]) -> Piece:
    if text not in known:
        known[text] = Piece(piece_key("text", text), tokens_of(text), text)
    return known[text]


def _shuffled(sessions: Sequence[str], seed: int) -> dict[str, int]:
    """A place for each session: in the order of a file, neighbours are often alike."""
    names = list(dict.fromkeys(sessions))
    order = np.random.default_rng([seed, 0x5E55]).permutation(len(names)).tolist()
    return dict(zip(names, order, strict=True))
