"""Workloads of single requests under shared prefixes: what a router can gain, and the traps on the way there.

Each function draws one workload from its parameters and a frame (`frame.Frame`). Popularity is drawn in strata: in
every slice a prefix is used as often as its share says, rounded; only the order is random. Lengths are tokens, ranges
inclusive and uniform. Pure; all follows from parameters and seed.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Protocol

from bench.workload.arrivals import Arrivals, Process
from bench.workload.frame import Draft, Draw, Frame, assemble
from bench.workload.model import Workload, WorkloadError
from bench.workload.parameters import number, text
from bench.workload.tokens import Piece, piece_key

LONGEST = 131_072
MOST_GROUPS = 1_000_000


@dataclass(frozen=True, slots=True)
class Zipf:
    """Shared system prompts whose popularity is rank**-zipf."""

    rate: float = number(14.0, 0.001, 1e6, "requests a second")
    groups: int = number(16, 1, MOST_GROUPS, "system prompts")
    zipf: float = number(1.2, 0, 5, "exponent of their popularity; 0 is uniform")
    system: tuple[int, int] = number((1024, 1536), 1, LONGEST, "tokens of a system prompt")
    user: tuple[int, int] = number((128, 512), 1, LONGEST, "tokens of a request's own part")
    answer: tuple[int, int] = number((8, 24), 1, LONGEST, "tokens of an answer")


@dataclass(frozen=True, slots=True)
class HotSpot:
    """One prefix on all requests, then documents, then the request's own part."""

    rate: float = number(14.0, 0.001, 1e6, "requests a second")
    prefix: int = number(512, 1, LONGEST, "tokens that all requests begin with")
    groups: int = number(24, 1, MOST_GROUPS, "documents after it")
    zipf: float = number(0.0, 0, 5, "exponent of the documents' popularity; 0 is uniform")
    document: tuple[int, int] = number((1024, 1536), 0, LONGEST, "tokens of a document")
    user: tuple[int, int] = number((128, 256), 1, LONGEST, "tokens of a request's own part")
    answer: tuple[int, int] = number((8, 24), 1, LONGEST, "tokens of an answer")


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """Documents that fill the fleet's cache `factor` times, each visited `passes` times."""

    factor: float = number(1.0, 0.05, 64, "tokens of all documents / tokens that the fleet's caches hold")
    cache: int = number(32_768, 1024, 100_000_000, "tokens that one engine's cache holds; simulated engines get it")
    document: int = number(2048, 16, LONGEST, "tokens of a document")
    passes: float = number(3.0, 1, 1000, "visits a document, in a block")
    rate: float = number(14.0, 0.001, 1e6, "requests a second")
    user: tuple[int, int] = number((32, 96), 1, LONGEST, "tokens of a request's own part")
    answer: tuple[int, int] = number((8, 24), 1, LONGEST, "tokens of an answer")

    def documents(self, workers: int) -> int:
        return max(1, round(self.factor * self.cache * workers / self.document))


