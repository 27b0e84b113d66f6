"""The live display: fits the screen, marks the current block, says what a block came to where there is no terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from bench.arms import Arm
from bench.client.watch import SelfWatch
from bench.cold import ColdProof, Engine
from bench.design import Block, plan
from bench.experiment import BlockResult
from bench.guards import BlockFacts
from bench.pilot import pilot_blocks
from bench.report.progress import ArmTally, Display, Quantiles
from tests.bench.results import request, timing


def arms(count: int, workers: int = 4, name: str = "arm") -> list[Arm]:
    engines = tuple(Engine(f"w{i:02d}", "http://127.0.0.1:1") for i in range(workers))
    return [Arm(f"{name}{i}", "kv", "http://127.0.0.1:9", "http://127.0.0.1:8", engines) for i in range(count)]


def begun(console: Console, count: int = 2, rounds: int = 4, workers: int = 4, name: str = "arm") -> Display:
    """A display in its second block, of which two requests are done."""
    display = Display(console, [2.0] * rounds)
    sides = arms(count, workers, name)
    blocks = plan(count, rounds, 0)
    display.planned(sides, blocks, "reset")
    run(display, sides, blocks[0], 5)
    display.block_started(blocks[1], [request(i) for i in range(8)])
    for number in range(2):
        display.request_done(blocks[1], timing(10.0 + number, ttft=0.2, worker="w00"))
    return display


def run(display: Display, sides: list[Arm], block: Block, count: int) -> None:
    display.block_started(block, [request(i) for i in range(count)])
    for number in range(count):
        display.request_done(block, timing(number, ttft=0.05, itl=0.01, cached=50, worker=f"w{number % 4:02d}"))
    facts = BlockFacts([], SelfWatch())
    display.block_ended(BlockResult(block, sides[block.arm], facts, ColdProof("reset"), 0.0))


def screen(display: Display, *, colours: bool = True) -> str:
    console = Console(width=80, height=24, file=io.StringIO(), force_terminal=colours, color_system="standard")
    console.print(display.picture())
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize(
    ("count", "rounds", "workers", "name"),
    [
        (2, 4, 4, "arm"),
        (1, 1, 1, "arm"),
        (6, 40, 64, "device-aware-weighted-"),
        (9, 40, 300, "a-router-with-a-long-name-"),
    ],
)
def test_it_fits_80_columns_and_24_lines(count: int, rounds: int, workers: int, name: str) -> None:
    lines = plain(screen(begun(Console(file=io.StringIO()), max(2, count), rounds, workers, name))).splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80


def test_the_current_block_is_marked_also_without_colours() -> None:
    text = plain(screen(begun(Console(file=io.StringIO()))))
    first = plan(2, 4, 0)
    letters = "".join(chr(65 + block.arm) for block in first)
    assert f"blocks {letters[0]}[{letters[1]}]{letters[2:]}" in text
    assert "block 2 of 8" in text
    assert "2/8 requests" in text


def test_both_arms_have_their_running_ttft_itl_and_lag() -> None:
    text = plain(screen(begun(Console(file=io.StringIO()))))
    rows = {line.split()[1]: line.split()[2:] for line in text.splitlines() if re.match(r"[AB] arm", line)}
    done = f"arm{plan(2, 4, 0)[0].arm}"
    ttft50, ttft95, itl50, itl95, *_, cached, failed = rows[done]
    assert float(ttft50) == pytest.approx(50, rel=0.02)
    assert float(ttft95) == pytest.approx(50, rel=0.02)
    assert float(itl50) == pytest.approx(10, rel=0.02)
    assert float(itl95) == pytest.approx(10, rel=0.02)
    assert (cached, failed) == ("50%", "0")


def test_the_heat_row_shows_each_worker_s_share() -> None:
    tally = ArmTally()
    for worker in ("a", "a", "a", "b"):
        tally.add(timing(0.0, worker=worker))
    assert tally.heat(["a", "b", "c"]) == "█▃ "


def test_off_a_terminal_there_is_a_line_a_block_and_no_colour() -> None:
    console = Console(file=io.StringIO(), width=80)
    with begun(console):
        pass
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 2
    assert lines[0].startswith("order ")
    assert lines[1].startswith("block 1/8 ")
    assert "TTFT p50" in lines[1]
    assert "\x1b" not in "".join(lines)


def test_the_pilot_has_its_own_lines_and_its_numbers_do_not_stay() -> None:
    console = Console(file=io.StringIO(), width=80)
    display, sides = Display(console, [2.0] * 4), arms(2)
    pilot = pilot_blocks(1, 2, 4)
    display.piloted(sides, pilot, "reset")
    for block in pilot:
        run(display, sides, block, 3)
    display.planned(sides, plan(2, 4, 0), "reset")
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line[:13] for line in lines[1:3]] == ["A/A block 1/2", "A/A block 2/2"]
    assert "block 1 of 8" in plain(screen(display))
    assert "50.0" not in plain(screen(display))


def test_a_failed_request_counts_as_failed_and_in_no_quantile() -> None:
    tally = ArmTally()
    tally.add(timing(0.0, error="http_500", worker=None))
    assert (tally.failed, tally.ttft.at(0.5), tally.lag.count) == (1, None, 1)


@pytest.mark.parametrize("q", [0.0, 0.5, 0.95, 1.0])
def test_running_quantiles_are_within_two_percent(q: float) -> None:
    found = Quantiles()
    values = [0.001 * 1.01**i for i in range(500)]
    for value in values:
        found.add(value)
    assert found.at(q) == pytest.approx(values[int(q * 499)], rel=0.03)


def test_quantiles_take_zero_and_the_very_long() -> None:
    found = Quantiles()
    for value in (0.0, -1e-6, 1e9):
        found.add(value)
    assert found.count == 3
    assert found.at(1.0) is not None
