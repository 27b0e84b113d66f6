"""What a client or an operator is told when something is wrong, and what the router answers by itself."""

from __future__ import annotations

import http.server
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench.sim.fleet import SimFleet
from tests.live.conftest import RunningRouter, running_router


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def small(sims: SimFleet) -> Iterator[RunningRouter]:
    """A router with one short-context engine without KV events, and one worker that does not exist."""
    with (
        SimFleet(1, speedup=20, max_model_len=600, no_kv_events=True) as fleet,
        running_router(
            "--worker", f"{fleet.engines[0].url},id=alive", "--worker", f"http://127.0.0.1:{free_port()},id=dead"
        ) as router,
    ):
        yield router


def error(answer: httpx.Response) -> dict[str, object]:
    body = answer.json()
    assert set(body["error"]) >= {"message", "type", "code", "param"}
    found: dict[str, object] = body["error"]
    return found


def test_a_body_that_is_not_json_is_a_400(kv_router: RunningRouter) -> None:
    answer = kv_router.http.post("/v1/completions", content=b'{"model": "sim", "prompt": ')
    assert answer.status_code == 400
    assert "JSON" in str(error(answer)["message"])


def test_a_missing_prompt_is_a_400_that_names_it(kv_router: RunningRouter) -> None:
    answer = kv_router.http.post("/v1/completions", json={"model": "sim"})
    assert answer.status_code == 400
    assert error(answer)["param"] == "prompt"


def test_an_unknown_model_is_a_404_that_lists_the_models(kv_router: RunningRouter) -> None:
    answer = kv_router.ask(model="nope")
    assert answer.status_code == 404
    assert "'nope'" in str(error(answer)["message"])
    assert "sim" in str(error(answer)["message"])


def test_a_prompt_too_long_for_the_model_is_a_400_with_both_lengths(small: RunningRouter) -> None:
    answer = small.ask([7] * 700)
    assert answer.status_code == 400
    assert "700 tokens" in str(error(answer)["message"])
    assert "600" in str(error(answer)["message"])


def test_a_pin_on_a_worker_that_is_not_registered_is_a_400(kv_router: RunningRouter) -> None:
    answer = kv_router.ask(headers={"x-kvctl-worker": "sim-9"})
    assert answer.status_code == 400
    assert "sim-9" in str(error(answer)["message"])


def test_two_different_dp_ranks_are_a_400(kv_router: RunningRouter) -> None:
    answer = kv_router.ask(headers={"x-kvctl-dp-rank": "0", "x-data-parallel-rank": "1"})
    assert answer.status_code == 400
    assert "dp ranks" in str(error(answer)["message"])


def test_a_web_server_that_is_no_engine_is_named() -> None:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with running_router("--worker", f"http://127.0.0.1:{server.server_port},id=page") as router:
            assert "not like an engine" in router.log()
        server.shutdown()


def test_metrics_tell_of_tokens_and_kv_sources(kv_router: RunningRouter) -> None:
    kv_router.ask([4] * 64)
    text = kv_router.control.get("/metrics").text
    assert re.search(r'kvctl_tokenized_prompts_total\{source="given"\} [1-9]', text)
    assert re.search(r'kvctl_kv_events_total\{what="frames",worker="sim-[0-3]"\} [1-9]', text)
    assert 'kvctl_token_cache_limit_bytes{cache="engine_answers"}' in text
    assert "kvctl_decision_log_limit_bytes" in text


def test_a_pin_on_a_dead_worker_is_a_503_and_is_not_rerouted(small: RunningRouter) -> None:
    answer = small.ask(headers={"x-kvctl-worker": "dead"})
    assert answer.status_code == 503
    assert "unhealthy" in str(error(answer)["message"])
    assert answer.headers["retry-after"]


def test_a_dead_worker_is_not_chosen(small: RunningRouter) -> None:
    assert {small.ask(f"r {number}").headers["x-kvctl-worker"] for number in range(6)} == {"alive"}


def test_a_worker_without_kv_events_is_routed_in_approximate_mode_and_flagged(small: RunningRouter) -> None:
    answers = [small.ask([5] * 100) for _ in range(2)]
    decisions = [small.decision(answer) for answer in answers]
    assert "no_kv_events" in decisions[0]["degraded"]
    assert decisions[1]["predicted_cached_tokens"] == 96
    assert answers[1].json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 96


