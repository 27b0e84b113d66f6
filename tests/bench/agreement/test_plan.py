"""One schedule in three spellings: the same prompts, lengths and times in each."""

from __future__ import annotations

import json
from pathlib import Path

from bench.agreement import plan as plans
from bench.workload import schedule

PLAN = plans.make_plan(6, 1.5, "sim", 3)


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    assert plans.make_plan(6, 1.5, "sim", 3) == PLAN
    assert plans.make_plan(6, 1.5, "sim", 4) != PLAN


def test_requests_come_at_even_times() -> None:
    assert [one.at for one in PLAN.requests] == [0.0, 1.5, 3.0, 4.5, 6.0, 7.5]


def test_no_two_prompts_begin_alike() -> None:
    assert len({one.prompt[:12] for one in PLAN.requests}) == len(PLAN.requests)


def test_aiperf_gets_whole_bodies_at_their_times(tmp_path: Path) -> None:
    plans.write_aiperf(PLAN, tmp_path / "a.jsonl")
    found = rows(tmp_path / "a.jsonl")
    assert [one["timestamp"] for one in found] == [0, 1500, 3000, 4500, 6000, 7500]
    assert [one["payload"]["prompt"] for one in found] == [one.prompt for one in PLAN.requests]  # type: ignore[index]
    assert [one["payload"]["max_tokens"] for one in found] == [one.output for one in PLAN.requests]  # type: ignore[index]


def test_vllm_gets_prompts_and_lengths(tmp_path: Path) -> None:
    plans.write_vllm(PLAN, tmp_path / "v.jsonl")
    assert rows(tmp_path / "v.jsonl") == [{"prompt": one.prompt, "output_tokens": one.output} for one in PLAN.requests]


def test_kvctl_gets_a_schedule_with_the_same_texts(tmp_path: Path) -> None:
    plans.write_kvctl(PLAN, tmp_path / "k.jsonl")
    found = schedule.read(tmp_path / "k.jsonl").requests
    assert [(one.at, one.output_len, one.pieces[0].text) for one in found] == [
        (one.at, one.output, one.prompt) for one in PLAN.requests
    ]
