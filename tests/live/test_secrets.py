"""Keys, authorization headers and prompts appear in nothing that the router writes or shows, whatever goes wrong.

One router at log level debug with everything on goes through every error there is; then all that it wrote and every
page of its admin port is searched for what was planted.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.live.conftest import RunningRouter, running_router
from tests.live.scripted_engine import scripted_engine

KEY, WRONG, ENGINE_KEY, ADMIN = "kv-PLANTED-KEY", "PLANTED-WRONG-KEY", "PLANTED-ENGINE-KEY", "PLANTED-ADMIN-TOKEN"
PROMPT, QUERY, COOKIE = "PLANTED-PROMPT", "PLANTED-QUERY", "PLANTED-COOKIE"
PAGES = ("/workers", "/decisions?full=1&limit=10000", "/index", "/loads", "/queue", "/shadow", "/config", "/metrics")


class Gone:
    """All that one run left behind. `errors`: bodies of the router's own refusals."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.statuses: dict[str, int] = {}
        self.pages: dict[str, str] = {}
        self.access = ""
        self.log = ""


def bodies() -> dict[str, bytes]:
    def body(**fields: object) -> bytes:
        return json.dumps({"model": "m", "prompt": PROMPT, "max_tokens": 2} | fields).encode()

    return {
        "good": body(),
        "engine 500": body(prompt=f"{PROMPT} DO-500"),
        "engine reset": body(prompt=f"{PROMPT} DO-RESET"),
        "engine garbage": body(prompt=f"{PROMPT} DO-GARBAGE"),
        "engine cut": body(prompt=f"{PROMPT} DO-CUT"),
        "tokenise 400": body(prompt=f"{PROMPT} TOKENIZE-400"),
        "tokenise 500": body(prompt=f"{PROMPT} TOKENIZE-500"),
        "not JSON": body()[:-4],
        "JSON then more": body() + b" " + PROMPT.encode(),
        "bad UTF-8": body().replace(b"max", b"\xff\xfe"),
        "wrong kind": body(max_tokens=PROMPT),
        "wrong prompt": body(prompt={"a": PROMPT}),
        "wrong prompts": body(prompt=[PROMPT, 7]),
        "stream not bool": body(stream=PROMPT),
        "unknown model": body(model="unknown"),
        "nvext wrong": body(nvext={"dp_rank": PROMPT}),
        "nvext unknown": body(nvext={"backend_instance_id": 99, "annotations": [PROMPT]}),
        "nested": b'{"model":"m","prompt":' + b"[" * 3000 + json.dumps(PROMPT).encode() + b"]" * 3000 + b"}",
        "too long": body(prompt=[7] * 5000, suffix=PROMPT),
        "too large": body(prompt=PROMPT * 100_000),
    }


@pytest.fixture(scope="module")
def gone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gone]:
    folder, found = tmp_path_factory.mktemp("secrets"), Gone()
    keys = folder / "keys.jsonl"
    keys.write_text(json.dumps({"name": "a", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}) + "\n")
    with (
        scripted_engine(needs=ENGINE_KEY) as engine,
        running_router(
            *("--worker", f"{engine.url},id=w1,block-size=16", "--worker", f"{engine.url}/,id=w2,block-size=16"),
            *("--log-level", "debug", "--api-keys-file", str(keys), "--max-body", "1MiB", "--shadow", "random"),
            *("--access-log", str(folder / "access.log"), "--otel-endpoint", "http://127.0.0.1:9"),
            *("--breaker", "off"),
            variables={"KVCTL_UPSTREAM_KEY": ENGINE_KEY, "KVCTL_ADMIN_TOKEN": ADMIN, "PYTHONASYNCIODEBUG": "1"},
        ) as router,
    ):
        router.wait("the engine is up", lambda: router.http.get("/ready").status_code == 200)
        errors(router, found)
        keys.write_text(json.dumps({"name": "a", "key": KEY}) + "\n")
        router.wait("the bad file was seen", lambda: "plain text" in router.log())
        admin = {"authorization": f"Bearer {ADMIN}"}
        for page in PAGES:
            found.pages[page] = router.control.get(page, headers=admin).text
        found.errors.append(router.control.get("/config", headers={"authorization": f"Bearer {WRONG}"}).text)
        explained = {"prompt": PROMPT, "model": "unknown"}
        found.errors.append(router.control.post("/explain", headers=admin, json=explained).text)
        router.wait("the access log is written", lambda: "DONE" in (folder / "access.log").read_text())
        found.log = router.log()
        found.access = (folder / "access.log").read_text()
        yield found


