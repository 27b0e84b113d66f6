"""API keys, the engines' key and the admin port's token, seen from outside."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.live.conftest import RunningRouter, running_router
from tests.live.scripted_engine import ScriptedEngine, scripted_engine

KEY, NARROW, FEW, TOKENS = "kv-of-all-the-world", "kv-of-one-model", "kv-of-few-requests", "kv-of-few-tokens"
ENGINE_KEY = "the-engines-own-key"
ADMIN = "admin-token-of-the-test"


def entry(name: str, key: str, **more: object) -> str:
    return json.dumps({"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest()} | more) + "\n"


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with scripted_engine(needs=ENGINE_KEY) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("callers")


@pytest.fixture(scope="module")
def router(engine: ScriptedEngine, folder: Path) -> Iterator[RunningRouter]:
    keys = folder / "keys.jsonl"
    keys.write_text(
        entry("all", KEY, tenant="house")
        + entry("narrow", NARROW, models=["m"])
        + entry("few", FEW, **{"requests-per-minute": 2})
        + entry("tokens", TOKENS, **{"tokens-per-minute": 100})
    )
    with running_router(
        *("--worker", f"{engine.url},id=w1,block-size=16", "--api-keys-file", str(keys)),
        *("--access-log", str(folder / "access.log"), "--access-log-format", "json"),
        *("--admin-host", "0.0.0.0", "--admin-open-metrics", "--tenant-limit", "50"),
        variables={"KVCTL_UPSTREAM_KEY": ENGINE_KEY, "KVCTL_ADMIN_TOKEN": ADMIN},
    ) as running:
        running.control = httpx.Client(
            base_url=running.admin.replace("0.0.0.0", "127.0.0.1"), headers={"authorization": f"Bearer {ADMIN}"}
        )
        running.wait("the engine is up", lambda: running.http.get("/ready").status_code == 200)
        yield running


def ask(router: RunningRouter, key: str | None, **fields: object) -> httpx.Response:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    body = {"model": "m", "prompt": "hello", "max_tokens": 2} | fields
    return router.http.post("/v1/completions", json=body, headers=headers)


def test_good_key_is_served(router: RunningRouter) -> None:
    assert ask(router, KEY).status_code == 200


def test_anthropics_spelling_is_taken(router: RunningRouter) -> None:
    body = {"model": "m", "prompt": "hello"}
    assert router.http.post("/v1/completions", json=body, headers={"x-api-key": KEY}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/v1/completions", "/tokenize", "/nothing"])
def test_without_a_key_every_path_is_a_401_with_an_id(router: RunningRouter, path: str) -> None:
    answer = router.http.get(path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["type"] == "authentication_error"
    assert answer.headers["x-request-id"]


def test_unknown_and_missing_keys_get_the_same_answer(router: RunningRouter) -> None:
    assert ask(router, None).content == ask(router, "wrong").content == ask(router, KEY + "x").content


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_need_no_key(router: RunningRouter, path: str) -> None:
    assert router.http.get(path).status_code == 200


def test_models_lists_what_the_key_may_use(router: RunningRouter) -> None:
    def models(key: str) -> list[str]:
        cards = router.http.get("/v1/models", headers={"x-api-key": key}).json()["data"]
        return sorted(card["id"] for card in cards)

    assert models(KEY) == ["m", "other"]
    assert models(NARROW) == ["m"]


@pytest.mark.parametrize("model", ["other", "unknown", None])
def test_model_that_is_not_allowed_is_a_403_that_tells_of_no_other(router: RunningRouter, model: str | None) -> None:
    answer = ask(router, NARROW, model=model)
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error["code"] == "model_not_allowed"
    assert error["message"].endswith("allowed: m")


def test_past_the_requests_of_a_minute_is_a_429_that_names_limit_value_and_current(router: RunningRouter) -> None:
    statuses = [ask(router, FEW).status_code for _ in range(3)]
    answer = ask(router, FEW)
    assert statuses == [200, 200, 429]
    error = answer.json()["error"]
    assert (error["limit"], error["value"], error["current"]) == ("requests-per-minute", 2, 2)
    assert 1 <= int(answer.headers["retry-after"]) <= 60


def test_tokens_are_settled_by_what_the_engine_reports(router: RunningRouter) -> None:
    assert [ask(router, TOKENS).status_code for _ in range(3)] == [200, 200, 429]
    error = ask(router, TOKENS).json()["error"]
    assert (error["limit"], error["value"], error["current"]) == ("tokens-per-minute", 100, 84)


def test_refusal_can_be_looked_up_by_its_decision_id(router: RunningRouter) -> None:
    answer = ask(router, NARROW, model="other")
    shown = router.get(f"/decisions/{answer.headers['x-kvctl-decision']}")
    assert shown["winner"] is None
    assert shown["refused"]["code"] == "model_not_allowed"
    assert shown["request_id"] == answer.headers["x-request-id"]


def test_engine_gets_its_own_key_and_never_the_callers(router: RunningRouter, engine: ScriptedEngine) -> None:
    body = {"model": "m", "prompt": "hello"}
    headers = {"authorization": f"Bearer {KEY}", "x-api-key": KEY, "x-other": "stays"}
    router.http.post("/v1/completions", json=body, headers=headers)
    last = engine.of("/v1/completions")[-1]
    assert last.all("authorization") == [f"Bearer {ENGINE_KEY}"]
    assert last.all("x-api-key") == []
    assert last.all("x-other") == ["stays"]


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/tokenize"])
def test_probes_and_tokenising_bring_the_engines_key(router: RunningRouter, engine: ScriptedEngine, path: str) -> None:
    assert ask(router, KEY).status_code == 200
    assert {tuple(one.all("authorization")) for one in engine.of(path)} == {(f"Bearer {ENGINE_KEY}",)}


def test_unfit_request_id_is_replaced_for_the_engine_too(router: RunningRouter, engine: ScriptedEngine) -> None:
    headers = {"authorization": f"Bearer {KEY}", "x-request-id": "x" * 129}
    answer = router.http.post("/v1/completions", json={"model": "m", "prompt": "hello"}, headers=headers)
    given = answer.headers["x-request-id"]
    assert given.startswith("r-")
    assert engine.of("/v1/completions")[-1].all("x-request-id") == [given]


def test_trace_context_passes_untouched_where_nothing_is_traced(router: RunningRouter, engine: ScriptedEngine) -> None:
    context = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "v=1"}
    headers = {"authorization": f"Bearer {KEY}"} | context
    router.http.post("/v1/completions", json={"model": "m", "prompt": "hello"}, headers=headers)
    last = engine.of("/v1/completions")[-1]
    assert {name: last.all(name) for name in context} == {name: [value] for name, value in context.items()}


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "access.log").read_text().splitlines()]


def test_access_log_tells_who_asked_what_and_how_it_went(router: RunningRouter, folder: Path) -> None:
    answer = ask(router, KEY)
    wanted = answer.headers["x-request-id"]
    router.wait("the line is written", lambda: any(line["request_id"] == wanted for line in lines(folder)))
    (line,) = (line for line in lines(folder) if line["request_id"] == wanted)
    assert line["decision_id"] == answer.headers["x-kvctl-decision"]
    assert (line["caller"], line["tenant"], line["worker"], line["model"]) == ("all", "house", "w1", "m")
    assert (line["status"], line["outcome"], line["retries"]) == (200, "ok", 0)
    assert (line["prompt_tokens"], line["output_tokens"]) == (40, 2)
    assert line["bytes_out"] == len(answer.content)


def test_access_log_names_the_caller_of_a_refused_request(router: RunningRouter, folder: Path) -> None:
    answer = ask(router, NARROW, model="other")
    wanted = answer.headers["x-request-id"]
    router.wait("the line is written", lambda: any(line["request_id"] == wanted for line in lines(folder)))
    (line,) = (line for line in lines(folder) if line["request_id"] == wanted)
    assert (line["caller"], line["status"], line["code"]) == ("narrow", 403, "model_not_allowed")


def test_metrics_count_by_caller(router: RunningRouter) -> None:
    ask(router, KEY)
    text = router.control.get("/metrics").text
    assert 'kvctl_caller_requests_total{caller="all"}' in text
    assert 'kvctl_caller_open_requests{caller="all"} 0.0' in text


def test_admin_port_needs_its_token(router: RunningRouter) -> None:
    base = str(router.control.base_url)
    assert httpx.get(f"{base}/config").status_code == 401
    assert httpx.get(f"{base}/config", headers={"authorization": "Bearer wrong"}).status_code == 401
    assert httpx.post(f"{base}/reset").status_code == 401
    assert router.control.get("/config").status_code == 200


def test_health_and_opened_metrics_of_the_admin_port_need_none(router: RunningRouter) -> None:
    base = str(router.control.base_url)
    assert httpx.get(f"{base}/health").status_code == 200
    assert httpx.get(f"{base}/metrics").status_code == 200


def kvctl(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KVCTL_")} | variables
    command = [sys.executable, "-m", "kvctl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def test_explain_sends_the_token_and_shows_a_refusal(router: RunningRouter) -> None:
    decision = ask(router, NARROW, model="other").headers["x-kvctl-decision"]
    done = kvctl("explain", decision, "--admin", str(router.control.base_url), KVCTL_ADMIN_TOKEN=ADMIN)
    assert done.returncode == 0, done.stderr
    assert "refused with 403 model_not_allowed" in done.stdout


def test_explain_without_the_token_says_which_variable_to_set(router: RunningRouter) -> None:
    done = kvctl("explain", "d-1", "--admin", str(router.control.base_url))
    assert done.returncode == 1
    assert "KVCTL_ADMIN_TOKEN" in done.stderr


def test_admin_port_beyond_loopback_without_a_token_is_refused_with_the_way_out() -> None:
    done = kvctl("serve", "--admin-host", "0.0.0.0", "--port", "0", "--admin-port", "0")
    assert done.returncode == 2
    assert "KVCTL_ADMIN_TOKEN" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--upstream-key", "--admin-token"])
def test_secret_on_the_command_line_is_refused_and_not_repeated(option: str) -> None:
    done = kvctl("serve", option, "s3cret-value-of-mine")
    assert done.returncode == 2
    assert f"{option}-file" in done.stderr
    assert "s3cret-value-of-mine" not in done.stderr + done.stdout


def test_secret_of_the_environment_is_not_in_the_help() -> None:
    done = kvctl("serve", "--help", KVCTL_UPSTREAM_KEY="s3cret-value", KVCTL_ADMIN_TOKEN="s3cret-value-of-16")
    assert "--upstream-key" in done.stdout
    assert "s3cret" not in done.stdout


def test_changed_keys_file_is_taken_while_running(router: RunningRouter, folder: Path) -> None:
    with (folder / "keys.jsonl").open("a") as keys:
        keys.write(entry("late", "kv-of-one-who-came-late"))
    router.wait("the new key is taken", lambda: ask(router, "kv-of-one-who-came-late").status_code == 200)
