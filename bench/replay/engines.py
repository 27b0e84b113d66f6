"""Simulated engines in virtual time: the objects of `bench.sim`, driven as far as it is asked for.

An engine is at rest, or in a step that ends at a known time. `Engines.advance` ends every step that is due and begins
the next ones, in long compiled runs where the engine only decodes; what came of it is handed to an `Audience` in the
order of time. An engine at rest begins a step only by `start`, so that requests which arrive together enter together.
An engine of which nothing is to be heard is left behind until something is (`Engine.quiet`). No I/O, no clock.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from bench.sim import step_time
from bench.sim.engine import Engine, SymbolicRequest
from bench.sim.kvcache import CacheEvent
from bench.sim.nouns import FloatArray
from bench.sim.timing import Timing


class Tokens(NamedTuple):
    """A request's tokens of a run of steps: `many` of them, the first at `begin` (the end of its step), the last at
    `end`. `first`: the answer's first is among them; `cached`: prompt tokens that the engine found in its cache, -1
    where it does not say; `stall`: with `finished` the longest gap between two tokens of the answer, seconds.
    """

    id: str
    begin: float
    end: float
    many: int
    first: bool
    finished: bool
    cached: int
    stall: float


class Audience(Protocol):
    """Who hears what engines do; `engine` is its number. Calls come in the order of `at`, except that tokens which are
    neither first nor last may be told late where `Engines` was made without `every_token`.
    """

    def tokens(self, engine: int, at: float, made: Tokens) -> None: ...

    def told(self, engine: int, at: float, events: list[CacheEvent]) -> None: ...


@dataclass(slots=True)
class Gaps:
    """Gaps between two tokens of an answer, pooled over a fleet, in seconds. `runs`: gaps that `weight` answers had
    alike, with that weight; `single`: gaps of one answer. `steps`: all steps of all engines.
    """

    runs: list[tuple[FloatArray, int]] = field(default_factory=list)
    single: array[float] = field(default_factory=lambda: array("d"))
    steps: int = 0

    def pooled(self) -> tuple[FloatArray, FloatArray]:
        """All gaps in ascending order, and how many answers had each."""
        gaps = np.concatenate([*(gaps for gaps, _ in self.runs), np.array(self.single)])
        weights = np.concatenate(
            [*(np.full(len(gaps), w, np.float64) for gaps, w in self.runs), np.ones(len(self.single))]
        )
        order = np.argsort(gaps, kind="stable")
        return gaps[order], weights[order]


Entry = tuple[float, int, Tokens | list[CacheEvent]]
"""When, at which engine, what."""


class VirtualEngine:
    """One engine and where it is in time. `free`: when the step that runs ends; infinity at rest. `quiet_until`: before
    that time nothing is to be heard of it but further tokens of answers that have begun.
    """

    __slots__ = (
        "_finishes",
        "_gaps",
        "_last",
        "_pending",
        "_stall",
        "engine",
        "free",
        "least",
        "number",
        "quiet_until",
    )

    def __init__(self, number: int, engine: Engine, gaps: Gaps) -> None:
        self.number = number
        self.engine = engine
        self.free = self.quiet_until = math.inf
        self.least = least_step_seconds(engine.timing)
        self._pending: list[Entry] = []
        self._finishes = False
        self._last: dict[str, float] = {}
        self._stall: dict[str, float] = {}
        self._gaps = gaps

    @property
    def idle(self) -> bool:
        return self.free == math.inf

    def soonest(self) -> float:
        """No request of this engine ends before this time."""
        return math.inf if self.idle else self.free + max(self.engine.tokens_to_go() - 1, 0) * self.least

    def begin(self, now: float) -> None:
        """Plan a step at `now`, if there is anything to do. What it brings waits for its end."""
        result = self.engine.step(now)
        if result is None:
            self.free = self.quiet_until = math.inf
            return
        end = self.free = self.quiet_until = now + result.duration
        self._gaps.steps += 1
        pending, number, last = self._pending, self.number, self._last
        if result.events:
            pending.append((end, number, result.events))
        for name, position, _token, finish, cached in result.outputs:
            done = finish is not None
            if position:
                self._gap(name, end - last[name])
            last[name] = end
            pending.append(
                (end, number, Tokens(name, end, end, 1, not position, done, cached, self._end(name) if done else 0.0))
            )

    def run(self, until: float, out: list[Entry]) -> bool:
        """End the steps that end until `until`, inclusive, and begin what follows them. Stops at the end of a step that
        finishes a request, before the next one: then True.
        """
        while self.free <= until and not self.idle:
            out += self._pending
            self._pending.clear()
            if self._finishes:
                self._finishes = False
                return True
            self._go_on(self.free, until, out)
        return False

    def listen(self) -> None:
        """Find out for how long nothing is to be heard."""
        self.quiet_until = self.free
        if self._pending and any(type(what) is list or what.first or what.finished for _, _, what in self._pending):  # type: ignore[union-attr]
            return
        steps, seconds = self.engine.quiet()
        self.quiet_until += steps * seconds

    def _go_on(self, now: float, until: float, out: list[Entry]) -> None:
        """From the end of a step: many decoding steps where that is all there is to do, else one planned step."""
        run = self.engine.ahead(now, until)
        if run is None:
            self.begin(now)
            return
        ends, names, number = run.ends, run.ids, self.number
        count = len(ends)
        begin, end = float(ends[0]), float(ends[-1])
        self.free = end
        self._finishes = bool(run.finished)
        self._gaps.steps += count
        longest = 0.0
        if count > 1:
            between = np.diff(ends)
            longest = float(between.max())
            self._gaps.runs.append((between, len(names)))
        whole = end <= until
        pending = out if whole else self._pending
        for at, events in run.events:
            (out if at < end else pending).append((at, number, events))
        done, last, stall = set(run.finished), self._last, self._stall
        before = float(ends[-2]) if count > 1 else 0.0
        for name in names:
            self._gap(name, begin - last[name])
            last[name] = end
            if longest > stall.get(name, 0.0):
                stall[name] = longest
            ended = name in done
            worst = self._end(name) if ended else 0.0
            if whole or count == 1:
                pending.append((end, number, Tokens(name, begin, end, count, False, ended, -1, worst)))
            else:
                out.append((before, number, Tokens(name, begin, before, count - 1, False, False, -1, 0.0)))
                pending.append((end, number, Tokens(name, end, end, 1, False, ended, -1, worst)))

    def _gap(self, name: str, seconds: float) -> None:
        self._gaps.single.append(seconds)
        if seconds > self._stall.get(name, 0.0):
            self._stall[name] = seconds

    def _end(self, name: str) -> float:
        """The answer's last token is planned; its longest gap."""
        self._finishes = True
        del self._last[name]
        return self._stall.pop(name, 0.0)


