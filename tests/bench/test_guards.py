"""Each guard fires on its fault and on nothing else."""

from __future__ import annotations

from bench import guards
from bench.client.timing import Timing
from bench.client.watch import SelfWatch
from bench.guards import BlockFacts, Limits
from bench.metrics import Measured
from tests.bench.results import request, timing

LIMITS = Limits()


def block(*timings: Timing, watch: SelfWatch | None = None, **workers: frozenset[str]) -> BlockFacts:
    measured = [Measured(request(i), t) for i, t in enumerate(timings)]
    return BlockFacts(measured, watch or SelfWatch(cpu=0.1), workers.get("before"), workers.get("after"))


def good(count: int = 20, **how: object) -> list[Timing]:
    return [timing(0.1 * i, **how) for i in range(count)]  # type: ignore[arg-type]


def every(facts: BlockFacts) -> list[str]:
    return (
        guards.client("kv", [facts], LIMITS)
        + guards.delivered("kv", [facts], LIMITS)
        + guards.lengths("kv", [facts], LIMITS)
        + guards.same_workers("kv", [facts])
        + guards.errors({"kv": [facts]}, LIMITS)
        + guards.reporting({"kv": [facts]})
    )


def test_a_good_block_gives_no_reason() -> None:
    assert every(block(*good())) == []


def test_a_client_that_used_up_its_core() -> None:
    assert "used 93% of a core" in guards.client("kv", [block(*good(), watch=SelfWatch(cpu=0.93))], LIMITS)[0]


def test_requests_sent_late_on_average() -> None:
    assert "6.0 ms late on average" in guards.client("kv", [block(*good(lag=0.006))], LIMITS)[0]


def test_a_lag_below_the_floor_is_never_too_much() -> None:
    assert guards.client("kv", [block(*good(lag=0.0015, ttft=0.002))], LIMITS) == []


def test_a_few_requests_sent_very_late() -> None:
    timings = [*good(99), timing(9.9, lag=0.4), timing(10.0, lag=0.4)]
    assert any("1 % of requests were sent over" in reason for reason in guards.client("kv", [block(*timings)], LIMITS))


def test_an_event_loop_that_stalls() -> None:
    watch = SelfWatch(cpu=0.1, loop_lag=[0.2] * 5 + [0.0] * 95)
    assert "event loop" in guards.client("kv", [block(*good(), watch=watch)], LIMITS)[0]


def test_a_rate_that_missed_its_schedule() -> None:
    timings = good()
    timings[-1].t_send += 0.2
    assert "missed the schedule by +10.5%" in guards.delivered("kv", [block(*timings)], LIMITS)[0]


def test_answers_of_another_length() -> None:
    assert "20 of 20 answers had another length" in guards.lengths("kv", [block(*good(tokens=4))], LIMITS)[0]


def test_a_worker_that_left() -> None:
    facts = block(*good(), before=frozenset("ab"), after=frozenset("a"))
    assert guards.same_workers("kv", [facts]) == ["kv: the set of workers changed during the run"]


def test_a_worker_that_left_between_blocks() -> None:
    first = block(*good(), before=frozenset("ab"), after=frozenset("ab"))
    second = block(*good(), before=frozenset("a"), after=frozenset("a"))
    assert guards.same_workers("kv", [first, second])


def test_error_rates_that_differ() -> None:
    failing = block(*good(18), timing(1.8, error="cut"), timing(1.9, error="cut"))
    found = guards.errors({"kv": [failing], "random": [block(*good())]}, LIMITS)
    assert found == ["kv failed 10.0% of its requests, random 0.0%"]


def test_arms_that_fail_alike_are_told_apart_only_when_most_fails() -> None:
    some = block(*good(18), timing(1.8, error="cut"), timing(1.9, error="cut"))
    most = block(*[timing(0.1 * i, error="cut") for i in range(20)])
    assert guards.errors({"kv": [some], "random": [some]}, LIMITS) == []
    assert "more than half" in guards.errors({"kv": [most], "random": [most]}, LIMITS)[0]


def test_engines_that_report_nothing() -> None:
    assert "no answer reports cached tokens" in guards.reporting({"kv": [block(*good(cached=None))]})[0]


def test_a_client_near_its_limit_of_open_files() -> None:
    crowded, roomy = SelfWatch(cpu=0.1, peak=950, files=1000), SelfWatch(cpu=0.1, peak=950, files=100_000)
    assert "950 connections" in guards.client("kv", [block(*good(), watch=crowded)], LIMITS)[0]
    assert guards.client("kv", [block(*good(), watch=roomy)], LIMITS) == []
    assert guards.client("kv", [block(*good(), watch=SelfWatch(cpu=0.1, peak=950))], LIMITS) == []


def test_a_worker_that_came_and_went_inside_a_block() -> None:
    timings = [*good(18), timing(1.8, worker="w9"), timing(1.9, worker="w9")]
    facts = block(*timings, before=frozenset({"w0"}), after=frozenset({"w0"}))
    assert guards.same_workers("kv", [facts]) == ["kv: w9 answered, not among the workers before and after"]


def test_too_few_values_for_the_percentile_that_was_asked_for() -> None:
    assert "an interval of it needs 368" in guards.enough("kv", "ttft_ms.p99", 367)[0]
    assert guards.enough("kv", "ttft_ms.p99", 368) == []
    assert guards.enough("kv", "ttft_ms.mean", 2) == []


def test_answers_that_the_client_broke_off_have_no_length_to_judge() -> None:
    timings = good(tokens=2)
    for one in timings:
        one.aborted = True
    assert guards.lengths("kv", [block(*timings)], LIMITS) == []


def test_lengths_counted_from_chunks_say_so() -> None:
    timings = good(tokens=4)
    for one in timings:
        one.n_out_source = "chunks"
    assert "20 came without a token count" in guards.lengths("kv", [block(*timings)], LIMITS)[0]


def test_requests_that_met_the_clients_own_limits() -> None:
    timings = [*good(18), timing(1.8, error="client_limit"), timing(1.9, error="client_limit")]
    assert any("2 requests met this machine's own limits" in r for r in guards.client("kv", [block(*timings)], LIMITS))


def test_later_turns_that_wait_for_answers_are_judged_by_when_they_were_due() -> None:
    timings = good()
    timings[3].t_sched, timings[3].t_send = 9.0, 9.0
    assert guards.delivered("kv", [block(*timings)], LIMITS) == []
