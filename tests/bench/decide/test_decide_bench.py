"""The bench of decisions: what it builds, what it counts, what it prints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.decide import ingest, memory
from bench.decide.fleet import BLOCK, Cell, core_of, held_blocks, prompt_of
from bench.decide.peer import Peer, PeerError
from bench.decide.report import GOAL_CELL, Ingested, Measured, Results, markdown, verdicts
from bench.decide.run import busy
from bench.decide.timing import Times, measure
from router.events.wire import WireDecoder


def test_each_worker_of_the_fleet_holds_its_part_of_the_prompt() -> None:
    cell = Cell(4, 20 * BLOCK)
    core = core_of(cell)
    assert held_blocks(cell) == [5, 10, 15, 20]
    assert core.index.match(core.keys_for(prompt_of(cell))[BLOCK]).device[:4].tolist() == [5, 10, 15, 20]


def test_measured_decisions_leave_nothing_booked() -> None:
    core = core_of(Cell(3, 10 * BLOCK))
    times = measure(core, prompt_of(Cell(3, 10 * BLOCK)), 7)
    assert [len(times.total), len(times.booking), core.loads.open_bookings] == [7, 7, 0]
    assert (times.total >= times.keys).all()


@pytest.mark.parametrize("shape", [ingest.Shape(1, 32), ingest.Shape(8, 1)])
def test_frames_hold_the_blocks_they_are_said_to_hold(shape: ingest.Shape) -> None:
    frames = ingest.frames_of(shape, 256)
    assert sum(WireDecoder().decode(frame).blocks for frame in frames) == 256


def test_all_blocks_reach_the_index_from_bytes_and_over_zmq() -> None:
    shape = ingest.Shape(1, 16)
    assert ingest.from_bytes(shape, 256) > 0
    assert ingest.over_zmq(shape, 256) > 0


def test_bytes_a_pair_are_at_least_those_of_its_records() -> None:
    taken = memory.taken(20_480, 1)
    assert taken.arrays > 16 + 36


def test_a_peer_that_does_not_start_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="nobody"):
        Peer(tmp_path / "nobody", Cell(1, BLOCK))


def test_a_peer_without_the_package_is_an_error_that_says_so(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with Peer(python, Cell(1, BLOCK)) as peer, pytest.raises(PeerError, match="ai-dynamo-runtime"):
        peer.set_up()


def results(decision_us: float, dynamo_us: float, rate: float, held: float) -> Results:
    times = Times(*(np.full(10, value) for value in (0.0, decision_us, 1.0, 1.0)))
    cell = Measured(GOAL_CELL, times, times, np.full(10, dynamo_us), np.full(10, dynamo_us), (decision_us / dynamo_us,))
    return Results([cell], [Ingested("512", rate, rate)], [memory.Taken(1000, 1, held, held)], ["a note"])


def test_goals_that_are_reached_are_met() -> None:
    lines = verdicts(results(30.0, 600.0, 2e6, 60.0))
    assert len(lines) == 4
    assert all(line.endswith("**met**") for line in lines)


def test_goals_that_are_not_say_by_how_much() -> None:
    share, spread, rate, held = verdicts(results(90.0, 600.0, 5e5, 80.0))
    assert "0.150" in share
    assert share.endswith("**missed by 50%**")
    assert spread.endswith("**met**")
    assert rate.endswith("**missed by 100%**")
    assert held.endswith("**missed by 25%**")


def test_a_p99_of_three_times_the_median_misses_by_half() -> None:
    found = results(30.0, 600.0, 2e6, 60.0)
    found.cells[0].warm.decision[-1] = 30.0 * 3.3
    line = verdicts(found)[1]
    assert line.startswith("- the same, p99 over p50")
    assert "missed by" in line


def test_without_dynamo_its_columns_are_empty_and_its_goal_is_left_out() -> None:
    found = results(30.0, 600.0, 2e6, 60.0)
    alone = Results([Measured(GOAL_CELL, found.cells[0].warm, found.cells[0].cold)], [], [], ["not installed"])
    assert "| – | – | – |" in markdown(alone)
    assert len(verdicts(alone)) == 1
    assert "not installed" in markdown(alone)


def test_a_busy_machine_is_noted_and_a_quiet_one_is_not() -> None:
    assert busy(0.2, 2) == []
    assert "load average 4.6 on 2 cores" in busy(4.6, 2)[0]
