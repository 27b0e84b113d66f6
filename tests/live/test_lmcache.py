"""The LMCache controller of a running router, asked over real ZMQ sockets with the bytes that LMCache 0.5.6 sends."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from bench.sim.fleet import SimFleet

from .conftest import RunningRouter, running_router

CHUNK = 64
"""Tokens a chunk: small, so that prompts of a few hundred tokens have several."""


def python_keys(ids: list[int], none_hash: int, size: int = CHUNK) -> list[int]:
    """Chunk keys as the package makes them: Python's own hash, chained."""
    keys, prefix = [], none_hash
    for start in range(0, len(ids) - len(ids) % size, size):
        prefix = hash((prefix, tuple(ids[start : start + size]), ()))
        keys.append(prefix)
    return keys


class ScriptedWorker:
    """What an LMCache worker does on the wire, one call a message."""

    def __init__(self, ports: dict[str, int], instance: str, ip: str = "10.9.9.9", port: int = 8001) -> None:
        self.instance, self.ip, self.port = instance, ip, port
        self.seq = 0
        self.heartbeat_url = ""
        self._context = zmq.Context()
        self.push = self._context.socket(zmq.PUSH)
        self.push.connect(f"tcp://127.0.0.1:{ports['pull']}")
        self.ask_socket = self._context.socket(zmq.DEALER)
        self.ask_socket.connect(f"tcp://127.0.0.1:{ports['reply']}")
        self.beat_socket: Any = None

    def close(self) -> None:
        self._context.destroy(linger=200)

    def head(self, kind: str, **fields: Any) -> bytes:
        return msgspec.msgpack.encode({"type": kind, "instance_id": self.instance, "worker_id": 0, **fields})

    @staticmethod
    def exchange(socket: Any, payload: bytes) -> dict[str, Any]:
        socket.send_multipart([b"", payload])
        assert socket.poll(10_000), "no answer"
        frames = socket.recv_multipart()
        assert frames[0] == b""
        answer: dict[str, Any] = msgspec.msgpack.decode(frames[-1])
        return answer

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self.exchange(self.ask_socket, self.head(kind, **fields))

    def register(self) -> dict[str, Any]:
        answer = self.ask("RegisterMsg", ip=self.ip, port=self.port, peer_init_url=None)
        self.heartbeat_url = answer["extra_config"]["heartbeat_url"]
        return answer

    def heartbeat(self) -> list[dict[str, Any]]:
        if self.beat_socket is None:
            self.beat_socket = self._context.socket(zmq.DEALER)
            self.beat_socket.connect(f"tcp://{self.heartbeat_url}")
        payload = self.head("HeartbeatMsg", ip=self.ip, port=self.port, peer_init_url=None)
        commands: list[dict[str, Any]] = self.exchange(self.beat_socket, payload)["commands"]
        return commands

    def operations(self, kind: str, keys: list[int]) -> None:
        listed = [{"op_type": kind, "key": key, "seq_num": self.seq + at} for at, key in enumerate(keys)]
        self.seq += len(keys)
        self.push.send_multipart([self.head("BatchedKVOperationMsg", location="LocalCPUBackend", operations=listed)])

    def sync(self, keys: list[int]) -> dict[str, Any]:
        named = {"location": "LocalCPUBackend", "sync_id": "s-1"}
        assert self.ask("FullSyncStartMsg", **named, total_keys=len(keys), batch_count=1)["accepted"]
        self.push.send(self.head("FullSyncBatchMsg", **named, batch_id=0, keys=keys))
        self.push.send(self.head("FullSyncEndMsg", **named, actual_total_keys=len(keys)))
        deadline = time.monotonic() + 10
        while not (status := self.ask("FullSyncStatusMsg", sync_id="s-1"))["can_exit_freeze"]:
            assert time.monotonic() < deadline, status
            time.sleep(0.02)
        return status


@pytest.fixture(scope="module")
def router(sims: SimFleet) -> Iterator[RunningRouter]:
    """kvaware before four engines of which the router is told the KV events of none."""
    options = [part for engine in sims.engines for part in ("--worker", f"{engine.url},id={engine.id}")]
    options += ["--lmcache-controller", "127.0.0.1:0", "--lmcache-chunk-size", str(CHUNK), "--approximate-ttl", "0"]
    with running_router("--router-mode", "kvaware", "--kvaware-fallback", "round-robin", *options) as found:
        yield found


@pytest.fixture
def worker(router: RunningRouter) -> Iterator[ScriptedWorker]:
    made = ScriptedWorker(router.ready["lmcache"], f"sim-2-{uuid.uuid4().hex[:6]}", port=int(uuid.uuid4()) % 60000 + 1)
    yield made
    made.push.send(made.head("DeRegisterMsg", ip=made.ip, port=made.port))
    made.close()


def entry(router: RunningRouter, instance: str) -> dict[str, Any]:
    found = [one for one in router.get("/lmcache")["workers"] if one["instance"] == instance]
    return found[0] if found else {}


def prompt(seed: int, length: int = 4 * CHUNK) -> list[int]:
    return np.random.default_rng(seed).integers(0, 2000, length).tolist()


def test_registration_is_acknowledged_with_an_address_for_heartbeats(
    router: RunningRouter, worker: ScriptedWorker
) -> None:
    answer = worker.register()
    assert answer["type"] == "RegisterRetMsg"
    assert worker.heartbeat_url == f"127.0.0.1:{router.ready['lmcache']['heartbeat']}"
    assert worker.heartbeat() == []
    assert entry(router, worker.instance)["state"] == "live"
    said = f"Registered instance-worker ('{worker.instance}', 0) with URL 10.9.9.9:{worker.port}"
    assert said in router.log()
    assert f"Worker registered: {worker.instance}" in router.log()


