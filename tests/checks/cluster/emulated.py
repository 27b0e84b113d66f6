"""A Kubernetes API over HTTP for tests: kmock, with logs, pages of lists, permissions and pods' ports added.

    cluster = Cluster()
    cluster.pod("w-0", args=["--kv-transfer-config", "{}"], log="…", pages={8000: {"/metrics": "…"}})
    with cluster.serving(tmp_path):
        collect(CollectRequest(kubeconfig=str(cluster.kubeconfig), …), Tape.live())

The real client talks to it through a kubeconfig, or with `in_cluster(monkeypatch)` through a service account.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent
from typing import Any

import aiohttp.test_utils
import kmock
import pytest
import yaml
from aiohttp import web

GROUPS = {
    "deployments": ("apps", "v1"),
    "replicasets": ("apps", "v1"),
    "statefulsets": ("apps", "v1"),
    "horizontalpodautoscalers": ("autoscaling", "v2"),
    "networkpolicies": ("networking.k8s.io", "v1"),
    "endpointslices": ("discovery.k8s.io", "v1"),
    "inferenceendpointconfigs": ("inference.sagemaker.aws.amazon.com", "v1"),
    "jumpstartmodels": ("inference.sagemaker.aws.amazon.com", "v1"),
    "vllmrouters": ("production-stack.vllm.ai", "v1alpha1"),
    "vllmruntimes": ("production-stack.vllm.ai", "v1alpha1"),
    "inferencepools": ("inference.networking.k8s.io", "v1"),
}
"""API group and version of the plurals that are not in the core group."""

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>log|proxy)(?P<rest>/.*)?)?"
)
STARTED = datetime(2026, 8, 1, 10, 0, tzinfo=UTC)


@dataclass(slots=True)
class Denial:
    verb: str
    resource: str
    namespace: str | None


@dataclass(slots=True)
class Trouble:
    """An answer instead of the real one, `times` times, to requests whose path and query match."""

    pattern: re.Pattern[str]
    status: int
    times: int
    headers: Mapping[str, str]
    message: str


@dataclass(slots=True)
class Cluster:
    """What is in the cluster. Fill it, then serve it; it may be changed while it is served."""

    namespace: str = "prod"
    now: float = field(default_factory=lambda: STARTED.timestamp() + 1800)
    """Epoch seconds for `sinceSeconds`."""
    objects: dict[str, dict[tuple[str, str], dict[str, Any]]] = field(default_factory=dict)
    logs: dict[tuple[str, str, str, bool], list[str]] = field(default_factory=dict)
    """Stamped lines by (namespace, pod, container, previous)."""
    pages: dict[tuple[str, str, int], dict[str, Any]] = field(default_factory=dict)
    denials: list[Denial] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """Method, path and query of every request, in order."""
    tokens: list[str] = field(default_factory=list)
    """Authorization headers seen."""
    page_limit: int | None = None
    """Objects a page of a list at most, whatever the client asks for."""
    foreign: str = ""
    """Text that answers every request, as if something else listened here."""
    url: str = ""
    kubeconfig: Path = Path()
    _folder: Path = Path()
    _certificate: Path = Path()

    # -- contents ------------------------------------------------------------------------------------------------

    def pod(
        self,
        name: str,
        *,
        namespace: str = "",
        container: str = "vllm",
        image: str = "vllm/vllm-openai:v0.19.1",
        command: Sequence[str] = (),
        args: Sequence[str] = (),
        env: Mapping[str, str] | Sequence[Mapping[str, Any]] = (),
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        ips: Sequence[str] = ("10.0.0.1",),
        ports: Mapping[str, int] | None = None,
        ready: bool = True,
        restarts: int = 0,
        last_exit: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        phase: str = "Running",
        owner: tuple[str, str] | None = None,
        log: str | None = "",
        previous: str | None = None,
        pages: Mapping[int, Mapping[str, Any]] | None = None,
        sidecars: Sequence[Mapping[str, Any]] = (),
        init_containers: Sequence[Mapping[str, Any]] = (),
        started: datetime = STARTED,
        spec: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """A pod with one container of interest. `env` is a mapping, or entries as a pod has them.

        `log` is text, one stamp a second is put before lines that have none; None: the container has no log.
        `pages`: {port: {path: text, or texts for one request after the other}}.
        """
        namespace = namespace or self.namespace
        entries = [{"name": key, "value": value} for key, value in env.items()] if isinstance(env, Mapping) else env
        main = {
            "name": container,
            "image": image,
            "command": list(command),
            "args": list(args),
            "env": [dict(one) for one in entries],
            "ports": [{"name": key, "containerPort": value} for key, value in (ports or {}).items()],
        }
        running = {"running": {"startedAt": _stamp(started)}}
        metadata: dict[str, Any] = {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
            "creationTimestamp": _stamp(started),
        }
        if owner is not None:
            metadata["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "controller": True}]
        status = {
            "phase": phase,
            "podIP": ips[0] if ips else None,
            "podIPs": [{"ip": ip} for ip in ips],
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [
                {
                    "name": container,
                    "ready": ready,
                    "restartCount": restarts,
                    "state": dict(state or running),
                    "lastState": {"terminated": dict(last_exit)} if last_exit else {},
                },
                *({"name": one["name"], "ready": True, "restartCount": 0, "state": running} for one in sidecars),
            ],
        }
        pod = {
            "metadata": metadata,
            "spec": {
                "containers": [*(dict(one) for one in sidecars), main],
                "initContainers": [dict(one) for one in init_containers],
                **(spec or {}),
            },
            "status": status,
        }
        self.add("pods", pod)
        if log is not None:
            self.log(name, container, log, namespace=namespace, started=started)
        if previous is not None:
            self.log(name, container, previous, namespace=namespace, started=started, previous=True)
        for port, found in (pages or {}).items():
            self.pages[namespace, name, port] = dict(found)
        return pod

    def log(
        self,
        pod: str,
        container: str,
        text: str,
        *,
        namespace: str = "",
        started: datetime = STARTED,
        previous: bool = False,
    ) -> None:
        lines = dedent(text).strip("\n").split("\n") if text else []
        stamped = [
            line if re.match(r"\d{4}-\d\d-\d\dT", line) else f"{_stamp(started, at)} {line}"
            for at, line in enumerate(lines)
        ]
        self.logs[namespace or self.namespace, pod, container, previous] = stamped

    def add(self, plural: str, obj: Mapping[str, Any], *, namespace: str = "") -> None:
        """An object of any kind in GROUPS or the core group."""
        metadata = obj.get("metadata") or {}
        key = (str(metadata.get("namespace") or namespace or self.namespace), str(metadata.get("name")))
        self.objects.setdefault(plural, {})[key] = {**obj, "metadata": {"namespace": key[0], **metadata}}

    def deny(self, verb: str, resource: str, namespace: str | None = None) -> None:
        """`deny("get", "pods/log")`; `*` for all verbs or resources. None: in all namespaces."""
        self.denials.append(Denial(verb, resource, namespace))

    def trouble(
        self, pattern: str, status: int, *, times: int = 1, headers: Mapping[str, str] | None = None, message: str = ""
    ) -> None:
        """The next `times` requests whose `PATH?QUERY` matches are answered with this status."""
        self.troubles.append(Trouble(re.compile(pattern), status, times, headers or {}, message))

    def vanish(self, pod: str, namespace: str = "") -> None:
        """The pod stays in lists, but is gone for every other question."""
        key = (namespace or self.namespace, pod)
        self.logs = {at: lines for at, lines in self.logs.items() if at[:2] != key}
        self.pages = {at: found for at, found in self.pages.items() if at[:2] != key}
        self._gone.add(key)

    _gone: set[tuple[str, str]] = field(default_factory=set)

    # -- serving -------------------------------------------------------------------------------------------------

    @contextmanager
    def serving(self, folder: Path, *, tls: bool = False) -> Iterator[Cluster]:
        """Serves from a thread of its own on a free loopback port. `tls` needs the openssl command."""
        self._folder = folder
        context = self._tls() if tls else None
        ready: threading.Event = threading.Event()
        stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        thread = threading.Thread(target=lambda: asyncio.run(self._serve(context, ready, stop)), daemon=True)
        thread.start()
        assert ready.wait(20), "the emulated API did not start"
        self.kubeconfig = self._write_kubeconfig()
        try:
            yield self
        finally:
            loop, event = stop[0]
            loop.call_soon_threadsafe(event.set)
            thread.join(20)

    def in_cluster(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As in a pod: environment, token and certificate files. Needs `serving(tls=True)`."""
        from kubernetes.config import incluster_config

        token = self._folder / "token"
        token.write_text("pod-token")
        (self._folder / "namespace").write_text(self.namespace)
        host, port = self.url.removeprefix("https://").rsplit(":", 1)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        monkeypatch.delenv("KUBECONFIG", raising=False)
        monkeypatch.setenv("HOME", str(self._folder))
        monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
        monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(self._certificate))

    async def _serve(
        self,
        context: ssl.SSLContext | None,
        ready: threading.Event,
        stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]],
    ) -> None:
        event = asyncio.Event()
        stop.append((asyncio.get_running_loop(), event))
        server = _server_with(context) if context is not None else aiohttp.test_utils.RawTestServer
        api = EmulatedApi()
        api.cluster = self
        async with api, kmock.Server(api, server_cls=server) as served:
            self.url = str(served.url).rstrip("/")
            ready.set()
            await event.wait()

    def _write_kubeconfig(self) -> Path:
        certificate = {"certificate-authority": str(self._certificate)} if self.url.startswith("https") else {}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url, **certificate}}],
            "users": [{"name": "me", "user": {"token": "my-token"}}],
            "contexts": [
                {"name": "test", "context": {"cluster": "test", "user": "me", "namespace": self.namespace}},
                {"name": "other", "context": {"cluster": "test", "user": "me"}},
            ],
        }
        path = self._folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def _tls(self) -> ssl.SSLContext:
        key, self._certificate = self._folder / "tls.key", self._folder / "ca.crt"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
        names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(self._certificate)]
        subprocess.run([*command, *names], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate, key)
        return context

    # -- answers -------------------------------------------------------------------------------------------------

    def answer(self, request: kmock.Request) -> web.StreamResponse | None:
        """None: what kmock answers by itself."""
        path, query = request.url.path, dict(request.params)
        shown = request.url.path_qs
        self.requests.append(f"{request.method.value.upper()} {shown}")
        self.tokens.append(request.headers.get("Authorization", ""))
        if (
            trouble := next((one for one in self.troubles if one.times and one.pattern.search(shown)), None)
        ) is not None:
            trouble.times -= 1
            return _status(trouble.status, trouble.message or "trouble", headers=trouble.headers)
        if self.foreign:
            return web.Response(text=self.foreign)
        if path == "/apis":
            return web.json_response(self._apis())
        if path.endswith("/selfsubjectaccessreviews"):
            return web.json_response(self._review(request.data), status=201)
        match = _PATH.fullmatch(path)
        if match is None:
            return None
        found = match.groupdict()
        if (refusal := self._refused(found)) is not None:
            return refusal
        if found["plural"] == "pods" and found["sub"]:
            return self._log(found, query) if found["sub"] == "log" else self._proxy(found)
        if found["name"]:
            obj = self.objects.get(found["plural"], {}).get((found["namespace"] or "", found["name"]))
            return (
                _status(404, f"{found['plural']} {found['name']!r} not found", "NotFound")
                if obj is None
                else web.json_response(obj)
            )
        return self._list(found, query)

    def _apis(self) -> dict[str, Any]:
        known = {GROUPS[plural] for plural in self.objects if plural in GROUPS} | {("apps", "v1")}
        groups = [
            {"name": group, "preferredVersion": {"groupVersion": f"{group}/{version}", "version": version}}
            for group, version in sorted(known)
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    def _review(self, body: Mapping[str, Any]) -> dict[str, Any]:
        asked = body["spec"]["resourceAttributes"]
        resource = asked["resource"] + (f"/{asked['subresource']}" if asked.get("subresource") else "")
        return {**body, "status": {"allowed": not self._denied(asked["verb"], resource, asked["namespace"])}}

    def _refused(self, found: Mapping[str, str | None]) -> web.Response | None:
        verb = "get" if found["name"] else "list"
        resource = f"{found['plural']}/{found['sub']}" if found["sub"] else str(found["plural"])
        if not self._denied(verb, resource, found["namespace"] or ""):
            return None
        return _status(403, f'{resource} is forbidden: User "me" cannot {verb} resource "{resource}"', "Forbidden")

    def _denied(self, verb: str, resource: str, namespace: str) -> bool:
        return any(
            one.verb in ("*", verb) and one.resource in ("*", resource) and one.namespace in (None, namespace)
            for one in self.denials
        )

    def _list(self, found: Mapping[str, str | None], query: Mapping[str, str]) -> web.Response:
        plural, namespace = str(found["plural"]), found["namespace"]
        if plural in GROUPS and GROUPS[plural] != (found["group"], found["version"]):
            return _status(404, "the server could not find the requested resource", "NotFound")
        rows = [obj for (where, _), obj in self.objects.get(plural, {}).items() if namespace in (None, where)]
        for pair in filter(None, query.get("labelSelector", "").split(",")):
            label, _, value = pair.partition("=")
            rows = [one for one in rows if (one["metadata"].get("labels") or {}).get(label) == value.lstrip("=")]
        if (fields := query.get("fieldSelector", "")).startswith("involvedObject.name="):
            rows = [one for one in rows if one.get("involvedObject", {}).get("name") == fields.partition("=")[2]]
        limit = min(int(query.get("limit", "0")) or len(rows), self.page_limit or len(rows) or 1)
        start = int(base64.b64decode(query["continue"])) if "continue" in query else 0
        page = rows[start : start + limit]
        more = start + limit < len(rows)
        metadata = {"continue": base64.b64encode(str(start + limit).encode()).decode()} if more else {}
        return web.json_response({"metadata": metadata, "items": page})

    def _log(self, found: Mapping[str, str | None], query: Mapping[str, str]) -> web.Response:
        namespace, pod = found["namespace"] or "", found["name"] or ""
        if (namespace, pod) in self._gone or (namespace, pod) not in self.objects.get("pods", {}):
            return _status(404, f'pods "{pod}" not found', "NotFound")
        previous = query.get("previous") == "true"
        lines = self.logs.get((namespace, pod, query["container"], previous))
        if lines is None:
            what = (
                "previous terminated container not found"
                if previous
                else "container is waiting to start: PodInitializing"
            )
            return _status(400, f'{what}: "{query["container"]}" in pod "{pod}"', "BadRequest")
        if "tailLines" in query:
            lines = lines[-int(query["tailLines"]) :]
        if "sinceSeconds" in query:
            since = self.now - int(query["sinceSeconds"])
            lines = [line for line in lines if datetime.fromisoformat(line.split(" ", 1)[0]).timestamp() >= since]
        if query.get("timestamps") != "true":
            lines = [line.split(" ", 1)[1] for line in lines]
        data = "".join(f"{line}\n" for line in lines).encode()
        if "limitBytes" in query:
            data = data[: int(query["limitBytes"])]
        return web.Response(body=data, content_type="text/plain")

    def _proxy(self, found: Mapping[str, str | None]) -> web.Response:
        name, _, port = (found["name"] or "").removeprefix("https:").rpartition(":")
        namespace = found["namespace"] or ""
        if (namespace, name) in self._gone or (namespace, name) not in self.objects.get("pods", {}):
            return _status(404, f'pods "{name}" not found', "NotFound")
        known = self.pages.get((namespace, name, int(port)))
        if known is None:
            return _status(
                503, "error trying to reach service: dial tcp: connect: connection refused", "ServiceUnavailable"
            )
        path = found["rest"] or "/"
        if path not in known:
            return web.Response(status=404, text="not found")
        body = known[path]
        if isinstance(body, list):
            body = body.pop(0) if len(body) > 1 else body[0]
        return web.json_response(body) if isinstance(body, dict) else web.Response(text=body)


class EmulatedApi(kmock.KubernetesEmulator):
    """kmock with the answers of a Cluster before its own."""

    cluster: Cluster

    async def _handle(self, request: kmock.Request) -> web.StreamResponse:
        self._requests.clear()
        answer = self.cluster.answer(request)
        return answer if answer is not None else await super()._handle(request)


def _server_with(context: ssl.SSLContext) -> type[aiohttp.test_utils.RawTestServer]:
    class TlsServer(aiohttp.test_utils.RawTestServer):
        async def start_server(self, loop: asyncio.AbstractEventLoop | None = None, **more: Any) -> None:
            await super().start_server(loop, ssl=context, **more)

    return TlsServer


def _stamp(started: datetime, seconds: int = 0) -> str:
    at = datetime.fromtimestamp(started.timestamp() + seconds, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%f000Z") if seconds else at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _status(status: int, message: str, reason: str = "", headers: Mapping[str, str] | None = None) -> web.Response:
    """An error as the API server words it."""
    body = {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": message}
    return web.Response(status=status, body=json.dumps(body), content_type="application/json", headers=headers)
