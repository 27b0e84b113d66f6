"""Mistakes that users of other benchmarks reported, each as a test that a client which makes it would fail.

Numbers are the rows of docs/measuring.md, "Mistakes we test for", which also names the rows that are tested elsewhere.
"""

from __future__ import annotations

import asyncio
import math
import time

import numpy as np
import pytest

from bench import guards, run
from bench.client.bodies import Bodies, BodyStyle
from bench.client.connection import Pool, Target
from bench.client.load import LoadGenerator
from bench.client.timing import Timing
from bench.client.watch import SelfWatch
from bench.cold import Nonces
from bench.design import plan
from bench.experiment import WARM_UP
from bench.guards import BlockFacts, Limits
from bench.metrics import Measured, Measurements, Slo, arm_metrics, distribution, values
from bench.prime import prime_requests
from bench.stability import stability
from bench.workload.arrivals import Arrivals
from bench.workload.describe import describe
from bench.workload.model import Request
from bench.workload.source import Wish, make
from bench.workload.tokens import Piece, PieceText, Vocabulary, piece_key
from tests.bench.client.scripted_sse import DONE, FINISH, Framing, Script, delta, play, text, usage
from tests.bench.fakes import FakeEngine, read_request, serving
from tests.bench.results import request, timing
from tests.bench.test_run import QUIET, routers, settings

TEXT = PieceText(Vocabulary())


def measured(*timings: Timing) -> list[Measured]:
    return [Measured(request(i), t) for i, t in enumerate(timings)]


def facts(*timings: Timing, watch: SelfWatch | None = None) -> list[BlockFacts]:
    return [BlockFacts(measured(*timings), watch or SelfWatch(cpu=0.1))]


async def test_row_1_the_role_chunk_is_not_the_first_token() -> None:
    timing = await play(Script([(1.75, delta(role="assistant", content="")), (4.0, delta(content="a")), (5.0, DONE)]))
    assert timing.ttft == 3.0


async def test_row_2_a_role_chunk_after_the_first_piece_of_prefill_makes_no_gap() -> None:
    role = delta(role="assistant", content="")
    reads = [(2.0, role), (3.25, delta(content="a")), (3.5, delta(content="b")), (3.75, delta("stop"))]
    timing = await play(Script(reads))
    assert (timing.ttft, timing.gaps) == (2.25, [0.25])


def test_row_3_a_failed_request_has_no_ttft_of_zero() -> None:
    found = distribution(values(measured(*[timing(float(i)) for i in range(3)], timing(3.0, error="cut")), "ttft_ms"))
    assert found["mean"] == pytest.approx(100)
    assert found["p99"] is None


async def test_row_4_what_a_failed_answer_had_sent_is_in_no_latency() -> None:
    broken = await play(Script([(2.0, text("a")), (2.5, text("b"))], Framing.CHUNKED, cut=True))
    every = Measurements.of(measured(broken, timing(1.0, itl=0.01)))
    assert every.latency("itl_ms")[0] == math.inf
    assert every.gaps_ms() == pytest.approx([10.0] * 4)


def test_row_5_the_clock_cannot_go_backwards() -> None:
    assert Pool().clock is time.perf_counter
    assert time.get_clock_info("perf_counter").monotonic


async def test_row_7_a_second_run_of_the_same_seed_meets_no_warm_cache() -> None:
    engine = FakeEngine()
    lasts = []
    async with serving(engine) as url:
        for _ in range(2):
            generator = LoadGenerator(TEXT, timeout=10)
            style = BodyStyle("m", lead=Nonces(64).lead(0))
            one = [Request("r", "s", 0, "g", 0, 0.0, 2, (Piece(7, 160),))]
            block = await generator.run(one, Target.parse(url), style, label="b0")
            generator.pool.close()
            lasts.append(block.timings[0].cached_tokens)
    assert lasts == [None, None]


