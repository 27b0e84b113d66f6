"""SIGTERM with streams running: they finish, new requests are refused, a second signal ends it at once."""

from __future__ import annotations

import signal
import threading
import time

import httpx
import pytest

from bench.sim.fleet import SimFleet
from tests.live.conftest import RunningRouter, running_router


class Stream:
    """A stream that is read in a thread; `begun` when its first bytes have come, `lines` once it has ended."""

    def __init__(self, router: RunningRouter, tokens: int) -> None:
        self.begun = threading.Event()
        self.text = ""
        self.error: Exception | None = None
        self._url = router.url
        self._tokens = tokens
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self.begun.wait(30)

    def _read(self) -> None:
        body = {"model": "sim", "prompt": [5] * 40, "max_tokens": self._tokens, "stream": True}
        try:
            with httpx.stream("POST", f"{self._url}/v1/completions", json=body, timeout=60) as answer:
                for part in answer.iter_text():
                    self.text += part
                    self.begun.set()
        except httpx.TransportError as error:
            self.error = error

    def ended(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def slow() -> SimFleet:
    with SimFleet(1, timing="fixed", decode_ms=20) as fleet:
        yield fleet  # type: ignore[misc]


def refuses(router: RunningRouter) -> httpx.Response:
    """The first answer after the router has noticed that it is to stop."""
    deadline = time.monotonic() + 20
    while True:
        answer = httpx.post(f"{router.url}/v1/completions", json={"model": "sim", "prompt": "x", "max_tokens": 1})
        if answer.status_code != 200 or time.monotonic() > deadline:
            return answer
        time.sleep(0.01)


def test_a_router_that_is_told_to_stop_finishes_streams_and_refuses_the_rest(slow: SimFleet) -> None:
    with running_router("--worker", slow.engines[0].spec) as router:
        stream = Stream(router, 150)
        router.process.send_signal(signal.SIGTERM)
        answer = refuses(router)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        assert answer.headers["retry-after"]
        ready = httpx.get(f"{router.url}/ready")
        assert (ready.status_code, ready.json()["stopping"]) == (503, True)
        assert httpx.get(f"{router.url}/health").status_code == 200
        stream.ended()
        assert stream.error is None
        assert stream.text.rstrip().endswith("data: [DONE]")
        assert router.process.wait(20) == 0


def test_a_second_signal_ends_the_router_while_a_stream_runs(slow: SimFleet) -> None:
    with running_router("--worker", slow.engines[0].spec, "--drain-timeout", "600") as router:
        stream = Stream(router, 5000)
        router.process.send_signal(signal.SIGTERM)
        refuses(router)
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(30) == 0
        stream.ended()
        assert "[DONE]" not in stream.text
        assert "second time" in router.log()


def test_streams_are_cut_when_the_drain_timeout_is_over(slow: SimFleet) -> None:
    with running_router("--worker", slow.engines[0].spec, "--drain-timeout", "0.3") as router:
        stream = Stream(router, 5000)
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(30) == 0
        stream.ended()
        assert "[DONE]" not in stream.text


def test_with_a_drain_delay_the_router_still_serves_while_ready_says_503(slow: SimFleet) -> None:
    with running_router("--worker", slow.engines[0].spec, "--drain-delay", "600") as router:
        router.process.send_signal(signal.SIGTERM)
        router.wait("ready turns 503", lambda: router.http.get("/ready").status_code == 503)
        assert router.ask("still there").status_code == 200
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(30) == 0
