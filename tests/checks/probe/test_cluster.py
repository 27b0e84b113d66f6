"""The probe through an API server: a small one that passes requests on to the scripted fleet."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from checks.model import Reason, Stack, Status
from checks.probe.options import ProbeOptions
from checks.probe.post import ClusterPost, DirectPost, Target
from checks.probe.session import probed
from checks.request import CollectRequest
from checks.snapshot import Container, Member, Role, Snapshot
from checks.sources.connection import connect
from checks.sources.deadline import Deadline
from checks.sources.kubernetes import Cluster
from checks.sources.pace import Pace
from checks.sources.tape import Tape
from tests.checks.build import only, statuses
from tests.checks.probe.scripted import MODEL, Fleet, evidence, fleet, running, sticky

_PROXY = re.compile(r"/api/v1/namespaces/prod/pods/([\w-]+):(\d+)/proxy(/.*)")
_LOG = re.compile(r"/api/v1/namespaces/prod/pods/([\w-]+)/log\?.*")


@dataclass
class Api:
    """Passes requests to pods on; `logs` are their containers' logs. Keeps what it was asked."""

    pods: dict[str, str]
    logs: dict[str, Path] = field(default_factory=dict)
    denied: bool = False
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    url: str = ""
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=10, verify=False))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    api: Api

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        if (log := _LOG.fullmatch(self.path)) is not None:
            file = self.api.logs.get(log[1])
            self._answer(200, file.read_bytes() if file is not None and file.exists() else b"", {})
            return
        self._pass_on("GET", None)

    def do_POST(self) -> None:
        self._pass_on("POST", self.rfile.read(int(self.headers["Content-Length"])))

    def _pass_on(self, method: str, body: bytes | None) -> None:
        self.api.asked.append((method, self.path, {name.lower(): value for name, value in self.headers.items()}))
        if self.api.denied and method == "POST":
            told = {"kind": "Status", "message": 'pods "router-0" is forbidden: cannot create resource "pods/proxy"'}
            self._answer(403, json.dumps(told).encode(), {"Content-Type": "application/json"})
            return
        match = _PROXY.fullmatch(self.path)
        assert match is not None, self.path
        headers = {"X-Request-Id": self.headers.get("X-Request-Id", ""), "Content-Type": "application/json"}
        found = self.api.client.request(method, self.api.pods[match[1]] + match[3], content=body, headers=headers)
        kept = {name: value for name, value in found.headers.items() if name.startswith(("x-", "content-type"))}
        self._answer(found.status_code, found.content, kept)

    def _answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@contextlib.contextmanager
def serving(api: Api) -> Iterator[Api]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": api}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        api.client.close()


def kubeconfig(folder: Path, server: str) -> str:
    named = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t-1"}}],
    }
    contexts = [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "prod"}}]
    file = folder / "config.json"
    file.write_text(
        json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "x", "contexts": contexts} | named)
    )
    return str(file)


def pods(of: Fleet) -> Api:
    return Api({"router-0": of.router} | {engine.name: engine.url for engine in of.engines})


def as_pods(of: Fleet, **router: object) -> Snapshot:
    """The same fleet as pods; their addresses cannot be reached from here."""
    listed = {"/v1/models": {"data": [{"id": MODEL, "max_model_len": 8192}]}}
    members = [
        Member(
            role,
            name,
            "prod",
            ips=(f"192.0.2.{number + 1}",),
            url=f"http://192.0.2.{number + 1}:8000",
            answers=listed,
            model=MODEL,
            container=Container(name="main", **(router if role is Role.ROUTER else {})),  # type: ignore[arg-type]
        )
        for number, (role, name) in enumerate(
            [(Role.ROUTER, "router-0"), *((Role.WORKER, engine.name) for engine in of.engines)]
        )
    ]
    return Snapshot(stack=Stack.PRODUCTION_STACK, members=tuple(members), now=time.time(), namespace="prod")


def test_a_router_pod_is_probed_through_the_api_server(tmp_path: Path) -> None:
    with running(fleet(sticky())) as of, serving(pods(of)) as api:
        request = CollectRequest(namespace="prod", kubeconfig=kubeconfig(tmp_path, api.url))
        found = probed(as_pods(of), request, Tape.live(), ProbeOptions())
    assert statuses("KV801", found) == {"fleet": Status.PASS}
    posts = [path for method, path, _ in api.asked if method == "POST"]
    assert posts[0] == "/api/v1/namespaces/prod/pods/router-0:8000/proxy/v1/completions"
    assert len(posts) == len(of.bodies) == len(evidence(found).steps)