@pytest.mark.parametrize("arms", [2, 3, 4, 5])
def test_rows_8_and_9_no_arm_is_favoured_by_the_order(arms: int) -> None:
    rounds = 4 * arms
    blocks = plan(arms, rounds, 3)
    places = np.zeros((arms, arms), int)
    for block in blocks:
        places[block.arm, block.index % arms] += 1
    assert (places == 4).all()


async def test_row_10_time_that_a_request_waits_in_the_client_is_part_of_its_latency() -> None:
    played = await play(Script([(2.0, text("a")), (2.5, FINISH)]))
    assert played.ttft - played.ttft_send == played.sched_lag == 0.25
    assert played.e2e == 1.0


def test_row_11_bursts_in_place_of_a_paced_schedule_void_the_run() -> None:
    paced = [timing(0.1 * i) for i in range(20)]
    bursts = [timing(0.1 * i, lag=0.1 * (4 - i % 5)) for i in range(20)]
    assert guards.client("kv", facts(*paced), Limits()) == []
    assert guards.client("kv", facts(*bursts), Limits())


async def test_row_12_an_open_loop_sends_on_however_slow_the_answers_are() -> None:
    got = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        await read_request(reader)
        got += 1
        await reader.read()

    sent = [Request(f"r{i}", f"s{i}", 0, "g", 0, 0.002 * i, 2, (Piece(i, 8),)) for i in range(150)]
    async with serving(silent) as url:
        generator = LoadGenerator(TEXT, timeout=1.0)
        await generator.run(sent, Target.parse(url), BodyStyle("m"), label="b")
        generator.pool.close()
    assert got == 150


def test_row_12_a_closed_loop_is_called_one() -> None:
    closed = make(Wish(requests=40, arrivals=Arrivals.parse("closed:4")))
    assert closed.loop == "closed"
    assert any("closed loop of 4 users" in note for note in closed.notes)


async def test_row_13_itl_is_a_token_not_a_chunk() -> None:
    reads = [(2.0, text("a")), (4.0, text("bcde")), (4.25, FINISH), (4.5, usage(9, 5)), (5.0, DONE)]
    timing = await play(Script(reads))
    assert (timing.itl, timing.gaps) == (0.5, [2.0])


def test_rows_14_and_22_a_workload_without_sharing_shares_nothing() -> None:
    alone = make(Wish(name="no-sharing", requests=60, slices=3))
    assert describe(alone).bound == 0.0
    starts = {tuple(alone.tokens(one)[:64].tolist()) for one in alone.requests}
    assert len(starts) == 60


def test_row_15_a_client_that_is_short_of_processor_voids_the_run() -> None:
    answers = [timing(0.1 * i) for i in range(20)]
    assert "a core" in guards.client("kv", facts(*answers, watch=SelfWatch(cpu=0.95)), Limits())[0]


async def test_row_15_connections_are_used_again() -> None:
    async with serving(FakeEngine()) as url:
        generator = LoadGenerator(TEXT, timeout=10)
        one_by_one = [
            Request(f"r{i}", "s", i, "g", 0, 0.0, 1, (Piece(i, 8),), after=f"r{i - 1}" if i else None) for i in range(5)
        ]
        block = await generator.run(one_by_one, Target.parse(url), BodyStyle("m"), label="b")
        generator.pool.close()
    assert block.watch.connections == 1


def test_row_16_dropping_requests_makes_no_percentile_better() -> None:
    slow = [timing(0.1 * i, ttft=0.5) for i in range(10)]
    quick = [timing(0.1 * i, ttft=0.1) for i in range(90)]
    dropped = [timing(0.1 * i, error="http_503") for i in range(10)]
    honest = distribution(values(measured(*quick, *slow), "ttft_ms"))
    cheating = distribution(values(measured(*quick, *dropped), "ttft_ms"))
    assert honest["p95"] == pytest.approx(500)
    assert cheating["p95"] is None
    slo = Slo(ttft_ms=1000)
    assert arm_metrics([measured(*quick, *dropped)], [], slo)["goodput"] == 0.9


