"""Engines that say they are well and fail every request: the breaker, its figures, and what a client sees of it."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.sim.fleet import SimFleet
from tests.live.conftest import running_router


@contextlib.contextmanager
def sick_engine(how: str) -> Iterator[str]:
    """The URL of an engine whose health checks are good; each POST is a 500, a 503, or a reset. `how` "heals" it."""

    class Sick(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            data = {"object": "list", "data": [{"id": "sim"}]} if self.path == "/v1/models" else {}
            self._say(200, json.dumps(data).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", "0")))
            if how == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                return
            self._say(int(how), b'{"error":"sick"}')

        def _say(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, address: object) -> None:
            pass

    with Server(("127.0.0.1", 0), Sick) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(("how", "cause"), [("500", "consecutive_5xx"), ("reset", "consecutive_failures")])
def test_an_engine_that_fails_every_request_is_taken_out(sims: SimFleet, how: str, cause: str) -> None:
    with sick_engine(how) as sick:
        good = sims.engines[0]
        arguments = ("--worker", good.spec, "--worker", f"{sick},id=sick", "--router-mode", "round-robin")
        with running_router(*arguments, "--breaker-ejection", "600") as router:
            for number in range(30):
                router.ask(f"before {number}")
            circuits = {worker["id"]: worker["circuit"] for worker in router.get("/workers")["workers"]}
            assert circuits["sick"]["state"] == "open"
            assert circuits["sick"]["ejections"] == {cause: 1}
            assert circuits[good.id]["state"] == "closed"
            answers = [router.ask(f"after {number}") for number in range(10)]
            assert {(one.status_code, one.headers["x-kvctl-worker"]) for one in answers} == {(200, good.id)}
            shown = {row["worker"]: row["why_not"] for row in router.decision(answers[0])["candidates"]}
            assert shown == {good.id: None, "sick": "circuit_open"}
            metrics = router.control.get("/metrics").text
            assert re.search(r'^kvctl_breaker_state\{worker="sick"\} 2\.0$', metrics, re.M)
            assert re.search(rf'^kvctl_ejections_total\{{cause="{cause}",worker="sick"\}} 1\.0$', metrics, re.M)
            assert "Worker sick: its circuit is open" in router.log()


def test_an_engine_that_declines_with_503_costs_no_client_its_answer(sims: SimFleet) -> None:
    with sick_engine("503") as sick:
        arguments = ("--worker", sims.engines[0].spec, "--worker", f"{sick},id=sick", "--router-mode", "round-robin")
        with running_router(*arguments) as router:
            assert {router.ask(f"{number}").status_code for number in range(20)} == {200}


def test_with_the_breaker_off_nobody_is_taken_out(sims: SimFleet) -> None:
    with sick_engine("500") as sick:
        arguments = ("--worker", sims.engines[0].spec, "--worker", f"{sick},id=sick", "--router-mode", "round-robin")
        with running_router(*arguments, "--breaker", "off") as router:
            statuses = [router.ask(f"{number}").status_code for number in range(40)]
            assert statuses.count(500) == 20
            assert router.get("/workers/sick")["circuit"] is None


def test_an_empty_retry_budget_is_named_in_the_answer(sims: SimFleet) -> None:
    with sick_engine("reset") as sick:
        arguments = ("--worker", f"{sick},id=sick", "--worker", sims.engines[0].spec, "--router-mode", "round-robin")
        budget = ("--retry-budget", "0", "--retry-floor", "0", "--breaker", "off")
        with running_router(*arguments, *budget) as router:
            answers = [router.ask(f"{number}") for number in range(2)]
            refused = next(one for one in answers if one.status_code != 200)
            assert refused.status_code == 502
            assert refused.json()["error"]["code"] == "retry_budget"
            assert refused.headers["x-kvctl-worker"] == "sick"
            metrics = router.control.get("/metrics").text
            assert "kvctl_retry_budget_exhausted_total 1.0" in metrics


def test_requests_at_an_engine_that_hangs_are_answered_by_another(sims: SimFleet) -> None:
    with SimFleet(1) as hung:
        pid = hung.pid
        assert pid is not None
        arguments = (
            "--worker",
            hung.engines[0].spec.replace("id=sim-0", "id=hung"),
            "--worker",
            sims.engines[0].spec,
        )
        checks = ("--health-interval", "0.2", "--health-timeout", "0.5", "--router-mode", "round-robin")
        with running_router(*arguments, *checks) as router:
            os.kill(pid, signal.SIGSTOP)
            with ThreadPoolExecutor(6) as pool:
                answers = list(pool.map(lambda number: router.ask(f"prompt {number}"), range(6)))
            os.kill(pid, signal.SIGCONT)
            assert [(one.status_code, one.headers["x-kvctl-worker"]) for one in answers] == [(200, "sim-0")] * 6
            metrics = router.control.get("/metrics").text
            assert re.search(r'^kvctl_legs_total\{outcome="worker_down",worker="hung"\} [1-9]', metrics, re.M)
            assert router.get("/loads")["open_bookings"] == 0