def test_no_workers_is_a_503_that_says_how_to_add_one_and_adding_one_helps(sims: SimFleet) -> None:
    with running_router() as router:
        answer = router.ask()
        assert answer.status_code == 503
        assert "--worker" in str(error(answer)["message"])
        assert answer.headers["retry-after"]
        assert router.http.get("/health").status_code == 200
        assert router.http.get("/ready").status_code == 503
        added = router.control.post("/workers", json={"url": sims.engines[0].url, "id": "late"})
        assert added.status_code == 201
        router.wait("the new worker is up", lambda: router.http.get("/ready").status_code == 200)
        assert router.ask().headers["x-kvctl-worker"] == "late"
        again = router.control.post("/workers", json={"url": sims.engines[0].url, "id": "late"})
        assert again.status_code == 409
        assert router.control.delete("/workers/late").status_code == 200
        assert router.ask().status_code == 503
        assert router.control.delete("/workers/late").status_code == 404


def test_a_drained_worker_gets_no_new_requests(sims: SimFleet, worker_options: list[str]) -> None:
    with running_router("--router-mode", "round-robin", *worker_options) as router:
        assert router.control.post("/workers/sim-1/drain").status_code == 200
        assert {router.ask().headers["x-kvctl-worker"] for _ in range(6)} == {"sim-0", "sim-2", "sim-3"}
        assert router.control.post("/workers/sim-1/undrain").status_code == 200
        assert "sim-1" in {router.ask().headers["x-kvctl-worker"] for _ in range(8)}


def test_the_workers_file_is_read_again_when_it_changes(sims: SimFleet, tmp_path: Path) -> None:
    file = tmp_path / "workers.txt"
    file.write_text(f"{sims.engines[0].url},id=one\n")
    with running_router("--workers-file", str(file), "--health-interval", "0.2") as router:

        def ids() -> set[str]:
            return {worker["id"] for worker in router.get("/workers")["workers"]}

        assert ids() == {"one"}
        file.write_text(f"{sims.engines[0].url},id=one\n{sims.engines[1].url},id=two\n")
        router.wait("the second worker is there", lambda: ids() == {"one", "two"})
        file.write_text("http://x:1,colour=red\n")
        router.wait("the mistake is logged", lambda: "colour" in router.log())
        assert ids() == {"one", "two"}
        file.write_text(f"{sims.engines[1].url},id=two\n")
        router.wait("the first worker is gone", lambda: ids() == {"two"})


def test_all_busy_is_a_529_that_names_the_threshold(worker_options: list[str]) -> None:
    with running_router(*worker_options) as router:
        router.control.post("/busy-thresholds", json={"decode_blocks": 0.0})
        with router.http.stream(
            "POST", "/v1/completions", json={"model": "sim", "prompt": [9] * 64, "max_tokens": 2000, "stream": True}
        ) as running:
            pinned = running.headers["x-kvctl-worker"]
            answer = router.ask(headers={"x-kvctl-worker": pinned})
            assert answer.status_code == 529
            assert "busy" in str(error(answer)["message"])
            assert answer.headers["retry-after"]
        router.control.post("/busy-thresholds", json={"decode_blocks": None})
        assert router.ask(headers={"x-kvctl-worker": pinned}).status_code == 200
        assert router.control.post("/busy-thresholds", json={"decode_blocks": 7}).status_code == 400


