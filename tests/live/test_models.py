"""Several models behind one router, other names for them, and adapters as models of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from bench.sim.fleet import SimFleet
from tests.live.conftest import RunningRouter, running_router


@pytest.fixture(scope="module")
def router() -> Iterator[RunningRouter]:
    """Two engines of one model, one of another."""
    with (
        SimFleet(2, speedup=50, model="org/alpha") as alpha,
        SimFleet(1, speedup=50, model="org/beta") as beta,
    ):
        workers: list[str] = []
        for name, engine in zip(("a-0", "a-1", "b-0"), [*alpha.engines, *beta.engines], strict=True):
            workers += ["--worker", f"{engine.url},id={name}"]
        aliases = ["--model-alias", "fast=org/beta", "--model-alias", "gpt=org/alpha", "--model-alias", "gone=org/x"]
        with running_router("--seed", "3", *aliases, *workers) as running:
            yield running


def served(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-kvctl-worker"])


def test_a_request_goes_to_a_worker_of_its_model(router: RunningRouter) -> None:
    alpha = Counter(served(router.ask(f"to alpha {number}", model="org/alpha")) for number in range(12))
    beta = Counter(served(router.ask(f"to beta {number}", model="org/beta")) for number in range(6))
    assert set(alpha) == {"a-0", "a-1"}
    assert beta == {"b-0": 6}


def test_a_prompt_of_one_model_is_no_hit_for_the_other(router: RunningRouter) -> None:
    prompt = "a prompt that both are asked, long enough for a few blocks of any size " * 8

    def cached(model: str) -> int:
        found: int = router.decision(router.ask(prompt, model=model))["predicted_cached_tokens"]
        return found

    assert cached("org/alpha") == 0
    assert cached("org/alpha") > 0
    assert cached("org/beta") == 0


def test_all_models_and_their_other_names_are_listed(router: RunningRouter) -> None:
    cards = {card["id"]: card for card in router.http.get("/v1/models").json()["data"]}
    assert set(cards) == {"org/alpha", "org/beta", "fast", "gpt"}
    assert cards["fast"]["root"] == "org/beta"
    assert cards["fast"]["max_model_len"] == cards["org/beta"]["max_model_len"]


def test_an_unknown_model_is_a_404_that_names_the_known_ones(router: RunningRouter) -> None:
    answer = router.ask("x", model="org/gamma")
    assert answer.status_code == 404
    assert "available: org/alpha, org/beta" in answer.json()["error"]["message"]


def test_an_alias_of_a_model_that_nobody_serves_is_a_404_that_names_the_model(router: RunningRouter) -> None:
    answer = router.ask("x", model="gone")
    assert answer.status_code == 404
    assert "org/x" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hello", "max_tokens": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}),
        ("/tokenize", {"prompt": "hello"}),
    ],
)
def test_an_alias_is_served_by_its_model_on_every_path(router: RunningRouter, path: str, body: dict[str, Any]) -> None:
    """The engine itself knows only its own name: it would refuse the alias."""
    assert served(router.http.post(path, json=body | {"model": "fast"})) == "b-0"


def test_an_alias_and_its_model_share_their_cached_blocks(router: RunningRouter) -> None:
    prompt = "one prompt under two names, long enough for a few blocks of any size " * 8
    home = served(router.ask(prompt, model="org/alpha"))
    again = router.ask(prompt, model="gpt")
    assert served(again) == home
    assert router.decision(again)["predicted_cached_tokens"] > 0
    assert router.decision(again)["model"] == "org/alpha"


def test_an_alias_can_be_explained(router: RunningRouter) -> None:
    answer = router.control.post("/explain", json={"model": "fast", "prompt": "hello"})
    assert answer.json()["winner"]["worker"] == "b-0"


def test_a_wrong_alias_is_refused_in_one_line() -> None:
    command = [sys.executable, "-m", "kvctl", "serve", "--model-alias", "fast"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "alias 'fast': expected NAME=MODEL" in done.stderr
    assert "Traceback" not in done.stderr


# -- adapters ------------------------------------------------------------------------------------------------------


class Engine:
    """Answers like vLLM with LoRA: it lists its model and the adapters loaded now, and refuses others."""

    def __init__(self) -> None:
        self.adapters: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path == "/v1/models":
                    cards = [{"id": "base", "parent": None}, *({"id": a, "parent": "base"} for a in outer.adapters)]
                    self._answer(200, {"object": "list", "data": cards})
                else:
                    self._answer(200 if self.path == "/health" else 404, {})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.asked.append(body)
                outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                known = body.get("model") in ("base", *outer.adapters)
                self._answer(200 if known else 404, {"choices": [{"text": "x", "finish_reason": "stop"}]})

            def _answer(self, status: int, data: dict[str, Any]) -> None:
                text = json.dumps(data).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *arguments: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def engines() -> Iterator[tuple[Engine, Engine]]:
    pair = Engine(), Engine()
    yield pair
    for engine in pair:
        engine.close()


def test_requests_for_an_adapter_go_where_it_is_loaded_also_when_that_changes(engines: tuple[Engine, Engine]) -> None:
    first, second = engines
    first.adapters = ["sql"]
    workers = ["--worker", f"{first.url},id=first", "--worker", f"{second.url},id=second"]
    with running_router("--seed", "2", "--health-interval", "0.1", *workers) as router:

        def homes(model: str) -> set[str]:
            ids = [[number, 7] * 40 for number in range(12)]
            return {served(router.ask(prompt, model=model)) for prompt in ids}

        def listed() -> set[str]:
            return {card["id"] for card in router.http.get("/v1/models").json()["data"]}

        assert homes("sql") == {"first"}
        assert homes("base") == {"first", "second"}
        second.adapters = ["sql", "chat"]
        router.wait("the new adapters are known", lambda: listed() == {"base", "sql", "chat"})
        assert homes("sql") == {"first", "second"}
        assert homes("chat") == {"second"}
        first.adapters = []
        router.wait("the adapter is known to be gone", lambda: router.get("/workers/first")["models"] == ["base"])
        assert homes("sql") == {"second"}
        assert {body["model"] for body in second.asked} == {"base", "sql", "chat"}


def test_prompts_under_an_adapter_and_without_are_no_hit_for_each_other(engines: tuple[Engine, Engine]) -> None:
    first, _second = engines
    first.adapters = ["sql"]
    with running_router("--worker", f"{first.url},id=first,block-size=16") as router:
        prompt = [5] * 100

        def cached(model: str) -> int:
            found: int = router.decision(router.ask(prompt, model=model))["predicted_cached_tokens"]
            return found

        assert (cached("base"), cached("sql"), cached("base"), cached("sql")) == (0, 0, 96, 96)
