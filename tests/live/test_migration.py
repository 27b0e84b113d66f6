"""Streams that break and go on at another worker: a router and engines as processes, killed and cut."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.sim.fleet import SimFleet
from tests.live.conftest import RunningRouter, running_router
from tests.live.cutter import Cutter, cutter

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TOKENS = 12


def asked(path: str, number: int = 0, tokens: int | None = TOKENS, **fields: Any) -> dict[str, Any]:
    what: dict[str, Any] = {"prompt": f"tell me story number {number}, and make it long"}
    if path == CHAT:
        what = {"messages": [{"role": "user", "content": f"question number {number}"}]}
    if tokens is not None:
        what["max_tokens"] = tokens
    return {"model": "sim", "stream": True, "stream_options": {"include_usage": True}} | what | fields


def stream(url: str, path: str, body: dict[str, Any], each: Any = None) -> bytes:
    """The whole body. Raises httpx.RemoteProtocolError where it is cut. `each` is called with what has come so far and
    the worker that is named in the head."""
    got = b""
    with httpx.stream("POST", url + path, json=body, timeout=60.0) as answer:
        assert answer.status_code == 200
        for piece in answer.iter_raw():
            got += piece
            if each is not None:
                each(got, answer.headers["x-kvctl-worker"])
    return got


def shown(data: bytes) -> list[dict[str, Any]]:
    """The events, without what differs between two requests: id and time (the same in all events), cached tokens."""
    lines = data.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert len({(event.pop("id"), event.pop("created")) for event in events}) == 1
    for event in events:
        if event.get("usage"):
            event["usage"].pop("prompt_tokens_details")
    return events


@contextlib.contextmanager
def engines(count: int, speedup: float = 1.0) -> Iterator[list[SimFleet]]:
    """Engines, each a process of its own."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(SimFleet(1, speedup=speedup, num_blocks=2000)) for _ in range(count)]


def workers(fleets: list[SimFleet]) -> list[str]:
    specs = [fleet.engines[0].spec.replace("id=sim-0", f"id=w{number}") for number, fleet in enumerate(fleets)]
    return [option for spec in specs for option in ("--worker", spec)]


def counts(router: RunningRouter, name: str) -> dict[str, float]:
    text = router.control.get("/metrics").text
    return {label: float(value) for label, value in re.findall(rf'^{name}_total{{\w+="(\w+)"}} (\S+)$', text, re.M)}


def test_kill_9_of_an_engine_costs_none_of_twenty_streams_a_token() -> None:
    bodies = [(path, asked(path, number, 150)) for number in range(10) for path in (COMPLETIONS, CHAT)]
    with (
        engines(3) as fleets,
        running_router("--router-mode", "kv", "--migration-limit", "1", *workers(fleets)) as router,
    ):
        direct = fleets[0].engines[0].url
        with ThreadPoolExecutor(20) as pool:
            expected = list(pool.map(lambda one: shown(stream(direct, *one)), bodies))
            begun = threading.Barrier(21)
            passed = threading.local()

            def each(got: bytes, worker: str) -> None:
                if got.count(b"\n\n") > 5 and not getattr(passed, "it", False):
                    passed.it = True
                    begun.wait(60.0)

            def ask(one: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
                passed.it = False
                return shown(stream(router.url, *one, each))

            answers = [pool.submit(ask, one) for one in bodies]
            begun.wait(60.0)
            assert fleets[2].pid is not None
            os.kill(fleets[2].pid, signal.SIGKILL)
            assert [answer.result(60.0) for answer in answers] == expected
        assert counts(router, "kvctl_migrations")["moved"] >= 1
        router.wait("all load is given back", lambda: router.get("/loads")["open_bookings"] == 0)


@pytest.fixture(scope="module")
def cut_fleet(sims: SimFleet) -> Iterator[tuple[list[Cutter], list[tuple[int, int]]]]:
    """Cutters before three engines, and the cuts they share."""
    cuts: list[tuple[int, int]] = []
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(cutter(engine.url, cuts)) for engine in sims.engines[:3]], cuts


@pytest.fixture(scope="module")
def access_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("migration") / "access.log"


@pytest.fixture(scope="module")
def cut_router(
    cut_fleet: tuple[list[Cutter], list[tuple[int, int]]], sims: SimFleet, access_log: Path
) -> Iterator[RunningRouter]:
    """A router that moves a stream twice at most, and never counts a worker out."""
    options = []
    for number, (relay, engine) in enumerate(zip(cut_fleet[0], sims.engines, strict=False)):
        sources = engine.spec.partition(",kv=")[2]
        options += ["--worker", f"{relay.url},id=w{number},kv={sources}"]
    lenient = ("--breaker", "off", "--retry-floor", "1000", "--access-log", str(access_log))
    with running_router("--router-mode", "kv", "--migration-limit", "2", *lenient, *options) as router:
        yield router


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("more", [0, 1, 40])
def test_cut_behind_every_event_the_stream_is_the_unbroken_one(
    path: str, more: int, cut_router: RunningRouter, cut_fleet: Any, sims: SimFleet
) -> None:
    _relays, cuts = cut_fleet
    body = asked(path)
    expected = shown(stream(sims.engines[3].url, path, body))
    for events in range(len(expected) + 1):
        cuts.append((events, more))
        assert shown(stream(cut_router.url, path, body)) == expected, events
        cuts.clear()


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_cut_twice_it_is_the_same(path: str, cut_router: RunningRouter, cut_fleet: Any, sims: SimFleet) -> None:
    _relays, cuts = cut_fleet
    body = asked(path)
    expected = shown(stream(sims.engines[3].url, path, body))
    for first, second in ((1, 1), (3, 4), (5, 2)):
        cuts.extend(((first, 7), (second, 20)))
        assert shown(stream(cut_router.url, path, body)) == expected, (first, second)
        assert not cuts


