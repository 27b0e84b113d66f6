"""The live display of a run: block order, both arms' running TTFT and ITL, sending lag, load of the workers, time left.
Plain lines off a terminal.

Writes to stderr only. Redrawn four times a second from counters that the run leaves here, at a cost that does not grow
with the run: under 5 ms a second, which is part of the client's measured CPU share. Fits 80 columns and 24 lines.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bench.arms import Arm
from bench.client.timing import Timing
from bench.design import Block
from bench.experiment import BlockResult
from bench.workload.model import Request

REDRAW = 0.25
MOST_ARMS = 6
"""Arms that the display has lines for; of more the current one and the first are shown."""
MOST_BLOCKS = 60
"""Blocks of the order that are shown, around the current one."""
MOST_WORKERS = 40
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
_HEAT = " ▁▂▃▄▅▆▇█"
_STEP = math.log(1.02)
_BINS = 1000


class Quantiles:
    """Running quantiles of positive values within 2 %: counts in bins that grow by 2 %. From 10 microseconds up to an
    hour; memory and cost do not grow.
    """

    _LOWEST = 1e-5

    def __init__(self) -> None:
        self._bins = [0] * _BINS
        self.count = 0

    def add(self, value: float) -> None:
        place = int(math.log(value / self._LOWEST) / _STEP) if value > self._LOWEST else 0
        self._bins[min(place, _BINS - 1)] += 1
        self.count += 1

    def at(self, q: float) -> float | None:
        """None before the first value."""
        if not self.count:
            return None
        wanted = q * (self.count - 1)
        seen = 0
        for place, number in enumerate(self._bins):
            seen += number
            if seen > wanted:
                return self._LOWEST * math.exp((place + 0.5) * _STEP)
        return None


class ArmTally:
    """The running numbers of one arm."""

    def __init__(self) -> None:
        self.ttft = Quantiles()
        self.itl = Quantiles()
        self.lag = Quantiles()
        self.lag_max = 0.0
        self.failed = 0
        self.cached = 0
        self.prompt = 0
        self.workers: Counter[str] = Counter()

    def add(self, timing: Timing) -> None:
        if timing.ok:
            self.ttft.add(timing.ttft)
            if timing.itl is not None:
                self.itl.add(timing.itl)
            self.cached += timing.cached_tokens or 0
            self.prompt += timing.prompt_tokens or 0
        else:
            self.failed += 1
        if timing.worker is not None:
            self.workers[timing.worker] += 1
        if timing.sched_lag == timing.sched_lag:
            self.lag.add(timing.sched_lag)
            self.lag_max = max(self.lag_max, timing.sched_lag)

    def heat(self, names: Sequence[str]) -> str:
        """A bar for each worker: its share of the requests, the fullest bar twice a fair share or more."""
        total = sum(self.workers.values())
        if not total:
            return ""
        fair = total / len(names)
        return "".join(_HEAT[min(8, math.ceil(4 * self.workers[name] / fair))] for name in names)


class Display:
    """Observer of a run. A context manager: the live part is gone when it ends."""

    def __init__(self, console: Console, block_seconds: Sequence[float]) -> None:
        self._console = console
        self._seconds = block_seconds
        self._arms: list[Arm] = []
        self._plan: list[Block] = []
        self._tallies: list[ArmTally] = []
        self._workers: dict[str, None] = {}
        self._current: Block | None = None
        self._expected = 0
        self._done = 0
        self._finished = 0
        self._drawn = 0.0
        self._started = time.monotonic()
        self._overhead = 1.0
        self._live: Live | None = None

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live = Live(Text("starting the arms …"), console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def piloted(self, arms: Sequence[Arm], blocks: Sequence[Block], way: str) -> None:
        self._begin(arms, blocks)
        pairs = " ".join(arms[block.arm].name for block in blocks[::2])
        self._say(f"A/A pairs of {pairs}")

    def planned(self, arms: Sequence[Arm], blocks: Sequence[Block], way: str) -> None:
        self._begin(arms, blocks)
        how = "caches reset and probed" if way == "reset" else "a nonce in front of every prompt"
        letters = "".join(_letter(block.arm) for block in blocks)
        if len(letters) > MOST_BLOCKS:
            letters = letters[:MOST_BLOCKS] + "…"
        names = ", ".join(f"{_letter(i)} = {arm.name}" for i, arm in enumerate(arms))
        self._say(f"order {letters} ({names}); cold start of each block: {how}")

    def block_started(self, block: Block, requests: Sequence[Request]) -> None:
        self._current, self._expected, self._done = block, len(requests), 0
        self._draw(force=True)

    def request_done(self, block: Block, timing: Timing) -> None:
        self._done += 1
        self._tallies[block.arm].add(timing)
        if timing.worker is not None:
            self._workers.setdefault(timing.worker)
        self._draw()

    def block_ended(self, result: BlockResult) -> None:
        self._finished += 1
        if self._live is None:
            self._say(self._line(result))
        self._draw(force=True)

    def _begin(self, arms: Sequence[Arm], blocks: Sequence[Block]) -> None:
        """The pilot's numbers are not the run's: both begin at nothing."""
        self._arms, self._plan = list(arms), list(blocks)
        self._tallies = [ArmTally() for _ in arms]
        self._workers = dict.fromkeys(engine.id for arm in arms for engine in arm.engines)
        self._finished = 0
        self._started = time.monotonic()

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)

    def _line(self, result: BlockResult) -> str:
        """A finished block off a terminal."""
        tally = self._tallies[result.block.arm]
        proof = "cold" if result.proof.proven else "NOT PROVEN COLD"
        what = "block" if result.block.index >= 0 else "A/A block"
        return (
            f"{what} {self._finished}/{len(self._plan)} {result.arm.name}: {self._done} requests, TTFT p50 "
            f"{_ms(tally.ttft.at(0.5))} p95 {_ms(tally.ttft.at(0.95))}, ITL p50 {_ms(tally.itl.at(0.5))} so far, "
            f"{tally.failed} failed, {proof}, {self._left()} left"
        )

    def _draw(self, force: bool = False) -> None:
        now = time.monotonic()
        if self._live is None or (not force and now - self._drawn < REDRAW):
            return
        self._drawn = now
        self._live.update(self.picture(), refresh=True)

    def picture(self) -> RenderableType:
        """What is on the screen now."""
        shown = list(range(len(self._arms)))
        if len(shown) > MOST_ARMS:
            current = self._current.arm if self._current is not None else 0
            shown = sorted({*shown[: MOST_ARMS - 1], current})
        return Group(self._order(), self._state(), self._numbers(shown), *self._heat(shown))

    def _order(self) -> Text:
        """The blocks, the finished ones in colour, the current one marked."""
        order = Text("A/A " if self._plan and self._plan[0].index < 0 else "blocks ")
        first = max(0, min(self._finished - MOST_BLOCKS // 2, len(self._plan) - MOST_BLOCKS))
        last = first + MOST_BLOCKS
        order.append("…" if first else "")
        for place, block in enumerate(self._plan[first:last], first):
            letter = _letter(block.arm)
            if place < self._finished:
                order.append(letter, style=_COLOURS[block.arm % len(_COLOURS)])
            elif self._current is not None and block.index == self._current.index:
                order.append(f"[{letter}]", style="reverse bold")
            else:
                order.append(letter, style="dim")
        order.append("…" if last < len(self._plan) else "")
        return order

    def _state(self) -> Text:
        blocks = f"block {min(self._finished + 1, len(self._plan))} of {len(self._plan)}"
        return Text(f"{blocks}   {self._done:,}/{self._expected:,} requests   {self._left()} left")

    def _numbers(self, shown: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 1), show_edge=False)
        table.add_column("arm", no_wrap=True, max_width=18)
        for name in ("TTFT p50", "p95", "ITL p50", "p95", "late p99", "max", "cached", "failed"):
            table.add_column(name, justify="right", no_wrap=True)
        for index in shown:
            tally = self._tallies[index]
            table.add_row(
                Text(f"{_letter(index)} {self._arms[index].name}", style=_COLOURS[index % len(_COLOURS)]),
                *(_short_ms(tally.ttft.at(q)) for q in (0.5, 0.95)),
                *(_short_ms(tally.itl.at(q)) for q in (0.5, 0.95)),
                _short_ms(tally.lag.at(0.99)),
                _short_ms(tally.lag_max if tally.lag.count else None),
                f"{tally.cached / tally.prompt:.0%}" if tally.prompt else "-",
                str(tally.failed),
            )
        return table

    def _heat(self, shown: Sequence[int]) -> list[Text]:
        names = sorted(self._workers)[:MOST_WORKERS]
        rows = []
        for index in shown:
            bars = self._tallies[index].heat(names) if names else ""
            if bars:
                row = Text(f"{_letter(index)} load of {len(names)} workers ")
                row.append(f"|{bars}|", style=_COLOURS[index % len(_COLOURS)])
                rows.append(row)
        return rows

    def _left(self) -> str:
        """Time left: the schedule's, plus what each block so far took beyond it."""
        schedule = [self._seconds[block.round] for block in self._plan]
        if self._finished:
            spent = time.monotonic() - self._started
            self._overhead = max(0.0, (spent - sum(schedule[: self._finished])) / self._finished)
        rest = schedule[self._finished :]
        seconds = round(sum(rest) + self._overhead * len(rest))
        return f"{seconds // 60}:{seconds % 60:02d}"


def _letter(arm: int) -> str:
    return chr(65 + arm % 26)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"


def _short_ms(seconds: float | None) -> str:
    """For a narrow column: milliseconds, from ten seconds on seconds."""
    if seconds is None:
        return "-"
    return f"{seconds:.1f}s" if seconds >= 10 else f"{seconds * 1000:.1f}"
