"""An engine that is killed with -9 under load, and comes back at the same address."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import httpx
import pytest

from .engines import Engine
from .router_process import Router, wait_for

FLEET = "pair"
CLIENTS = 6


@dataclass(slots=True)
class Sent:
    """One request: when it was sent, whether a byte of its answer's body came, and how it ended."""

    stream: bool
    sent: float
    worker: str = ""
    begun: bool = False
    ended: float = 0.0
    error: str = ""


@dataclass(slots=True)
class Load:
    """Clients without retries, each sending one request after the other until told to stop."""

    url: str
    model: str
    sent: list[Sent] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        for number in range(CLIENTS):
            thread = threading.Thread(target=self._run, args=(number,), daemon=True)
            thread.start()
            self.threads.append(thread)

    def finish(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(120.0)
        assert not any(thread.is_alive() for thread in self.threads)

    def _run(self, number: int) -> None:
        turn = 0
        with httpx.Client(timeout=120.0) as http:
            while not self.stop.is_set():
                turn += 1
                self._one(
                    http, stream=turn % 2 == 0, ids=[10 + (number * 7919 + turn * 31 + i) % 1900 for i in range(1500)]
                )

    def _one(self, http: httpx.Client, stream: bool, ids: list[int]) -> None:
        one = Sent(stream, time.monotonic())
        self.sent.append(one)
        body = {"model": self.model, "prompt": ids, "max_tokens": 60, "ignore_eos": True, "stream": stream}
        try:
            with http.stream("POST", f"{self.url}/v1/completions", json=body) as answer:
                one.worker = answer.headers.get("x-kvctl-worker", "")
                content = b""
                for part in answer.iter_bytes():
                    one.begun = one.begun or answer.status_code == 200
                    content += part
                if answer.status_code != 200:
                    one.error = f"{answer.status_code} {content[:300]!r}"
                elif stream and not content.endswith(b"data: [DONE]\n\n"):
                    one.error = "the stream has no end"
                elif not stream:
                    json.loads(content)
        except httpx.HTTPError as error:
            one.error = repr(error)
        one.ended = time.monotonic()


@dataclass(slots=True)
class Story:
    """What happened: the load, and the moments of the kill and of the return."""

    load: Load
    victim: Engine
    survivor: Engine
    killed: float
    back: float


@pytest.fixture(scope="module")
def story(router: Router, engines: Sequence[Engine]) -> Iterator[Story]:
    """Kills the second engine under load, lets the load go on, starts it again, and waits until the router uses it."""
    survivor, victim = engines
    load = Load(router.url, victim.model)
    load.start()
    try:
        wait_for(lambda: len(load.sent) >= 40, "some load", 120.0)
        victim.kill()
        killed = time.monotonic()
        wait_for(lambda: router.workers()[victim.url]["health"] != "up", "the death is noticed", 30.0)
        count = len(load.sent)
        wait_for(lambda: len(load.sent) >= count + 20, "load on the survivor", 120.0)
    finally:
        load.finish()
        if victim.process is None:
            victim.start()
    victim.wait_ready()
    ready = time.monotonic()
    router.wait_up([victim.url], timeout=30.0)
    print(f"\nused again {time.monotonic() - ready:.1f} s after the engine was ready")
    yield Story(load, victim, survivor, killed, time.monotonic())


def test_no_request_fails_that_had_not_begun_to_answer(story: Story) -> None:
    failed = [one for one in story.load.sent if one.error and not one.begun]
    print(f"\n{len(story.load.sent)} requests, {sum(bool(one.error) for one in story.load.sent)} cut in their answer")
    assert failed == []


def test_nothing_fails_that_was_sent_after_the_kill(story: Story) -> None:
    late = [one for one in story.load.sent if one.sent > story.killed]
    assert len(late) >= 20
    assert [one for one in late if one.error] == []


def test_both_engines_had_worked_before(story: Story) -> None:
    early = {one.worker for one in story.load.sent if one.ended < story.killed and not one.error}
    assert len(early) == 2


def test_loads_return_to_zero(story: Story, router: Router) -> None:
    wait_for(
        lambda: router.get("/loads")["open_bookings"] == 0, "no open booking", 30.0, lambda: str(router.get("/loads"))
    )


def test_nothing_is_expected_of_the_new_engines_cache(story: Story, router: Router) -> None:
    """What the dead engine held is forgotten; the survivor's blocks are still known."""
    workers = router.workers()
    assert workers[story.survivor.url]["cached_blocks"] > 0
    assert workers[story.victim.url]["cached_blocks"] == 0


def test_the_new_engines_events_are_followed(story: Story, router: Router) -> None:
    pin = {"x-kvctl-worker": router.workers()[story.victim.url]["id"]}
    ids = [10 + (i * 37) % 1900 for i in range(700)]
    body = {"model": story.victim.model, "prompt": ids, "max_tokens": 2, "temperature": 0}
    seen = []
    for _ in range(2):
        answer = httpx.post(f"{router.url}/v1/completions", json=body, headers=pin, timeout=60.0).raise_for_status()
        found = router.joined(answer.headers["x-kvctl-decision"])
        seen.append((found["predicted_cached_tokens"], found["engine_cached_tokens"]))
    assert seen == [(0, 0), (672, 672)]
