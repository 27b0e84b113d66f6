"""The live display of a run: block order, both arms' running TTFT, sending lag, time left. Plain lines off a
terminal.

Writes to stderr only. Redrawn four times a second from numbers that the run leaves here; costs the loop under 5 ms a
second, which is part of the client's measured CPU share.
"""

from __future__ import annotations

import time
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
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


class ArmTally:
    """The running numbers of one arm."""

    def __init__(self) -> None:
        self.ttft: list[float] = []
        self.lag_max = 0.0
        self.failed = 0
        self.cached = 0
        self.prompt = 0

    def add(self, timing: Timing) -> None:
        if timing.ok:
            self.ttft.append(timing.ttft)
            self.cached += timing.cached_tokens or 0
            self.prompt += timing.prompt_tokens or 0
        else:
            self.failed += 1
        if timing.sched_lag == timing.sched_lag:
            self.lag_max = max(self.lag_max, timing.sched_lag)

    def quantile(self, q: float) -> float | None:
        """Of TTFT so far, seconds."""
        if not self.ttft:
            return None
        ordered = sorted(self.ttft)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


class Display:
    """Observer of a run. A context manager: the live part is gone when it ends."""

    def __init__(self, console: Console, block_seconds: Sequence[float]) -> None:
        self._console = console
        self._seconds = block_seconds
        self._arms: list[Arm] = []
        self._plan: list[Block] = []
        self._tallies: list[ArmTally] = []
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
        self._arms = list(arms)
        self._tallies = [ArmTally() for _ in arms]
        pairs = " ".join(arms[block.arm].name for block in blocks[::2])
        self._console.print(f"A/A pairs of {pairs}", highlight=False, soft_wrap=True)

    def planned(self, arms: Sequence[Arm], blocks: Sequence[Block], way: str) -> None:
        self._arms, self._plan = list(arms), list(blocks)
        self._tallies = [ArmTally() for _ in arms]
        self._started = time.monotonic()
        how = "caches reset and probed" if way == "reset" else "a nonce in front of every prompt"
        letters = "".join(chr(65 + block.arm % 26) for block in blocks)
        names = ", ".join(f"{chr(65 + i % 26)} = {arm.name}" for i, arm in enumerate(arms))
        self._console.print(
            f"order {letters} ({names}); cold start of each block: {how}", highlight=False, soft_wrap=True
        )

    def block_started(self, block: Block, requests: Sequence[Request]) -> None:
        self._current, self._expected, self._done = block, len(requests), 0
        self._draw(force=True)

    def request_done(self, block: Block, timing: Timing) -> None:
        self._done += 1
        self._tallies[block.arm].add(timing)
        self._draw()

    def block_ended(self, result: BlockResult) -> None:
        if result.block.index < 0:
            return
        self._finished += 1
        if self._live is None:
            block, tally = result.block, self._tallies[result.block.arm]
            proof = "cold" if result.proof.proven else "NOT PROVEN COLD"
            self._console.print(
                f"block {block.index + 1}/{len(self._plan)} {result.arm.name}: {self._done} requests, "
                f"TTFT p50 {_ms(tally.quantile(0.5))} so far, {tally.failed} failed, {proof}, {self._left()} left",
                highlight=False,
                soft_wrap=True,
            )
        self._draw(force=True)

    def _draw(self, force: bool = False) -> None:
        now = time.monotonic()
        if self._live is None or (not force and now - self._drawn < REDRAW):
            return
        self._drawn = now
        self._live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        order = Text("blocks ")
        for block in self._plan:
            letter = chr(65 + block.arm % 26)
            if block.index < self._finished:
                order.append(letter, style=_COLOURS[block.arm % len(_COLOURS)])
            elif self._current is not None and block.index == self._current.index:
                order.append(letter, style="reverse bold")
            else:
                order.append(letter, style="dim")
        order.append(f"   {self._done}/{self._expected} requests   {self._left()} left")
        table = Table(box=None, pad_edge=False, padding=(0, 2))
        for name in ("arm", "TTFT p50", "p95", "from cache", "max send lag", "failed"):
            table.add_column(name, justify="left" if name == "arm" else "right")
        for index, (arm, tally) in enumerate(zip(self._arms, self._tallies, strict=True)):
            share = f"{tally.cached / tally.prompt:.0%}" if tally.prompt else "-"
            table.add_row(
                Text(f"{chr(65 + index % 26)} {arm.name}", style=_COLOURS[index % len(_COLOURS)]),
                _ms(tally.quantile(0.5)),
                _ms(tally.quantile(0.95)),
                share,
                _ms(tally.lag_max),
                str(tally.failed),
            )
        return Group(order, table)

    def _left(self) -> str:
        """Time left: the schedule's, plus what each block so far took beyond it."""
        schedule = [self._seconds[block.round] for block in self._plan]
        if self._finished:
            spent = time.monotonic() - self._started
            self._overhead = max(0.0, (spent - sum(schedule[: self._finished])) / self._finished)
        rest = schedule[self._finished :]
        seconds = round(sum(rest) + self._overhead * len(rest))
        return f"{seconds // 60}:{seconds % 60:02d}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"