def test_kvaware_follows_what_the_worker_of_a_matching_id_admitted(router: RunningRouter) -> None:
    worker = ScriptedWorker(router.ready["lmcache"], "sim-3", port=8103)
    try:
        worker.register()
        ids = prompt(1)
        worker.operations("admit", python_keys(ids, 0))
        router.wait("the keys are known", lambda: entry(router, "sim-3")["keys"]["host"] == 4)
        for _ in range(4):
            answer = router.ask(ids)
            assert answer.headers["x-kvctl-worker"] == "sim-3"
            assert router.decision(answer)["reason"] == "kv_hit"
        worker.operations("evict", python_keys(ids, 0))
        router.wait("the keys are forgotten", lambda: entry(router, "sim-3")["keys"]["host"] == 0)
    finally:
        worker.push.send(worker.head("DeRegisterMsg", ip=worker.ip, port=worker.port))
        worker.close()
    router.wait("deregistered", lambda: "Deregistered instance-worker ('sim-3', 0)" in router.log())


def test_an_unknown_none_hash_and_the_engine_are_learnt_from_prompts(
    router: RunningRouter, worker: ScriptedWorker
) -> None:
    """The instance has a name and an address of no worker, and a NONE_HASH that nobody told."""
    worker.register()
    none_hash = -6197052367682486848
    for seed in range(10, 14):
        ids = prompt(seed)
        assert router.ask(ids, headers={"x-kvctl-workers": "sim-1"}).headers["x-kvctl-worker"] == "sim-1"
        worker.operations("admit", python_keys(ids, none_hash))
    router.wait("the hash is learnt", lambda: entry(router, worker.instance)["hash"]["state"] == "verified")
    router.wait("the engine is learnt", lambda: entry(router, worker.instance)["worker"] == "sim-1")
    fresh = prompt(20)
    worker.operations("admit", python_keys(fresh, none_hash))
    router.wait("the new keys count", lambda: entry(router, worker.instance)["keys"]["host"] == 20)
    assert router.ask(fresh).headers["x-kvctl-worker"] == "sim-1"
    shown = next(one for one in router.get("/workers")["workers"] if one["id"] == "sim-1")
    assert shown["lmcache"][0]["bound_by"] == "prompts"


def test_a_gap_leads_to_a_full_sync(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.register()
    worker.operations("admit", [1, 2])
    worker.seq += 3
    worker.operations("admit", [3])
    router.wait("the gap is seen", lambda: entry(router, worker.instance)["full_sync_wanted"] == "sequence_gap")
    assert worker.heartbeat() == [{"command_type": "full_sync", "reason": "sequence_gap", "args": None}]
    assert worker.sync([7, 8, 9])["is_complete"]
    found = entry(router, worker.instance)
    assert found["keys"]["host"] == 3
    assert found["full_sync_wanted"] is None
    assert worker.heartbeat() == []


def test_a_heartbeat_of_nobody_known_registers_and_asks_for_everything(
    router: RunningRouter, worker: ScriptedWorker
) -> None:
    """A router that was started again: the worker goes on as before."""
    worker.heartbeat_url = f"127.0.0.1:{router.ready['lmcache']['heartbeat']}"
    assert [command["reason"] for command in worker.heartbeat()] == ["worker_re_registered"]
    assert entry(router, worker.instance)["full_sync_wanted"] == "worker_re_registered"


def test_nonsense_is_answered_with_an_error_and_counted(router: RunningRouter, worker: ScriptedWorker) -> None:
    assert worker.exchange(worker.ask_socket, b"\xc1\xff")["type"] == "ErrorMsg"
    assert worker.exchange(worker.ask_socket, worker.head("LookupMsg"))["type"] == "ErrorMsg"
    worker.push.send_multipart([b"", b"{", worker.head("RegisterMsg", ip="", port=0)])
    router.wait("all are counted", lambda: router.get("/lmcache")["messages"].get("old_wire", 0) >= 1)
    counted = router.get("/lmcache")["messages"]
    assert counted["malformed"] >= 3
    assert counted["unknown_type"] >= 1
    assert worker.register()["type"] == "RegisterRetMsg"


def test_metrics_tell_the_state_of_each_worker(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.register()
    worker.heartbeat()
    text = router.control.get("/metrics").text
    labels = f'instance="{worker.instance}",lmcache_worker="0"'
    assert f'kvctl_lmcache_worker_state{{{labels},state="live"}} 1.0' in text
    assert f"kvctl_lmcache_hash_verified{{{labels}}} 0.0" in text


def test_without_a_controller_the_admin_port_says_how_to_have_one(kv_router: RunningRouter) -> None:
    answer = kv_router.control.get("/lmcache")
    assert answer.status_code == 404
    assert "--lmcache-controller" in answer.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--lmcache-controller", "host:port"), "is not HOST or HOST:PORT"),
        (("--lmcache-controller", "203.0.113.7:0"), "cannot listen on 203.0.113.7"),
    ],
)
def test_a_wrong_setting_is_said_in_one_line(options: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "kvctl", "serve", "--port", "0", "--admin-port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 2
    assert said in done.stderr.strip().splitlines()[-1]
