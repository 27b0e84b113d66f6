"""What a hostile client or a careless operator sends is refused in words, and costs nobody else anything."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys

import pytest

from bench.sim.fleet import SimFleet
from tests.live.conftest import RunningRouter, running_router
from tests.live.test_errors import free_port

DEEP = b"[" * 100_000 + b"]" * 100_000


def metric(router: RunningRouter, name: str) -> float:
    lines = router.control.get("/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_json_that_nests_without_end_is_a_400(kv_router: RunningRouter, path: str) -> None:
    answer = kv_router.http.post(path, content=b'{"model": "sim", "x": %b}' % DEEP)
    assert answer.status_code == 400
    assert "nested too deeply" in answer.json()["error"]["message"]


def test_json_that_nests_without_end_on_other_paths_is_the_engines_to_refuse(kv_router: RunningRouter) -> None:
    answer = kv_router.http.post("/v1/embeddings", content=b'{"model": "sim", "x": %b}' % DEEP)
    assert answer.headers["x-kvctl-worker"]
    assert metric(kv_router, "kvctl_faults_total") == 0


@pytest.mark.parametrize("path", ["/explain", "/workers", "/busy-thresholds"])
def test_json_that_nests_without_end_is_a_400_on_the_admin_port(kv_router: RunningRouter, path: str) -> None:
    assert kv_router.control.post(path, content=b'{"url": %b}' % DEEP).status_code == 400


@pytest.mark.parametrize(
    "body",
    [{"url": "http://[::1"}, {"url": "http://h:1", "ranks": "9" * 5000}, {"url": "http://h:1", "id": []}, [], 3, None],
)
def test_a_worker_that_cannot_be_is_a_400(kv_router: RunningRouter, body: object) -> None:
    answer = kv_router.control.post("/workers", json=body)
    assert answer.status_code == 400, answer.text


def test_an_endless_limit_is_a_400(kv_router: RunningRouter) -> None:
    assert kv_router.control.get("/decisions", params={"limit": "9" * 5000}).status_code == 400


def test_white_space_around_a_header_is_not_part_of_it(kv_router: RunningRouter) -> None:
    connection = http.client.HTTPConnection(kv_router.url.removeprefix("http://"), timeout=30)
    pinned = {"x-kvctl-worker": "sim-1 ", "x-kvctl-dp-rank": "0\t", "x-request-id": "mine "}
    connection.request("POST", "/v1/completions", b'{"model": "sim", "prompt": "a", "max_tokens": 1}', pinned)
    assert connection.getresponse().headers["x-kvctl-worker"] == "sim-1"
    connection.close()
    assert kv_router.get("/decisions/mine")["winner"]["worker"] == "sim-1"


def test_a_large_body_is_routed_by_its_content_too(kv_router: RunningRouter) -> None:
    prompt = [7 + number % 90 for number in range(1_500)]
    decisions = []
    for _ in range(2):
        answer = kv_router.ask(prompt, user="u" * 400_000)
        assert answer.status_code == 200, answer.text
        decisions.append(kv_router.decision(answer))
    assert [decision["prompt_tokens"] for decision in decisions] == [1_500, 1_500]
    assert decisions[1]["predicted_cached_tokens"] == 1_488


def test_a_large_body_that_is_no_json_is_a_400(kv_router: RunningRouter) -> None:
    answer = kv_router.http.post("/v1/completions", content=b'{"model": "sim", "prompt": "' + b"x" * 400_000)
    assert answer.status_code == 400
    assert "JSON" in answer.json()["error"]["message"]


def test_made_up_models_leave_nothing_behind_while_a_worker_has_not_told_its_own(sims: SimFleet) -> None:
    dead = f"http://127.0.0.1:{free_port()},id=dead"
    with running_router("--worker", f"{sims.engines[0].url},id=alive", "--worker", dead) as router:
        for number in range(300):
            answer = router.ask("a", model=f"made-up-{number}")
            assert answer.status_code == 503, answer.text
        answer = router.ask("def main(): pass")
        assert router.decision(answer)["degraded"] == []


def test_sigterm_while_starting_ends_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [
            sys.executable,
            "-m",
            "kvctl",
            "serve",
            "--port",
            "0",
            "--admin-port",
            "0",
            "--worker",
            url,
            "-o",
            "json",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None and process.stdout is not None
            seen = ""
            while "Worker registered" not in seen:
                line = process.stderr.readline()
                assert line, seen
                seen += line
            process.send_signal(signal.SIGTERM)
            rest = process.stderr.read()
            assert process.stdout.read() == "", "it was never ready"
            assert process.wait(40) == 0
            assert "Routing" not in rest
            assert "never awaited" not in rest


def test_the_same_port_twice_is_a_usage_error() -> None:
    port = str(free_port())
    command = [sys.executable, "-m", "kvctl", "serve", "--port", port, "--admin-port", port]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "--admin-port" in ended.stderr.splitlines()[-1]


def test_a_long_list_of_decisions_is_whole_and_newest_first(kv_router: RunningRouter) -> None:
    """The list is written in slices, so that requests are not held up by it."""
    asked = [kv_router.ask(f"number {number}").headers["x-kvctl-decision"] for number in range(30)]
    for query in ("limit=30", "limit=30&full=1"):
        found = kv_router.get(f"/decisions?{query}")
        assert [decision["id"] for decision in found["decisions"]] == asked[::-1]
        assert found["kept"] >= 30
    assert found["decisions"][0] == kv_router.get(f"/decisions/{asked[-1]}")
