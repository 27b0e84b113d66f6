"""Whole runs against small engines standing in for routers: files, order, cold start by nonce, interruption."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench import run
from bench.arms import ArmError
from bench.experiment import BlockResult
from bench.gate import GateError
from bench.pilot import Auto
from bench.report.progress import Display
from bench.run import NothingMeasured
from bench.settings import Settings
from bench.workload.model import WorkloadError
from tests.bench.fakes import FakeEngine, serving

QUIET = Console(stderr=True, quiet=True)


@contextlib.contextmanager
def routers(*engines: FakeEngine) -> Iterator[list[str]]:
    """The engines on a loop of their own, in a thread: a run owns the main one."""
    ready = threading.Event()
    urls: list[str] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for engine in engines:
                urls.append(await stack.enter_async_context(serving(engine)))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    ready.wait(10)
    try:
        yield urls
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def settings(urls: list[str], **how: Any) -> Settings:
    fields: dict[str, Any] = {
        "urls": tuple(f"{name}={url}" for name, url in zip("abc", urls, strict=False)),
        "requests": 24, "blocks": 2, "aa": 0, "rate": 150.0,
    }  # fmt: skip
    return Settings(**(fields | how))


def test_two_running_routers_are_compared_and_everything_is_written(tmp_path: Path) -> None:
    with routers(FakeEngine(), FakeEngine(headers=b"x-kvctl-worker: w1\r\nx-kvctl-decision: d1\r\n")) as urls:
        outcome = run.bench(settings(urls, out=tmp_path), QUIET)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"result.json", "requests.jsonl", "summary.csv", "report.md", "report.html"}
    data = json.loads((tmp_path / "result.json").read_text())
    assert [arm["requests"] for arm in data["arms"]] == [24, 24]
    assert [arm["failed"] for arm in data["arms"]] == [0, 0]
    assert data["arms"][1]["workers"] == {"w1": 24}
    assert data["design"]["cold_start"] == "nonce"
    assert all(block["cold"]["proven"] for block in data["design"]["blocks"])
    assert outcome.data["provenance"]["workload_sha256"] == data["provenance"]["workload_sha256"]  # type: ignore[index]


def test_both_arms_get_the_same_prompts_behind_their_nonces() -> None:
    engines = FakeEngine(), FakeEngine()
    with routers(*engines) as urls:
        run.bench(settings(urls), QUIET)
    sent = [sorted(json.dumps(body["prompt"][512:]) for body in e.seen if len(body["prompt"]) > 512) for e in engines]  # type: ignore[index,arg-type]
    assert len(sent[0]) == 24
    assert sent[0] == sent[1]


def test_hits_are_counted_inside_a_block_only() -> None:
    with routers(FakeEngine(), FakeEngine()) as urls:
        outcome = run.bench(settings(urls), QUIET)
    first, second = (arm.value("cached_token_ratio") for arm in outcome.verdict.arms)
    assert first is not None
    assert 0.1 < first < 1
    assert first == second
    assert not any("cold" in reason for reason in outcome.verdict.reasons)


def test_engines_that_do_not_report_cached_tokens_give_no_verdict() -> None:
    with routers(FakeEngine(reports=False), FakeEngine()) as urls:
        outcome = run.bench(settings(urls), QUIET)
    assert outcome.verdict.exit_code == 4
    assert any("a: no answer reports cached tokens" in reason for reason in outcome.verdict.reasons)


def test_an_arm_that_fails_before_the_first_block_is_named() -> None:
    with (
        routers(FakeEngine(), FakeEngine(fail_every=5)) as urls,
        pytest.raises(ArmError, match="b does not serve: http_500"),
    ):
        run.bench(settings(urls), QUIET)


def test_an_arm_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.experiment.READY_PATIENCE", 0.3)
    with pytest.raises(ArmError, match="arm a does not serve"):
        run.bench(settings(["http://127.0.0.1:9"]), QUIET)


def test_arms_without_a_common_model_need_a_name() -> None:
    with routers(FakeEngine(model="m1"), FakeEngine(model="m2")) as urls, pytest.raises(ArmError, match="--model"):
        run.bench(settings(urls), QUIET)


def test_a_gate_on_an_unknown_arm_is_refused_before_anything_runs() -> None:
    with pytest.raises(GateError, match="no arm 'kv'"):
        run.bench(settings(["http://127.0.0.1:9"], gates=("ttft_ms.p95: kv <= a",)), QUIET)


def test_a_rate_for_a_trace_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [0]}\n')
    with pytest.raises(WorkloadError, match="--speedup"):
        run.bench(settings(["http://127.0.0.1:9"], trace=trace), QUIET)


def stop_after(monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    """Sends this process SIGINT when so many blocks have ended."""
    import os
    import signal

    real = Display.block_ended
    ended: list[int] = []

    def block_ended(self: Display, result: BlockResult) -> None:
        real(self, result)
        ended.append(result.block.index)
        if len(ended) == blocks:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Display, "block_ended", block_ended)


def test_ctrl_c_keeps_the_complete_blocks_and_voids_the_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop_after(monkeypatch, 3)
    with routers(FakeEngine(), FakeEngine()) as urls:
        outcome = run.bench(settings(urls, blocks=4, requests=48, out=tmp_path), QUIET)
    data = json.loads((tmp_path / "result.json").read_text())
    assert sum(arm["blocks"] for arm in data["arms"]) == 3
    assert data["verdict"]["valid"] is False
    assert data["verdict"]["reasons"][0].startswith("interrupted")
    assert outcome.verdict.exit_code == 4


def test_ctrl_c_before_the_first_block_says_that_nothing_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import signal

    real = Display.planned

    def planned(self: Display, *plan: Any) -> None:
        real(self, *plan)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Display, "planned", planned)
    with routers(FakeEngine(answer_delay=0), FakeEngine()) as urls, pytest.raises(NothingMeasured):
        run.bench(settings(urls), QUIET)


def test_a_time_limit_ends_the_run_between_rounds() -> None:
    with routers(FakeEngine(), FakeEngine()) as urls:
        outcome = run.bench(settings(urls, blocks=6, requests=72, duration=1.0), QUIET)
    done = [len(arm.blocks) for arm in outcome.verdict.arms]
    assert done[0] == done[1] < 6
    assert any("stopped by --duration" in note for note in outcome.verdict.notes)


def test_the_pilot_sends_pairs_of_one_arm_on_one_slice_and_is_in_no_comparison(tmp_path: Path) -> None:
    engines = FakeEngine(), FakeEngine()
    with routers(*engines) as urls:
        outcome = run.bench(settings(urls, aa=2, out=tmp_path), QUIET)
    data = json.loads((tmp_path / "result.json").read_text())
    assert [pair["arm"] for pair in data["design"]["pilot"]["pairs"]] == ["a", "b"]
    assert [arm["requests"] for arm in data["arms"]] == [24, 24]
    assert {block["index"] for block in data["design"]["blocks"]} == {0, 1, 2, 3}
    assert outcome.verdict.pilot is not None
    sent = [[json.dumps(b["prompt"][512:]) for b in e.seen if len(b["prompt"]) > 512] for e in engines]  # type: ignore[index,arg-type]
    assert [len(prompts) for prompts in sent] == [24 + 24, 24 + 24]
    assert sorted(sent[0][:12]) == sorted(sent[0][12:24])


def test_blocks_auto_runs_as_many_rounds_as_the_pilot_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.run.rounds_of", lambda auto, pilot, arms: 3)
    with routers(FakeEngine(), FakeEngine()) as urls:
        outcome = run.bench(settings(urls, blocks=Auto(0.1, most=5), aa=1, requests=60), QUIET)
    assert [arm["blocks"] for arm in outcome.data["arms"]] == [3, 3]  # type: ignore[attr-defined]
    assert outcome.data["provenance"]["workload"]["summary"]["slices"] == 3  # type: ignore[index]


def test_priming_sends_shared_prefixes_first_and_reports_them_apart() -> None:
    engines = FakeEngine(), FakeEngine()
    with routers(*engines) as urls:
        outcome = run.bench(settings(urls, prime=True, requests=48, rate=300.0), QUIET)
    arm = outcome.data["arms"][0]  # type: ignore[index]
    assert arm["requests"] == 48
    assert arm["prime"]["requests"] > 0
    assert arm["prime"]["failed"] == 0
    assert [body["max_tokens"] for body in engines[0].seen if len(body["prompt"]) > 512][:2] == [1, 1]  # type: ignore[arg-type]
    assert outcome.data["design"]["primed"] is True  # type: ignore[index]
    assert not any("cold" in reason for reason in outcome.verdict.reasons)