def test_a_port_in_use_ends_serve_with_one_line_and_exit_code_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = subprocess.run(
            [sys.executable, "-m", "kvctl", "serve", "--port", str(port), "--admin-port", "0"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert result.returncode == 2
    assert f"127.0.0.1:{port}: Address already in use; choose another with --port" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_router_answers_models_health_ready_and_version_itself(kv_router: RunningRouter) -> None:
    models = kv_router.http.get("/v1/models").json()
    assert [card["id"] for card in models["data"]] == ["sim"]
    assert kv_router.http.get("/health").json() == {"status": "ok"}
    assert kv_router.http.get("/ready").json()["workers_up"] == 4
    assert kv_router.http.get("/version").json()["router"] == "kvctl"


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/metrics", "/sleep", "/nothing"])
def test_paths_that_are_not_for_clients_are_a_404(kv_router: RunningRouter, path: str) -> None:
    answer = kv_router.http.post(path)
    assert answer.status_code == 404
    assert path in str(error(answer)["message"])


@pytest.mark.parametrize("path", ["/v1/../metrics", "/v1/%2e%2e/metrics", "/v1/.%2E/sleep"])
def test_a_path_that_climbs_out_of_v1_is_a_404(kv_router: RunningRouter, path: str) -> None:
    url = httpx.URL(kv_router.url)
    with socket.create_connection((url.host, url.port or 80), timeout=10) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 404 ")


def test_engine_paths_pass_through(kv_router: RunningRouter) -> None:
    answer = kv_router.http.post("/tokenize", json={"model": "sim", "prompt": "hello"})
    assert answer.status_code == 200
    assert answer.json()["count"] == len(answer.json()["tokens"])
    assert "x-kvctl-worker" in answer.headers


def test_a_clients_request_id_is_kept_and_finds_the_decision(kv_router: RunningRouter) -> None:
    answer = kv_router.ask(headers={"x-request-id": "mine-42"})
    assert answer.headers.get_list("x-request-id") == ["mine-42"]
    assert kv_router.get("/decisions/mine-42")["id"] == answer.headers["x-kvctl-decision"]


def test_a_request_without_an_id_gets_one(kv_router: RunningRouter) -> None:
    assert kv_router.ask().headers["x-request-id"]


def test_explain_sends_nothing_and_agrees_with_the_next_decision(kv_router: RunningRouter) -> None:
    prompt = [1500] * 200
    kv_router.ask(prompt)
    before = kv_router.get("/loads")
    shown = kv_router.control.post("/explain", json={"model": "sim", "prompt": prompt}).json()
    assert abs(shown["at"] - time.time()) < 3600  # seconds of the calendar, as in the records of decisions
    assert kv_router.get("/loads") == before
    decision = kv_router.decision(kv_router.ask(prompt))
    assert shown["winner"] == decision["winner"]
    assert shown["predicted_cached_tokens"] == decision["predicted_cached_tokens"] == 192


def test_explain_on_the_command_line_shows_a_decision(kv_router: RunningRouter) -> None:
    answer = kv_router.ask("why")
    for arguments in ([answer.headers["x-kvctl-decision"]], ["--prompt", "why", "--model", "sim"]):
        result = explain(*arguments, "--admin", kv_router.admin)
        assert result.returncode == 0, result.stderr
        assert answer.headers["x-kvctl-worker"] in result.stdout
        assert "prefill" in result.stdout
        assert max(map(len, result.stdout.splitlines())) <= 80


def explain(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvctl", "explain", *arguments], capture_output=True, text=True, timeout=60
    )


def test_explain_of_an_unknown_id_says_so_with_exit_code_1(kv_router: RunningRouter) -> None:
    result = explain("d-nothing", "--admin", kv_router.admin)
    assert result.returncode == 1
    assert "d-nothing" in result.stderr


def test_explain_of_a_mode_that_does_not_exist_is_usage(kv_router: RunningRouter) -> None:
    result = explain("--prompt", "x", "--mode", "fastest", "--admin", kv_router.admin)
    assert result.returncode == 2
    assert "round-robin" in result.stderr


def test_explain_asked_of_something_else_says_that_it_is_no_admin_port(sims: SimFleet) -> None:
    result = explain("--prompt", "x", "--admin", f"{sims.engines[0].url}/tokenize?")
    assert result.returncode in (1, 3)
    assert "Traceback" not in result.stderr
    assert "internal error" not in result.stderr


def test_chat_responses_and_messages_are_routed_by_their_text(kv_router: RunningRouter) -> None:
    words = "the quick brown fox jumps over the lazy dog " * 30
    bodies = {
        "/v1/chat/completions": {"messages": [{"role": "system", "content": words}, {"role": "user", "content": "go"}]},
        "/v1/responses": {"instructions": words, "input": "go"},
        "/v1/messages": {"system": words, "messages": [{"role": "user", "content": "go"}], "max_tokens": 2},
    }
    workers = set()
    for path, body in bodies.items():
        answer = kv_router.http.post(path, json={"model": "sim", "max_tokens": 2} | body)
        assert answer.status_code == 200, answer.text
        decision = kv_router.decision(answer)
        assert decision["prompt_tokens"] > 200
        assert "approximate_tokens" not in decision["degraded"]
        workers.add(answer.headers["x-kvctl-worker"])
    assert len(workers) == 1
