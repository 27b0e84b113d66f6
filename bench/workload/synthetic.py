"""Built-in workloads: conversations that grow under shared system prompts, and the control that shares nothing.

`multi-turn`: a system prompt drawn with Zipf popularity, then turns: each prompt is the one before, the answer to it
(fixed ids: the schedule does not wait for the engine) and a new user message. Open loop: a turn is sent a think time
after the one before it, whatever the engine does. `no-sharing`: every request alone, the control a cache-aware router
must not lose on. Pure; everything follows from the parameters and the seed.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace

from bench.workload.model import Request, Workload, WorkloadError
from bench.workload.tokens import Piece, Vocabulary, piece_key


@dataclass(frozen=True, slots=True)
class Conversations:
    """Parameters. Lengths are tokens, ranges are inclusive and uniform, times are seconds at `speedup` 1.

    The longest conversation fits a context of 8,192. `rate` is requests a second over a slice. `groups` system
    prompts have popularity rank**-zipf; 0 gives each session its own.
    """

    rate: float = 14.0
    groups: int = 16
    zipf: float = 1.0
    system: tuple[int, int] = (128, 320)
    user: tuple[int, int] = (448, 896)
    answer: tuple[int, int] = (8, 24)
    turns: tuple[int, int] = (4, 8)
    think: tuple[float, float] = (0.35, 0.65)


WORKLOADS: dict[str, Conversations] = {
    "multi-turn": Conversations(),
    "no-sharing": replace(Conversations(), groups=0, turns=(1, 1), user=(1024, 3072)),
}


def build(
    name: str,
    *,
    slices: int,
    requests: int,
    seed: int,
    rate: float | None = None,
    speedup: float = 1.0,
    vocabulary: Vocabulary | None = None,
) -> Workload:
    """A built-in workload of `requests` requests in `slices` independent slices of about equal size.

    `rate` scales only the number of conversations that run at once, `speedup` all times.
    """
    if name not in WORKLOADS:
        raise WorkloadError(f"unknown workload {name!r}: one of {', '.join(WORKLOADS)}")
    if requests < slices:
        raise WorkloadError(f"{requests} requests cannot fill {slices} blocks: give --requests {slices} or more")
    spec = WORKLOADS[name] if rate is None else replace(WORKLOADS[name], rate=rate)
    if spec.rate <= 0 or speedup <= 0:
        raise WorkloadError("rate and speedup must be above 0")
    made: list[Request] = []
    for index in range(slices):
        count = requests // slices + (index < requests % slices)
        made += _slice(spec, index, count, seed, speedup, len(made))
    facts: dict[str, object] = {"source": "built-in", "seed": seed, "speedup": speedup, **asdict(spec)}
    return Workload(name, tuple(made), slices, vocabulary or Vocabulary(), facts)


def _slice(spec: Conversations, index: int, count: int, seed: int, speedup: float, first: int) -> list[Request]:
    """One slice: users side by side, each holding one conversation after the other, cut at `count` requests."""
    rng = random.Random(f"{seed}/slice/{index}")
    mean_gap = sum(spec.think) / 2
    users = max(1, round(spec.rate * mean_gap))
    span = count / spec.rate
    drafts: list[tuple[float, str, int, str, int, tuple[Piece, ...]]] = []
    for user in range(users):
        at = rng.uniform(0, mean_gap)
        talk = 0
        while at < span * 1.5 + mean_gap:
            turns = rng.randint(*spec.turns)
            if talk == 0:
                turns = rng.randint(1, turns)
            at = _conversation(spec, rng, seed, f"{index}.{user}.{talk}", at, turns, drafts)
            talk += 1
    drafts.sort(key=lambda draft: (draft[0], draft[1], draft[2]))
    start = drafts[0][0]
    return [
        Request(f"r{first + i:06d}", session, turn, group, index, (at - start) / speedup, output, pieces)
        for i, (at, session, turn, group, output, pieces) in enumerate(drafts[:count])
    ]


def _conversation(
    spec: Conversations,
    rng: random.Random,
    seed: int,
    session: str,
    at: float,
    turns: int,
    drafts: list[tuple[float, str, int, str, int, tuple[Piece, ...]]],
) -> float:
    """Adds the turns of one conversation to `drafts`; returns when its user is free again."""
    if spec.groups:
        rank = rng.choices(range(spec.groups), [(i + 1) ** -spec.zipf for i in range(spec.groups)])[0]
        group = f"system-{rank}"
    else:
        group = f"alone-{session}"
    length = random.Random(f"{seed}/{group}").randint(*spec.system)
    pieces: tuple[Piece, ...] = (Piece(piece_key(seed, "system", group), length),)
    for turn in range(turns):
        pieces += (Piece(piece_key(seed, "user", session, turn), rng.randint(*spec.user)),)
        output = rng.randint(*spec.answer)
        drafts.append((at, session, turn, group, output, pieces))
        pieces += (Piece(piece_key(seed, "answer", session, turn), output),)
        at += rng.uniform(*spec.think)
    return at