def least_step_seconds(timing: Timing) -> float:
    """No step is shorter than this."""
    form = timing.form
    decode = min(step_time.decode_ms(form, 1, 0, used, 1) for used in (0, 1))
    return float(min(form[step_time.PREFILL_BASE], decode)) * timing.scale / 1000.0


class Engines:
    """A fleet of them, numbered from 0. `every_token`: all tokens are told in the order of time, at a price."""

    def __init__(self, engines: Sequence[Engine], audience: Audience, *, every_token: bool = False) -> None:
        self.gaps = Gaps()
        self.members = [VirtualEngine(number, engine, self.gaps) for number, engine in enumerate(engines)]
        self._audience = audience
        self._every_token = every_token
        self._began: set[int] = set()

    def submit(self, number: int, request: SymbolicRequest, now: float) -> None:
        """Give an engine a request; `start` has to follow before time goes on."""
        member = self.members[number]
        if member.idle:
            self._began.add(number)
        else:
            self._catch_up(member, now)
            member.quiet_until = member.free
        member.engine.submit(request, now)

    def start(self, now: float) -> None:
        """Engines that were at rest begin with what they were given."""
        for number in sorted(self._began):
            self.members[number].begin(now)
        self._began.clear()

    def advance(self, until: float) -> None:
        """All that happens until `until`, inclusive."""
        out: list[Entry] = []
        for member in self.members:
            if member.quiet_until <= until:
                while member.run(until, out):
                    pass
                if not self._every_token:
                    member.listen()
        self._hand_out(out)

    def advance_to_end(self, until: float) -> float | None:
        """Like `advance`, but only up to the first time at which a request ends; that time, or None if none does.

        No engine goes beyond what the others' lower bounds prove, so a request that arrives because another has ended
        finds every engine as it is then.
        """
        out: list[Entry] = []
        ended: float | None = None
        while ended is None:
            behind = min(self.members, key=lambda member: member.free, default=None)
            if behind is None or behind.idle or behind.free > until:
                break
            others = min((m.soonest() for m in self.members if m is not behind), default=math.inf)
            at = min(until, max(others, behind.free))
            if behind.run(at, out):
                ended = behind.free
        if ended is not None:
            for member in self.members:
                while member.run(ended, out):
                    pass
        for member in self.members:
            member.quiet_until = member.free
        self._hand_out(out)
        return ended

    def catch_up(self, now: float) -> None:
        """Brings every engine to `now`; nothing new is to be heard of it."""
        for member in self.members:
            self._catch_up(member, now)

    def _catch_up(self, member: VirtualEngine, now: float) -> None:
        out: list[Entry] = []
        if member.free <= now:
            while member.run(now, out):
                pass
            self._hand_out(out)

    def _hand_out(self, out: list[Entry]) -> None:
        audience = self._audience
        out.sort(key=lambda entry: entry[:2])
        for at, number, what in out:
            if isinstance(what, Tokens):
                audience.tokens(number, at, what)
            else:
                audience.told(number, at, what)
