"""The scheduler: who computes what in which step, what is reused, what is told."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sim.engine import Engine, EngineConfig, EngineRequest, Output, StepResult
from bench.sim.kvcache import Cleared, Removed, Stored
from bench.sim.timing import FixedTiming, Timing

TIMING = Timing(FixedTiming(prefill_ms=20, decode_ms=10))


def engine(**sizes: int) -> Engine:
    defaults = {"block_size": 4, "num_blocks": 64, "max_model_len": 256}
    return Engine(EngineConfig(**(defaults | sizes)), TIMING)


def request(name: str, prompt: int | list[int], answer: int = 1, finish: str = "length") -> EngineRequest:
    ids = list(range(1, prompt + 1)) if isinstance(prompt, int) else prompt
    return EngineRequest(name, np.array(ids, np.uint32), np.arange(1000, 1000 + answer, dtype=np.uint32), finish)


def run(target: Engine, *requests: EngineRequest) -> list[StepResult]:
    """Submit all at once and step until idle."""
    for each in requests:
        target.submit(each, 0.0)
    steps = []
    now = 0.0
    while (result := target.step(now)) is not None:
        steps.append(result)
        now += result.duration
    return steps


def outputs(steps: list[StepResult], name: str) -> list[Output]:
    return [output for step in steps for output in step.outputs if output.id == name]


@pytest.mark.parametrize(("prompt", "cached"), [(500, 480), (1000, 992), (2000, 1984), (4000, 3968), (512, 480)])
def test_cached_tokens_are_whole_blocks_below_the_prompts_last_token(prompt: int, cached: int) -> None:
    target = engine(block_size=32, num_blocks=512, max_model_len=8192)
    run(target, request("a", prompt))
    assert outputs(run(target, request("b", prompt)), "b")[0].cached == cached


def test_a_first_prompt_has_no_cached_tokens() -> None:
    assert outputs(run(engine(), request("a", 40)), "a")[0].cached == 0


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    steps = run(engine(max_num_batched_tokens=16), request("a", 40))
    assert [step.work.prefill_tokens for step in steps] == [16, 16, 8]
    assert [len(step.outputs) for step in steps] == [0, 0, 1]


def test_running_sequences_take_their_share_of_the_budget_before_waiting_ones() -> None:
    target = engine(max_num_batched_tokens=16)
    target.submit(request("a", 8, 10), 0.0)
    target.step(0.0)
    target.submit(request("b", 100), 0.1)
    step = target.step(0.1)
    assert step is not None
    assert (step.work.decode_seqs, step.work.prefill_tokens) == (1, 15)


def test_only_new_tokens_are_prefilled() -> None:
    target = engine()
    run(target, request("a", 40))
    steps = run(target, request("b", 40))
    assert steps[0].work.prefill_tokens == 4


def test_siblings_in_one_step_share_the_prefix() -> None:
    steps = run(engine(), request("a", 40), request("b", 40))
    assert steps[0].work.prefill_tokens == 40 + 4
    assert outputs(steps, "b")[0].cached == 36


def test_the_batch_is_bounded_by_max_num_seqs() -> None:
    target = engine(max_num_seqs=2)
    for name in "abc":
        target.submit(request(name, [ord(name)] * 8, 3), 0.0)
    target.step(0.0)
    assert target.snapshot()[:2] == (2, 1)


def test_a_finished_sequence_holds_its_blocks_until_its_step_is_over() -> None:
    target = engine()
    target.submit(request("a", 8, 1), 0.0)
    target.step(0.0)
    assert (target.snapshot().running, target.snapshot().used_blocks) == (1, 2)
    assert target.step(0.1) is None
    assert (target.snapshot().running, target.snapshot().used_blocks) == (0, 0)


def test_the_answer_comes_token_by_token_and_the_reason_with_the_last() -> None:
    got = outputs(run(engine(), request("a", 8, 3, "stop")), "a")
    assert [(output.position, output.token, output.finish) for output in got] == [
        (0, 1000, None),
        (1, 1001, None),
        (2, 1002, "stop"),
    ]


def test_a_step_lasts_as_long_as_the_model_says() -> None:
    steps = run(engine(), request("a", 8, 3))
    assert [step.duration for step in steps] == pytest.approx([0.020, 0.010, 0.010])


def test_a_step_that_prefills_beside_decoding_takes_both_times() -> None:
    target = engine()
    target.submit(request("a", 8, 5), 0.0)
    target.step(0.0)
    target.submit(request("b", [9] * 8), 0.0)
    step = target.step(0.1)
    assert step is not None
    assert step.duration == pytest.approx(0.030)


def test_a_generated_block_is_stored_one_step_after_its_last_token() -> None:
    steps = run(engine(), request("a", 6, 5))
    stored = [[event for event in step.events if isinstance(event, Stored)] for step in steps]
    assert [len(events) for events in stored] == [1, 0, 1, 0, 0]
    assert list(stored[2][0].tokens) == [5, 6, 1000, 1001]
    assert stored[2][0].parent == int(stored[0][0].keys[0])


def test_the_next_turn_reuses_the_blocks_of_the_answer() -> None:
    target = engine()
    run(target, request("a", 6, 5))
    longer = [1, 2, 3, 4, 5, 6, 1000, 1001, 1002, 1003, 1004, 7]
    assert outputs(run(target, request("b", longer)), "b")[0].cached == 8


def test_the_latest_sequence_is_preempted_when_blocks_run_out() -> None:
    target = engine(num_blocks=6, max_model_len=24)
    target.submit(request("a", [1] * 8, 12), 0.0)
    target.submit(request("b", [2] * 8, 12), 0.0)
    running = []
    now = 0.0
    while (step := target.step(now)) is not None:
        running.append([output.id for output in step.outputs])
        now += step.duration
    assert target.counters.preemptions >= 1
    assert ["a"] in running
    assert [len([1 for ids in running if name in ids]) for name in "ab"] == [12, 12]


def test_a_preempted_sequence_goes_on_where_it_was() -> None:
    target = engine(num_blocks=6, max_model_len=24)
    steps = run(target, request("a", [1] * 8, 12), request("b", [2] * 8, 12))
    assert [output.position for output in outputs(steps, "b")] == list(range(12))
    assert {output.cached for output in outputs(steps, "b")} == {0}


def test_recomputing_after_preemption_counts_as_prefill() -> None:
    target = engine(num_blocks=6, max_model_len=24)
    steps = run(target, request("a", [1] * 8, 12), request("b", [2] * 8, 12))
    assert sum(step.work.prefill_tokens for step in steps) > 16


def test_an_aborted_sequence_frees_its_blocks_at_once() -> None:
    target = engine()
    target.submit(request("a", 40, 10), 0.0)
    target.submit(request("b", [7] * 8, 10), 0.0)
    target.step(0.0)
    assert target.abort("a", 0.01)
    assert (target.snapshot().running, target.snapshot().used_blocks) == (1, 2)
    assert not target.abort("a", 0.02)


def test_a_waiting_request_can_be_aborted() -> None:
    target = engine()
    target.submit(request("a", 8), 0.0)
    assert target.abort("a", 0.0)
    assert target.step(0.0) is None


def test_aborting_in_the_last_step_releases_once() -> None:
    target = engine()
    target.submit(request("a", 8, 1), 0.0)
    target.step(0.0)
    target.abort("a", 0.01)
    assert target.step(0.1) is None
    assert target.snapshot().used_blocks == 0
    assert target.counters.aborted == 0


def test_reset_is_refused_while_a_sequence_runs_and_done_when_it_may_preempt() -> None:
    target = engine()
    target.submit(request("a", 40, 3), 0.0)
    target.step(0.0)
    assert not target.reset_prefix_cache()
    assert target.reset_prefix_cache(preempt=True)
    steps = run(target)
    assert [output.position for output in outputs(steps, "a")] == [1, 2]


def test_the_next_step_tells_a_reset_before_what_it_stores_itself() -> None:
    target = engine()
    run(target, request("a", 8))
    assert target.reset_prefix_cache()
    steps = run(target, request("b", 8))
    assert [type(event) for event in steps[0].events] == [Cleared, Stored]


def test_block_keys_are_the_engines_own() -> None:
    keys = []
    for seed in (1, 2):
        steps = run(engine(seed=seed), request("a", 40))
        keys.append([key for event in steps[0].events if isinstance(event, Stored) for key in event.keys])
    assert not set(keys[0]) & set(keys[1])


def test_prompts_under_another_salt_or_adapter_share_nothing() -> None:
    target = engine()
    base = request("a", 40)
    run(target, base)
    for name, lora, salt in (("b", "x", None), ("c", None, "x")):
        other = EngineRequest(name, base.prompt, base.answer, "length", lora, salt)
        assert outputs(run(target, other), name)[0].cached == 0


def test_hits_and_queries_are_counted_in_tokens() -> None:
    target = engine()
    run(target, request("a", 40))
    run(target, request("b", 40))
    assert (target.counters.cache_queries, target.counters.cache_hits) == (80, 36)


def test_an_id_in_use_is_refused() -> None:
    target = engine()
    target.submit(request("a", 8), 0.0)
    with pytest.raises(ValueError, match="in use"):
        target.submit(request("a", 8), 0.0)


def test_more_tokens_than_the_context_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 256"):
        engine().submit(request("a", 250, 7), 0.0)


def test_a_context_larger_than_the_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        engine(num_blocks=4)


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 12),  # the step before which it arrives
        st.lists(st.integers(0, 2), min_size=1, max_size=5),  # its prompt, in pieces of five equal tokens
        st.integers(1, 12),  # tokens of its answer
        st.one_of(st.none(), st.integers(1, 20)),  # the step before which it is aborted
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=80, deadline=None)
@given(ARRIVALS, st.integers(10, 16), st.integers(3, 40), st.integers(1, 5))
def test_whatever_arrives_answers_are_whole_events_tell_the_cache_and_all_is_freed(
    arrivals: list[tuple], blocks: int, budget: int, seqs: int
) -> None:
    target = engine(num_blocks=blocks, max_model_len=40, max_num_batched_tokens=budget, max_num_seqs=seqs)
    told: Counter[int] = Counter()
    got: dict[str, list[int]] = {}
    ended: set[str] = set()
    aborted: set[str] = set()
    number = 0
    while True:
        for index, (arrives, pieces, answer, aborts) in enumerate(arrivals):
            if arrives == number:
                prompt = [token for piece in pieces for token in [piece] * 5]
                target.submit(request(f"r{index}", prompt, answer), float(number))
            if aborts == number and target.abort(f"r{index}", float(number)):
                aborted.add(f"r{index}")
        result = target.step(float(number))
        if result is None and number > 20:
            break
        number += 1
        if result is None:
            continue
        assert 0 < result.work.prefill_tokens + result.work.decode_seqs <= budget
        assert target.snapshot().running <= seqs
        for output in result.outputs:
            assert output.id not in ended
            got.setdefault(output.id, []).append(output.position)
            if output.finish:
                ended.add(output.id)
        for event in result.events:
            if isinstance(event, Stored):
                assert len(event.tokens) == 4 * len(event.keys)
                assert event.parent is None or told[event.parent] > 0
                told.update(event.keys.tolist())
            elif isinstance(event, Removed):
                told.subtract(event.keys.tolist())
        assert min(told.values(), default=0) >= 0
        assert +told == Counter(target.cache.cached_keys())
    for index, (_, _, answer, _) in enumerate(arrivals):
        name = f"r{index}"
        positions = got.get(name, [])
        assert positions == list(range(len(positions)))
        assert name in aborted or (name in ended and len(positions) == answer)
    assert target.snapshot()[:3] == (0, 0, 0)


@settings(max_examples=20, deadline=None)
@given(ARRIVALS)
def test_the_same_schedule_gives_the_same_steps(arrivals: list[tuple]) -> None:
    def once() -> list[tuple]:
        target = engine(num_blocks=12, max_model_len=40)
        requests = [
            request(f"r{i}", [token for piece in row[1] for token in [piece] * 5], row[2])
            for i, row in enumerate(arrivals)
        ]
        return [(step.duration, step.outputs, step.work) for step in run(target, *requests)]

    assert once() == once()