def test_row_17_answers_of_another_length_void_the_run() -> None:
    assert guards.lengths("kv", facts(*[timing(0.1 * i, tokens=3) for i in range(20)]), Limits())


def test_row_19_keys_of_ids_that_differ_above_32_bits_differ() -> None:
    assert piece_key("trace", 7) != piece_key("trace", 7 + 2**32)


def test_row_20_a_latency_that_depends_on_how_long_one_measures_is_called_unstable() -> None:
    sent = np.arange(400, dtype=np.float64) * 0.05
    assert stability([(sent, sent + 0.5)]).stable
    assert not stability([(sent, sent + 0.5 + sent * 2)]).stable


async def test_row_21_tokens_are_the_engines_count_whatever_the_chunks() -> None:
    timing = await play(Script([(2.0, text("a b c")), (3.0, text(" d")), (3.25, usage(9, 17)), (3.5, DONE)]))
    assert (timing.n_out, timing.n_out_source) == (17, "usage")


def test_row_23_a_load_that_was_not_delivered_voids_the_run() -> None:
    late = [timing(0.1 * i, lag=0.02 * i) for i in range(20)]
    assert "missed the schedule" in guards.delivered("kv", facts(*late), Limits())[0]


def test_row_25_priming_asks_once_for_each_shared_prefix() -> None:
    shared = Piece(1, 64)
    race = [Request(f"r{i}", f"s{i}", 0, "g", 0, 0.0, 5, (shared, Piece(i + 2, 32))) for i in range(6)]
    assert [one.pieces for one in prime_requests(race)] == [(shared,)]


async def test_row_26_more_than_a_hundred_streams_are_open_at_once() -> None:
    async with serving(FakeEngine(answer_delay=0.5)) as url:
        generator = LoadGenerator(TEXT, timeout=20)
        sent = [Request(f"r{i}", "", 0, "g", 0, 0.0, 1, (Piece(i, 8),)) for i in range(250)]
        block = await generator.run(sent, Target.parse(url), BodyStyle("m"), label="b")
        generator.pool.close()
    assert block.watch.peak == 250


async def test_row_27_a_request_that_is_given_up_does_not_stay_with_the_engine() -> None:
    gone = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await reader.read()
        gone.set()

    async with serving(hang) as url:
        generator = LoadGenerator(TEXT, timeout=0.2)
        sent = [Request("r", "", 0, "g", 0, 0.0, 1, (Piece(1, 8),))]
        await generator.run(sent, Target.parse(url), BodyStyle("m"), label="b")
        await asyncio.wait_for(gone.wait(), 10)
        generator.pool.close()


def test_row_28_the_prefix_that_was_asked_for_is_in_the_body() -> None:
    one = Request("r", "s", 0, "g", 0, 0.0, 1, (Piece(1, 32), Piece(2, 8)))
    body = Bodies(TEXT).body(one, BodyStyle("m"))
    prefix = ",".join(str(token) for token in TEXT.tokens((Piece(1, 32),)))
    assert b'"prompt":[' + prefix.encode() + b"," in body


def test_row_30_a_mean_that_falls_because_requests_fail_voids_the_run() -> None:
    good = facts(*[timing(0.1 * i) for i in range(20)])
    bad = facts(*[timing(0.1 * i, error="timeout" if i % 4 == 0 else None) for i in range(20)])
    assert guards.errors({"kv": bad, "random": good}, Limits()) == ["kv failed 25.0% of its requests, random 0.0%"]


def test_row_6_every_arm_is_warmed_up_and_the_warm_up_is_in_no_number() -> None:
    engines = FakeEngine(), FakeEngine()
    with routers(*engines) as urls:
        outcome = run.bench(settings(urls, aa=0), QUIET)
    for engine, arm in zip(engines, outcome.data["arms"], strict=True):  # type: ignore[call-overload]
        first = [len(body["prompt"]) for body in engine.seen[:WARM_UP]]  # type: ignore[arg-type]
        assert first == [64] * WARM_UP
        assert (arm["requests"], len(engine.seen)) == (24, 24 + WARM_UP)