@dataclass(frozen=True, slots=True)
class Burst:
    """Requests that come together: `size` at one moment, then silence."""

    size: int = number(12, 1, 100_000, "requests of a burst")
    rate: float = number(10.0, 0.001, 1e6, "requests a second, on average")
    groups: int = number(16, 1, MOST_GROUPS, "system prompts")
    zipf: float = number(1.0, 0, 5, "exponent of their popularity; 0 is uniform")
    system: tuple[int, int] = number((1024, 1536), 1, LONGEST, "tokens of a system prompt")
    user: tuple[int, int] = number((128, 512), 1, LONGEST, "tokens of a request's own part")
    answer: tuple[int, int] = number((8, 24), 1, LONGEST, "tokens of an answer")


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters of one base model: the same tokens under two adapters are two prefixes."""

    adapters: str = text("adapter-1+adapter-2+adapter-3", "names joined by +", "model names that requests ask for")
    rate: float = number(14.0, 0.001, 1e6, "requests a second")
    zipf: float = number(0.8, 0, 5, "exponent of the adapters' popularity; 0 is uniform")
    groups: int = number(8, 1, MOST_GROUPS, "system prompts, the same under each adapter")
    system: tuple[int, int] = number((1024, 1536), 1, LONGEST, "tokens of a system prompt")
    user: tuple[int, int] = number((128, 512), 1, LONGEST, "tokens of a request's own part")
    answer: tuple[int, int] = number((8, 24), 1, LONGEST, "tokens of an answer")

    def names(self) -> list[str]:
        names = [name.strip() for name in self.adapters.split("+")]
        if not all(names) or len(set(names)) != len(names):
            raise WorkloadError(f"workload lora: adapters: different names joined by + wanted, got {self.adapters!r}")
        return names


@dataclass(frozen=True, slots=True)
class Aborts:
    """Clients that hang up in the middle of an answer."""

    share: float = number(0.1, 0, 1, "share of requests whose client hangs up")
    after: tuple[int, int] = number((1, 8), 1, 100_000, "chunks of the answer after which it does")
    rate: float = number(12.0, 0.001, 1e6, "requests a second")
    groups: int = number(16, 1, MOST_GROUPS, "system prompts")
    zipf: float = number(1.0, 0, 5, "exponent of their popularity; 0 is uniform")
    system: tuple[int, int] = number((1024, 1536), 1, LONGEST, "tokens of a system prompt")
    user: tuple[int, int] = number((128, 512), 1, LONGEST, "tokens of a request's own part")
    answer: tuple[int, int] = number((24, 48), 1, LONGEST, "tokens of an answer")


def ranks(count: int, groups: int, exponent: float, rng: random.Random) -> list[int]:
    """`count` ranks below `groups`, in random order, rank r drawn in proportion to (r + 1)**-exponent, in strata."""
    total = list(accumulate((rank + 1) ** -exponent for rank in range(groups)))
    start = rng.random()
    drawn = [min(groups - 1, bisect_right(total, (i + start) / count * total[-1])) for i in range(count)]
    rng.shuffle(drawn)
    return drawn


def shared(seed: int, name: str, lengths: tuple[int, int]) -> tuple[Piece, ...]:
    """The piece that all requests of group `name` begin with, of a length drawn once for the group."""
    length = random.Random(f"{seed}/{name}").randint(*lengths)
    return (Piece(piece_key(seed, "shared", name), length),) if length else ()


def _own(seed: int, index: int, number: int, length: int) -> Piece:
    return Piece(piece_key(seed, "own", index, number), length)


class SystemPrompts(Protocol):
    """What workloads of system prompts have in common."""

    @property
    def groups(self) -> int: ...
    @property
    def zipf(self) -> float: ...
    @property
    def system(self) -> tuple[int, int]: ...
    @property
    def user(self) -> tuple[int, int]: ...
    @property
    def answer(self) -> tuple[int, int]: ...


def system_prompts(name: str, spec: SystemPrompts, frame: Frame) -> Draw:
    """Requests under a system prompt each, of the popularity that `spec` says."""

    def draw(index: int, count: int) -> Sequence[Draft]:
        rng = random.Random(f"{frame.seed}/{name}/{index}")
        made = []
        for i, rank in enumerate(ranks(count, spec.groups, spec.zipf, rng)):
            group = f"system-{rank}"
            own = _own(frame.seed, index, i, rng.randint(*spec.user))
            made.append(Draft(group, rng.randint(*spec.answer), (*shared(frame.seed, group, spec.system), own)))
        return made

    return draw


def zipf(spec: Zipf, frame: Frame) -> Workload:
    draw = system_prompts("zipf", spec, frame)
    return assemble("zipf", frame, draw, rate=spec.rate, facts=asdict(spec))


def hot_spot(spec: HotSpot, frame: Frame) -> Workload:
    common = Piece(piece_key(frame.seed, "common"), spec.prefix)

    def draw(index: int, count: int) -> Sequence[Draft]:
        rng = random.Random(f"{frame.seed}/hot-spot/{index}")
        made = []
        for i, rank in enumerate(ranks(count, spec.groups, spec.zipf, rng)):
            group = f"document-{rank}"
            own = _own(frame.seed, index, i, rng.randint(*spec.user))
            pieces = (common, *shared(frame.seed, group, spec.document), own)
            made.append(Draft(group, rng.randint(*spec.answer), pieces))
        return made

    return assemble("hot-spot", frame, draw, rate=spec.rate, facts=asdict(spec))


def working_set(spec: WorkingSet, frame: Frame) -> Workload:
    documents = spec.documents(frame.workers)
    if documents > MOST_GROUPS:
        raise WorkloadError(f"workload working-set: {documents} documents, more than {MOST_GROUPS}: longer ones wanted")

    def draw(index: int, count: int) -> Sequence[Draft]:
        rng = random.Random(f"{frame.seed}/working-set/{index}")
        made = []
        for i, rank in enumerate(ranks(count, documents, 0.0, rng)):
            group = f"document-{rank}"
            own = _own(frame.seed, index, i, rng.randint(*spec.user))
            pieces = (*shared(frame.seed, group, (spec.document, spec.document)), own)
            made.append(Draft(group, rng.randint(*spec.answer), pieces))
        return made

    facts = asdict(spec) | {"documents": documents, "fleet_cache_tokens": spec.cache * frame.workers}
    workload = assemble("working-set", frame, draw, rate=spec.rate, facts=facts)
    workload.engine = {"num_blocks": -(-spec.cache // 16), "block_size": 16}
    if frame.count(frame.slices - 1) < 2 * documents:
        workload.notes.append(
            f"{documents} documents and {frame.count(frame.slices - 1)} requests a block: most documents are not seen "
            "twice, so the cache is hardly tested; give more --requests or fewer --blocks"
        )
    return workload


def burst(spec: Burst, frame: Frame) -> Workload:
    draw = system_prompts("burst", spec, frame)
    together = Arrivals(Process.BURST, spec.size)
    return assemble("burst", frame, draw, rate=spec.rate, arrivals=together, facts=asdict(spec))


def lora(spec: Lora, frame: Frame) -> Workload:
    names = spec.names()

    def draw(index: int, count: int) -> Sequence[Draft]:
        rng = random.Random(f"{frame.seed}/lora/{index}")
        systems = ranks(count, spec.groups, 0.0, rng)
        made = []
        for i, rank in enumerate(ranks(count, len(names), spec.zipf, rng)):
            system = f"system-{systems[i]}"
            own = _own(frame.seed, index, i, rng.randint(*spec.user))
            pieces = (*shared(frame.seed, system, spec.system), own)
            made.append(Draft(f"{names[rank]}/{system}", rng.randint(*spec.answer), pieces, names[rank]))
        return made

    workload = assemble("lora", frame, draw, rate=spec.rate, facts=asdict(spec))
    workload.engine = {"lora": names}
    return workload


def aborts(spec: Aborts, frame: Frame) -> Workload:
    whole = system_prompts("aborts", spec, frame)

    def draw(index: int, count: int) -> Sequence[Draft]:
        rng = random.Random(f"{frame.seed}/leaving/{index}")
        made = list(whole(index, count))
        for i in rng.sample(range(count), round(spec.share * count)):
            made[i] = replace(made[i], abort_after=min(rng.randint(*spec.after), made[i].output))
        return made

    return assemble("aborts", frame, draw, rate=spec.rate, facts=asdict(spec))