def test_the_routers_log_is_read_through_the_api_server(tmp_path: Path) -> None:
    of = fleet(sticky(), header="", log=tmp_path / "router.log")
    with running(of), serving(pods(of)) as api:
        api.logs["router-0"] = tmp_path / "router.log"
        known = as_pods(of)
        for engine, member in zip(of.engines, known.workers, strict=True):
            engine.url = member.url
        request = CollectRequest(namespace="prod", kubeconfig=kubeconfig(tmp_path, api.url))
        found = evidence(probed(known, request, Tape.live(), ProbeOptions()))
    assert {step.how for step in found.steps} == {"router-log"}
    assert {step.served_by for step in found.steps} <= {"prod/e0", "prod/e1", "prod/e2"}


def test_a_denied_post_is_an_error_that_names_the_permission(tmp_path: Path) -> None:
    with running(fleet(sticky())) as of, serving(pods(of)) as api:
        api.denied = True
        request = CollectRequest(namespace="prod", kubeconfig=kubeconfig(tmp_path, api.url))
        found = probed(as_pods(of), request, Tape.live(), ProbeOptions())
    finding = only("KV801", found)
    assert finding.reason is Reason.RBAC
    assert "pods/proxy" in finding.message
    assert of.bodies == []


def test_an_endpoint_picker_alone_cannot_be_asked(tmp_path: Path) -> None:
    with running(fleet(sticky())) as of, serving(pods(of)) as api:
        request = CollectRequest(namespace="prod", kubeconfig=kubeconfig(tmp_path, api.url))
        known = replace(as_pods(of), stack=Stack.LLM_D)
        assert "--probe-endpoint" in evidence(probed(known, request, Tape.live(), ProbeOptions())).refused


def test_a_gateways_url_takes_the_requests_instead_of_a_pod(tmp_path: Path) -> None:
    with running(fleet(sticky())) as of, serving(pods(of)) as api:
        request = CollectRequest(namespace="prod", kubeconfig=kubeconfig(tmp_path, api.url))
        known = replace(as_pods(of), stack=Stack.LLM_D)
        found = probed(known, request, Tape.live(), ProbeOptions(endpoint=of.router))
    assert statuses("KV801", found) == {"fleet": Status.PASS}
    assert [method for method, _, _ in api.asked if method == "POST"] == []


@pytest.fixture
def post(tmp_path: Path) -> Iterator[tuple[ClusterPost, Api, Fleet]]:
    with running(fleet(sticky())) as of, serving(pods(of)) as api, httpx.Client() as client:
        connection = connect(kubeconfig=kubeconfig(tmp_path, api.url))
        cluster = Cluster(connection, Pace(concurrency=2, per_second=100, burst=100), Deadline(60))
        yield ClusterPost(cluster, DirectPost(client)), api, of
        cluster.close()


BODY = {"model": "m", "prompt": "x" * 400, "stream": False}


def member(name: str = "router-0") -> Target:
    return Target(Member(Role.ROUTER, name, "prod", url="http://192.0.2.1:8000"))


def test_the_request_id_and_the_clusters_own_token_are_sent(post: tuple[ClusterPost, Api, Fleet]) -> None:
    send, api, of = post
    reply = send(member(), "/v1/completions", BODY, {"X-Request-Id": "kvctl-1"}, 5.0)
    assert (reply.ok, reply.prompt_tokens, reply.headers["x-kvctl-worker"]) == (True, 100, "e0")
    assert of.ids == ["kvctl-1"]
    assert api.asked[0][2]["authorization"] == "Bearer t-1"


def test_a_stream_comes_through(post: tuple[ClusterPost, Api, Fleet]) -> None:
    reply = post[0](member(), "/v1/completions", BODY | {"stream": True}, {}, 5.0)
    assert reply.ok
    assert reply.ttft_s is not None


def test_a_key_of_the_engines_is_not_sent_to_the_api_server(post: tuple[ClusterPost, Api, Fleet]) -> None:
    send, api, _ = post
    reply = send(member(), "/v1/completions", BODY, {"Authorization": "Bearer engine-key"}, 5.0)
    assert reply.reason is Reason.RBAC
    assert "--probe-endpoint" in reply.error
    assert api.asked == []


def test_a_router_that_hangs_behind_the_api_server_is_given_up(post: tuple[ClusterPost, Api, Fleet]) -> None:
    send, _, of = post
    of.before = lambda number: time.sleep(1.0)
    reply = send(member(), "/v1/completions", BODY, {}, 0.2)
    assert reply.reason is Reason.TIMEOUT
    assert "0.2 s" in reply.error


def test_an_api_server_that_is_gone_is_told(tmp_path: Path) -> None:
    with serving(Api({})) as api:
        connection = connect(kubeconfig=kubeconfig(tmp_path, api.url))
    cluster = Cluster(connection, Pace(concurrency=2, per_second=100, burst=100), Deadline(60))
    with httpx.Client() as client:
        reply = ClusterPost(cluster, DirectPost(client))(member(), "/v1/completions", BODY, {}, 5.0)
    assert reply.reason is Reason.UNREACHABLE
    assert "connection refused" in reply.error
