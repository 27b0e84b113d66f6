"""Engines as a process: ready line, clean ends, no orphans, clear errors."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
import typer
import zmq
from typer.testing import CliRunner

from bench.sim.fleet import FleetError, SimFleet
from kvctl.errors import Problem
from kvctl.sim import sim


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def wait_gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return gone(pid)


@pytest.fixture(scope="module")
def fleet():
    with SimFleet(2, speedup=0, block_size=8, num_blocks=400, model="m") as running:
        yield running


def test_every_engine_has_addresses_of_its_own(fleet: SimFleet) -> None:
    addresses = [address for engine in fleet.engines for address in (engine.url, engine.kv, engine.replay)]
    assert [engine.id for engine in fleet.engines] == ["sim-0", "sim-1"]
    assert len(set(addresses)) == 6
    assert (fleet.model, fleet.block_size) == ("m", 8)


def test_engines_answer_alike_and_hash_differently(fleet: SimFleet) -> None:
    texts, hashes = [], []
    for engine in fleet.engines:
        answer = httpx.post(f"{engine.url}/v1/completions", json={"prompt": list(range(50))}, trust_env=False)
        texts.append(answer.json()["choices"][0]["text"])
        (batch, *_) = replay(engine.replay)
        hashes.append(set(batch[1][0]["block_hashes"]))
    assert texts[0] == texts[1]
    assert not hashes[0] & hashes[1]


def replay(endpoint: str | None) -> list[list]:
    """All kept batches."""
    context = zmq.Context()
    reader = context.socket(zmq.DEALER)
    reader.setsockopt(zmq.RCVTIMEO, 10_000)
    reader.connect(endpoint)
    reader.send_multipart([b"", (0).to_bytes(8, "big")])
    batches = []
    while True:
        payload = reader.recv_multipart()[-1]
        if not payload:
            break
        batches.append(msgspec.msgpack.decode(payload))
    context.destroy(linger=0)
    return batches


def test_replayed_events_tell_what_is_cached(fleet: SimFleet) -> None:
    engine = fleet.engines[1]
    with httpx.Client(base_url=engine.url, trust_env=False) as client:
        for turn in range(12):
            client.post("/v1/completions", json={"prompt": [turn % 5] * 300 + [turn] * 9, "max_tokens": 20})
        cached = client.get("/sim/stats").json()["state"]["cached_blocks"]
    told: Counter[int] = Counter()
    for _, events, _ in replay(engine.replay):
        for event in events:
            change = told.update if event["type"] == "BlockStored" else told.subtract
            change(event["block_hashes"])
    assert min(told.values()) >= 0
    assert sum(told.values()) == cached > 100


def test_stop_ends_it_cleanly_and_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCTL_MODEL", "of our environment, which the child must not see")
    fleet = SimFleet(1).start()
    pid = fleet.pid
    assert (fleet.model, fleet.stop(), fleet.stop()) == ("sim", 0, None)
    assert pid is not None and gone(pid)


def test_idle_connections_are_closed_after_the_keep_alive_timeout() -> None:
    with SimFleet(1, keep_alive_timeout=0.05) as fleet:
        address = urlsplit(fleet.engines[0].url)
        with socket.create_connection((address.hostname, address.port), 10) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 200") and b"connection: close" not in answer


def test_a_failed_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="no tokenizer"):
        SimFleet(1, tokenizer=str(tmp_path)).start()


def test_engines_end_when_the_parent_is_killed() -> None:
    script = (
        "import time; from bench.sim.fleet import SimFleet\n"
        "fleet = SimFleet(1).start(); print(fleet.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_gone(pid)


def test_ctrl_c_ends_it_with_exit_code_0() -> None:
    command = [sys.executable, "-m", "kvctl", "sim", "--port", "0", "-o", "json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    ready = json.loads(child.stdout.readline())
    assert ready["event"] == "ready"
    os.kill(child.pid, signal.SIGINT)
    rest, _ = child.communicate(timeout=20)
    assert (child.returncode, rest) == (0, b"")


app = typer.Typer()
app.command("sim")(sim)


def refused(*arguments: str) -> Problem:
    """The problem that the command ends with, without starting anything."""
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, Problem), result.output
    assert result.stdout == ""
    return result.exception


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        problem = refused("--port", str(port))
    assert problem.code == 2
    assert f"127.0.0.1:{port}" in str(problem) and "in use" in str(problem)


def test_a_kv_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        problem = refused("--port", "0", "--kv-port", str(port))
    assert problem.code == 2
    assert f"tcp://127.0.0.1:{port}" in str(problem) and "in use" in str(problem)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-model-len", "1000", "--num-blocks", "10"), "does not fit"),
        (("--timing-param", "nonsense=1"), "decode_base"),
        (("--timing-param", "decode_base"), "NAME=NUMBER"),
        (("--port", "65535", "--count", "2"), "no room"),
        (("--tokenizer", "/nowhere"), "no tokenizer.json at /nowhere"),
    ],
)
def test_a_wrong_option_is_named_with_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    problem = refused(*arguments)
    assert problem.code == 2
    assert words in str(problem)
