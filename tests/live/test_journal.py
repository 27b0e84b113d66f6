"""The access log and the decision records of a running router: rotation, what a hostile client writes, waiting."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench.sim.fleet import SimFleet
from tests.live.conftest import RunningRouter, running_router


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("journal") / "access.log"


@pytest.fixture(scope="module")
def router(log: Path) -> Iterator[RunningRouter]:
    """Before one slow engine: a prompt of 1,500 tokens takes it about half a second."""
    with (
        SimFleet(1, speedup=0.1) as fleet,
        running_router(
            *("--worker", f"{fleet.engines[0].url},id=w1", "--access-log", str(log)),
            *("--queue-limit", "4", "--active-prefill-tokens-threshold", "0"),
        ) as running,
    ):
        running.wait("the engine is up", lambda: running.http.get("/ready").status_code == 200)
        yield running


def line_of(router: RunningRouter, log: Path, wanted: str) -> str:
    def found() -> list[str]:
        return [line for line in log.read_text().splitlines() if f"request_id={wanted} " in line]

    router.wait(f"the line of {wanted} is written", found)
    (line,) = found()
    return line


def test_hangup_begins_a_new_file_after_the_old_one_was_moved(router: RunningRouter, log: Path) -> None:
    router.ask(headers={"x-request-id": "before"})
    line_of(router, log, "before")
    moved = log.rename(log.with_suffix(".1"))
    router.process.send_signal(signal.SIGHUP)
    router.wait("the signal has come", lambda: router.ask(headers={"x-request-id": "after"}) and log.exists())
    router.ask(headers={"x-request-id": "last"})
    line_of(router, log, "last")
    assert "request_id=before " in moved.read_text()
    assert "request_id=before " not in log.read_text()


def test_client_cannot_write_lines_or_escapes_into_the_log(router: RunningRouter, log: Path) -> None:
    answer = router.ask(model="m\n2026 status=200 \x1b[31m\u2028", headers={"x-request-id": "hostile"})
    assert answer.status_code == 404
    url = httpx.URL(router.url)
    with socket.create_connection((url.host, url.port or 80), 10) as client:
        client.sendall(b'GET /x"=status=200%0a?secret HTTP/1.1\r\nHost: a\r\nX-Request-Id: path\r\n\r\n')
        client.recv(65536)
    for wanted in ("hostile", "path"):
        line = line_of(router, log, wanted)
        assert all(one.isprintable() for one in line)
        assert "secret" not in line
        assert line.split().count("status=404") == 1
        assert "status=200" not in line.split()


def test_request_that_is_no_http_has_a_line(router: RunningRouter, log: Path) -> None:
    url = httpx.URL(router.url)
    with socket.create_connection((url.host, url.port or 80), 10) as client:
        client.sendall(b"nonsense\r\n\r\n")
        said = client.recv(65536).decode()
    wanted = next(line.split(": ")[1] for line in said.split("\r\n") if line.startswith("x-request-id"))
    assert "status=400 outcome=answered code=bad_request_head" in line_of(router, log, wanted)


def test_decision_says_how_long_the_request_waited(router: RunningRouter, log: Path) -> None:
    first = threading.Thread(target=router.ask, args=([5] * 1500,), kwargs={"max_tokens": 1})
    first.start()
    router.wait("the worker is busy", lambda: router.get("/loads")["loads"][0]["prefill_tokens"] > 0, 10)
    answer = router.ask([6] * 64, headers={"x-request-id": "waited"})
    first.join()
    assert answer.status_code == 200
    assert router.decision(answer)["waited_ms"] > 0
    assert "queue_ms=0.0 " not in line_of(router, log, "waited")


def test_refusal_for_a_limit_is_kept_with_its_limit_and_who_was_barred(router: RunningRouter) -> None:
    answer = router.ask(headers={"x-kvctl-workers": "nobody"})
    assert answer.status_code == 503
    shown = router.decision(answer)
    assert shown["refused"]["status"] == 503
    assert [(row["worker"], row["why_not"]) for row in shown["candidates"]] == [("w1", "not_allowed")]
    listed = json.loads(router.control.get("/decisions").content)["refusals"]
    assert listed[0]["id"] == shown["id"]