def test_an_answer_of_open_length_ends_where_it_would_have(
    cut_router: RunningRouter, cut_fleet: Any, sims: SimFleet
) -> None:
    _relays, cuts = cut_fleet
    body = asked(CHAT, tokens=None)
    cuts.append((50, 3))
    assert shown(stream(cut_router.url, CHAT, body)) == shown(stream(sims.engines[3].url, CHAT, body))


def test_past_the_limit_the_stream_is_cut_and_counted(cut_router: RunningRouter, cut_fleet: Any) -> None:
    _relays, cuts = cut_fleet
    before = counts(cut_router, "kvctl_migrations").get("limit", 0.0)
    cuts.extend([(3, 5)] * 3)
    with pytest.raises(httpx.RemoteProtocolError):
        stream(cut_router.url, COMPLETIONS, asked(COMPLETIONS))
    assert counts(cut_router, "kvctl_migrations")["limit"] == before + 1
    assert "does not go on: limit" in cut_router.log()


def test_a_request_that_cannot_go_on_is_cut_and_says_why(cut_router: RunningRouter, cut_fleet: Any) -> None:
    _relays, cuts = cut_fleet
    cuts.append((3, 5))
    with pytest.raises(httpx.RemoteProtocolError):
        stream(cut_router.url, COMPLETIONS, asked(COMPLETIONS, response_format={"type": "json_object"}))
    assert counts(cut_router, "kvctl_migrations")["structured"] >= 1
    assert counts(cut_router, "kvctl_migration_unfollowed")["structured"] >= 1


def test_the_chat_goes_on_as_token_ids(cut_router: RunningRouter, cut_fleet: Any) -> None:
    relays, cuts = cut_fleet
    for relay in relays:
        relay.asked.clear()
    cuts.append((5, 0))
    stream(cut_router.url, CHAT, asked(CHAT, temperature=0.5, seed=3))
    (resumed,) = [one for relay in relays for one in relay.asked if one.startswith(b"POST /v1/completions ")]
    body = json.loads(resumed.partition(b"\r\n\r\n")[2])
    assert (body["max_tokens"], body["temperature"], body["seed"]) == (TOKENS - 4, 0.5, 3)
    assert all(isinstance(token, int) for token in body["prompt"])


def test_the_access_log_counts_the_tokens_of_the_whole_answer(
    cut_router: RunningRouter, cut_fleet: Any, access_log: Path
) -> None:
    _relays, cuts = cut_fleet
    cuts.append((5, 0))
    answer = cut_router.http.post(COMPLETIONS, json=asked(COMPLETIONS), headers={"x-request-id": "counted"})
    usage = shown(answer.content)[-1]["usage"]

    def line() -> str:
        return next((line for line in access_log.read_text().splitlines() if "request_id=counted " in line), "")

    cut_router.wait("its line is written", line)
    fields = dict(field.split("=", 1) for field in line().split() if "=" in field)
    assert (int(fields["prompt_tokens"]), int(fields["output_tokens"])) == (usage["prompt_tokens"], TOKENS)
    assert fields["retries"] == "1"


def test_explain_shows_both_legs(cut_router: RunningRouter, cut_fleet: Any) -> None:
    _relays, cuts = cut_fleet
    cuts.append((4, 0))
    answer = cut_router.http.post(COMPLETIONS, json=asked(COMPLETIONS))
    first = answer.headers["x-kvctl-decision"]
    command = [sys.executable, "-m", "kvctl", "explain", answer.headers["x-request-id"], "--admin", cut_router.admin]
    environment = os.environ | {"COLUMNS": "200"}
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=True).stdout
    assert text.startswith(first)
    assert "its stream broke and went on as d-" in text
    assert f"{first}: 4 generated tokens are part of this prompt" in text


def test_a_router_that_is_told_to_stop_still_moves_a_stream() -> None:
    with engines(2) as fleets:
        options = ("--migration-limit", "1", "--drain-timeout", "30", "--router-mode", "round-robin")
        with running_router(*options, *workers(fleets)) as router:
            body = asked(COMPLETIONS, tokens=150)
            expected = shown(stream(fleets[0].engines[0].url, COMPLETIONS, body))
            done: list[str] = []

            def each(got: bytes, worker: str) -> None:
                if got.count(b"\n\n") < 5 or done:
                    return
                done.append(worker)
                router.process.send_signal(signal.SIGTERM)
                router.wait("it stops", lambda: "Stopping" in router.log())
                pid = fleets[int(worker[1:])].pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)

            assert shown(stream(router.url, COMPLETIONS, body, each)) == expected
            assert done


def test_off_a_broken_stream_is_cut_and_engines_are_asked_nothing_more(sims: SimFleet) -> None:
    cuts = [(3, 0)]
    with cutter(sims.engines[0].url, cuts) as relay, running_router("--worker", f"{relay.url},id=w0") as router:
        with pytest.raises(httpx.RemoteProtocolError):
            stream(router.url, COMPLETIONS, asked(COMPLETIONS))
        assert b"return_token_ids" not in relay.asked[0]
        assert "kvctl_migration" not in router.control.get("/metrics").text
