"""Conversations that grow under shared system prompts, and the control that shares nothing.

`multi-turn`: a system prompt drawn with Zipf popularity, then turns: each prompt is the one before, the answer to it
(fixed ids: the prompt does not depend on the engine) and a new user message. A turn is sent a think time after the one
before it, whatever the engine does; with `wait` after its answer. `no-sharing`: every request alone, the control that a
cache-aware router must not lose on. Pure; everything follows from the parameters and the seed.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace

from bench.workload.arrivals import Process, rearranged
from bench.workload.frame import Frame
from bench.workload.model import Request, Role, Workload, WorkloadError
from bench.workload.parameters import flag, number
from bench.workload.prefixes import LONGEST, MOST_GROUPS
from bench.workload.tokens import Piece, piece_key


@dataclass(frozen=True, slots=True)
class Conversations:
    """Parameters. Lengths are tokens, ranges are inclusive and uniform, times are seconds at `speedup` 1.

    The longest conversation fits a context of 8,192. `rate` is requests a second over a slice. `groups` system
    prompts have popularity rank**-zipf; 0 gives each session its own.
    """

    rate: float = number(14.0, 0.001, 1e6, "requests a second, by the number of conversations side by side")
    groups: int = number(16, 0, MOST_GROUPS, "system prompts; 0: each conversation has its own")
    zipf: float = number(1.0, 0, 5, "exponent of their popularity; 0 is uniform")
    system: tuple[int, int] = number((128, 320), 1, LONGEST, "tokens of a system prompt")
    user: tuple[int, int] = number((448, 896), 1, LONGEST, "tokens of a message of the user")
    answer: tuple[int, int] = number((8, 24), 1, LONGEST, "tokens of an answer")
    turns: tuple[int, int] = number((4, 8), 1, 1000, "turns of a conversation")
    think: tuple[float, float] = number((0.35, 0.65), 0.001, 3600, "seconds between two turns")
    wait: bool = flag(False, "a turn is sent its think time after the answer to the one before, not by the clock")


@dataclass(frozen=True, slots=True)
class Alone:
    """Parameters of requests that share nothing."""

    rate: float = number(14.0, 0.001, 1e6, "requests a second")
    system: tuple[int, int] = number((128, 320), 1, LONGEST, "tokens of a system prompt of its own")
    user: tuple[int, int] = number((1024, 3072), 1, LONGEST, "tokens of the message of the user")
    answer: tuple[int, int] = number((8, 24), 1, LONGEST, "tokens of an answer")

    def conversations(self) -> Conversations:
        return Conversations(self.rate, 0, 1.0, self.system, self.user, self.answer, (1, 1))


def multi_turn(spec: Conversations, frame: Frame) -> Workload:
    return _build("multi-turn", spec, frame, asdict(spec))


def no_sharing(spec: Alone, frame: Frame) -> Workload:
    return _build("no-sharing", spec.conversations(), frame, asdict(spec))


def _build(name: str, spec: Conversations, frame: Frame, facts: dict[str, object]) -> Workload:
    """`frame.rate` scales only the number of conversations that run at once, `frame.speedup` all times."""
    if frame.rate is not None:
        spec = replace(spec, rate=frame.rate)
    made: list[Request] = []
    for index in range(frame.slices):
        made += _slice(spec, index, frame.count(index), frame.seed, frame.speedup, len(made))
    own: dict[str, object] = {"source": "built-in", "seed": frame.seed, "speedup": frame.speedup}
    facts = own | facts | {"rate": spec.rate}
    workload = Workload(name, tuple(made), frame.slices, frame.vocabulary, facts)
    if frame.arrivals is None:
        return workload
    if frame.arrivals.process is Process.TRACE:
        raise WorkloadError("--arrivals trace: a built-in workload has no times of its own, only a file has")
    return rearranged(workload, frame.arrivals, spec.rate * frame.speedup, frame.seed)


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
    made: list[Request] = []
    last: dict[str, Request] = {}
    for i, (at, session, turn, group, output, pieces) in enumerate(drafts[:count]):
        roles = (Role.SYSTEM, *(Role.USER, Role.ASSISTANT) * turn, Role.USER)
        request = Request(
            f"r{first + i:06d}", session, turn, group, index, (at - start) / speedup, output, pieces, roles=roles
        )
        before = last.get(session)
        if spec.wait and before is not None:
            request = replace(request, after=before.id, think=request.at - before.at)
        last[session] = request
        made.append(request)
    return made


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