def errors(router: RunningRouter, found: Gone) -> None:
    good = {"authorization": f"Bearer {KEY}", "cookie": COOKIE, "content-type": "application/json"}
    path = f"/v1/completions?secret={QUERY}"

    def post(name: str, body: bytes, headers: dict[str, str], path: str = path) -> None:
        try:
            answer = router.http.post(path, content=body, headers=headers)
        except httpx.HTTPError:
            found.statuses[name] = 0
            return
        found.statuses[name] = answer.status_code
        if answer.status_code >= 400:
            found.errors.append(answer.text)

    for name, body in bodies().items():
        post(name, body, good)
        post(f"{name} as chat", body, good, f"/v1/chat/completions?secret={QUERY}")
    body = bodies()["good"]
    post("wrong key", body, good | {"authorization": f"Bearer {WRONG}"})
    post("wrong x-api-key", body, {"x-api-key": WRONG})
    post("basic", body, {"authorization": f"Basic {WRONG}"})
    post("pinned to nobody", body, good | {"x-kvctl-worker": "nobody"})
    post("mode not allowed", body, good | {"x-kvctl-mode": "random"})
    post("no such path", body, good, f"/nothing?secret={QUERY}")
    post("last", body, good | {"x-request-id": "DONE"})
    data, head = httpx.URL(router.url), f"HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n"
    for raw in (
        f"POST /v1/completions?x={QUERY} {head}Bad\x01: {COOKIE}\r\n\r\n",
        f"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\nContent-Length: x{PROMPT}\r\n\r\n",
        f"POST /v1/completions {head}Content-Length: 500\r\n\r\n{PROMPT}",
        f"{PROMPT}\r\n\r\n",
    ):
        with socket.create_connection((data.host, data.port or 80), 10) as client:
            client.sendall(raw.encode())
            client.shutdown(socket.SHUT_WR)
            client.settimeout(10)
            said = b""
            while part := client.recv(65536):
                said += part
            found.errors.append(said.decode("latin-1"))


def test_the_errors_meant_were_met(gone: Gone) -> None:
    met = gone.statuses
    assert met["good"] == 200
    assert met["engine 500"] == 500
    assert {met[name] for name in ("engine reset", "engine garbage")} == {502}
    assert met["engine cut"] == 0
    assert {met[name] for name in ("not JSON", "wrong kind", "wrong prompt", "too long", "pinned to nobody")} == {400}
    assert (met["too large"], met["unknown model"], met["wrong key"]) == (413, 404, 401)


@pytest.mark.parametrize("secret", [KEY, WRONG, ENGINE_KEY, ADMIN, PROMPT, COOKIE, QUERY])
def test_nothing_that_the_router_writes_or_shows_holds_it(gone: Gone, secret: str) -> None:
    places = {"log": gone.log, "access log": gone.access} | gone.pages
    assert [name for name, text in places.items() if secret in text] == []
    assert [text[:300] for text in gone.errors if secret in text] == []


def test_searched_places_are_not_empty(gone: Gone) -> None:
    assert "DEBUG" in gone.log
    assert len(gone.access.splitlines()) > 20
    assert all(len(text) > 10 for text in gone.pages.values())
    assert len(gone.errors) > 20


def test_no_error_of_the_routers_own_is_an_internal_one(gone: Gone) -> None:
    assert not [text for text in gone.errors if "internal_error" in text]
    assert "Traceback" not in gone.log


def test_file_with_a_plain_key_was_named_without_it(gone: Gone) -> None:
    assert "keys.jsonl: line 1 ('a') holds a key in plain text" in gone.log
    assert Path("keys.jsonl").name in gone.log
