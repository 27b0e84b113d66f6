"""Real LMCache workers (the package's own classes, in a process of the real-engine environment) with kvctl as their
controller. The engines behind the router are simulated: what is real here is every byte that LMCache sends and reads.

Needs lmcache in that environment; `tests/real/setup.sh` installs it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from bench.sim.fleet import SimFleet

from .engines import ENVIRONMENT, LOGS, free_ports
from .router_process import Router, serve, wait_for

FLEET = "pair"
CHUNK = 128
CHILD = Path(__file__).parent / "lmcache_child.py"


class RealWorker:
    """The child process with the package's worker. `instance` is its LMCache instance id."""

    def __init__(self, instance: str, ports: tuple[int, int, int], port: int, algorithm: str = "builtin") -> None:
        self.instance = instance
        said = {"instance": instance, "port": port, "chunk_size": CHUNK, "algorithm": algorithm}
        said |= {"pull": f"127.0.0.1:{ports[0]}", "reply": f"127.0.0.1:{ports[1]}"}
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONHASHSEED"}
        LOGS.mkdir(parents=True, exist_ok=True)
        with (LOGS / f"lmcache-{instance}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [str(ENVIRONMENT / "bin" / "python"), str(CHILD), json.dumps(said)],
                cwd=ENVIRONMENT,
                env=environment | {"CUDA_VISIBLE_DEVICES": "", "LMCACHE_TRACK_USAGE": "false"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._told = b""
        try:
            self.none_hash: int = self._answer(90.0)["none_hash"]
        except BaseException:
            self.stop()
            raise

    def _answer(self, patience: float = 30.0) -> dict[str, Any]:
        """The next line of JSON; other lines are the package's own talk."""
        assert self.process.stdout is not None
        while True:
            line, ended, rest = self._told.partition(b"\n")
            if ended:
                self._told = rest
                if line.startswith(b"{"):
                    found: dict[str, Any] = json.loads(line)
                    return found
                continue
            with selectors.DefaultSelector() as selector:
                selector.register(self.process.stdout, selectors.EVENT_READ)
                assert selector.select(patience), f"LMCache worker {self.instance} does not answer"
            more = os.read(self.process.stdout.fileno(), 65536)
            assert more, f"LMCache worker {self.instance} has ended; see {LOGS}/lmcache-{self.instance}.log"
            self._told += more

    def do(self, command: str, value: object = None) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({command: value}).encode() + b"\n")
        self.process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def ports() -> tuple[int, int, int]:
    pull, reply, heartbeat = free_ports(3)
    return pull, reply, heartbeat


@pytest.fixture(scope="module")
def sims() -> Iterator[SimFleet]:
    with SimFleet(2, speedup=20, num_blocks=2000) as fleet:
        yield fleet


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    asked = [str(ENVIRONMENT / "bin" / "python"), "-c", "import importlib.metadata as m; print(m.version('lmcache'))"]
    found = subprocess.run(asked, capture_output=True, text=True, timeout=60, cwd=ENVIRONMENT)
    if found.returncode:
        pytest.skip(f"lmcache is not installed in {ENVIRONMENT}: run tests/real/setup.sh")


@contextlib.contextmanager
def routing(name: str, sims: SimFleet, ports: tuple[int, int, int]) -> Iterator[Router]:
    listens = f"127.0.0.1:{ports[0]},reply={ports[1]},heartbeat={ports[2]}"
    options = ("--router-mode", "kvaware", "--kvaware-fallback", "round-robin", "--approximate-ttl", "0")
    workers = [f"{engine.url},id={engine.id}" for engine in sims.engines]
    with serve(
        name, *workers, options=(*options, "--lmcache-controller", listens, "--kvaware-threshold", "0")
    ) as found:
        yield found


@pytest.fixture(scope="module")
def router(sims: SimFleet, ports: tuple[int, int, int]) -> Iterator[Router]:
    with routing("router-lmcache", sims, ports) as found:
        yield found


@pytest.fixture(scope="module")
def pair(router: Router, ports: tuple[int, int, int]) -> Iterator[tuple[RealWorker, RealWorker]]:
    """One LMCache worker for each engine, with instance ids as LMCache makes them up: nothing in them says whose they
    are, and both have one IP address."""
    first, second = free_ports(2)
    with contextlib.ExitStack() as stack:
        made = []
        for instance, port in (("lmcacheengineconfig_aa01", first), ("lmcacheengineconfig_bb02", second)):
            made.append(RealWorker(instance, ports, port))
            stack.callback(made[-1].stop)
        yield made[0], made[1]


def prompt(seed: int, chunks: int = 3) -> list[int]:
    return np.random.default_rng(seed).integers(0, 2000, chunks * CHUNK).tolist()


def ask(router: Router, ids: list[int], worker: str | None = None) -> tuple[str, dict[str, Any]]:
    """The worker that served, and the decision."""
    answer = httpx.post(
        f"{router.url}/v1/completions",
        json={"model": "sim", "prompt": ids, "max_tokens": 1},
        headers={"x-kvctl-workers": worker} if worker else {},
        timeout=30.0,
    )
    assert answer.status_code == 200, answer.text
    return answer.headers["x-kvctl-worker"], router.decision(answer.headers["x-kvctl-decision"])


def entry(router: Router, instance: str) -> dict[str, Any]:
    return next((one for one in router.get("/lmcache")["workers"] if one["instance"] == instance), {})


def until(router: Router, instance: str, what: str, **wanted: Any) -> dict[str, Any]:
    def met() -> dict[str, Any] | None:
        found = entry(router, instance)
        return found if found and all(found[key] == value for key, value in wanted.items()) else None

    return wait_for(met, what, 40.0, lambda: json.dumps(router.get("/lmcache"), indent=1))


def learn(router: Router, worker: RealWorker, engine: str, seed: int) -> None:
    """Serve a few prompts at `engine` whose chunks its LMCache then keeps, as in production."""
    for number in range(3):
        ids = prompt(seed + number)
        assert ask(router, ids, engine)[0] == engine
        worker.do("put", ids)
    wait_for(
        lambda: (
            entry(router, worker.instance)["worker"] == engine
            and entry(router, worker.instance)["hash"]["state"] == "verified"
        ),
        f"{worker.instance} known to be of {engine}",
        30.0,
        lambda: json.dumps(router.get("/lmcache"), indent=1),
    )


def test_workers_register_and_their_heartbeats_arrive(
    router: Router, pair: tuple[RealWorker, RealWorker], ports: tuple[int, int, int]
) -> None:
    for worker in pair:
        until(router, worker.instance, "live", state="live")
    log = (LOGS / "router-lmcache.log").read_text()
    for worker in pair:
        assert f"Worker registered: {worker.instance}" in log
        assert f"Registered instance-worker ('{worker.instance}', 0) with URL " in log
        said = (LOGS / f"lmcache-{worker.instance}.log").read_text()
        assert f"Received heartbeat_url from controller: 127.0.0.1:{ports[2]}" in said


def test_without_a_common_seed_each_worker_has_a_none_hash_of_its_own(pair: tuple[RealWorker, RealWorker]) -> None:
    assert pair[0].none_hash != pair[1].none_hash


def test_kvaware_goes_to_the_instance_that_holds_the_prompt(
    router: Router, pair: tuple[RealWorker, RealWorker]
) -> None:
    for worker, engine, seed in zip(pair, ("sim-0", "sim-1"), (100, 200), strict=True):
        learn(router, worker, engine, seed)
    for worker, engine, seed in zip(pair, ("sim-0", "sim-1"), (300, 400), strict=True):
        ids = prompt(seed)
        before = entry(router, worker.instance)["admits"]
        worker.do("put", ids)
        until(router, worker.instance, "admitted", admits=before + 3)
        for _ in range(3):
            served, decision = ask(router, ids)
            assert (served, decision["reason"]) == (engine, "kv_hit")
            assert decision["predicted_cached_tokens"] >= len(ids) - CHUNK


def test_what_a_worker_evicts_counts_no_longer(router: Router, pair: tuple[RealWorker, RealWorker]) -> None:
    ids = prompt(500)
    worker = pair[0]
    worker.do("put", ids)
    evicts = entry(router, worker.instance)["evicts"]
    worker.do("remove", ids)
    until(router, worker.instance, "evicted", evicts=evicts + 3)
    assert ask(router, ids)[1]["reason"] == "round_robin"


def test_a_gap_is_repaired_by_the_workers_own_full_sync(router: Router, pair: tuple[RealWorker, RealWorker]) -> None:
    worker = pair[1]
    held = entry(router, worker.instance)["keys"]["host"]
    worker.do("lose", 5)
    worker.do("put", prompt(600))
    found = until(router, worker.instance, "synced", full_syncs=1, state="live")
    assert found["keys"]["host"] == held + 3
    assert found["full_sync_wanted"] is None
    assert found["locations"]["LocalCPUBackend"]["gaps"] == 1
    assert worker.do("frozen") == {"frozen": 1}
    assert ask(router, prompt(600))[0] == "sim-1"


def test_a_worker_that_closes_is_deregistered(router: Router, pair: tuple[RealWorker, RealWorker]) -> None:
    pair[0].do("close")
    wait_for(lambda: not entry(router, pair[0].instance), "deregistered", 20.0)
    log = (LOGS / "router-lmcache.log").read_text()
    assert f"Deregistered instance-worker ('{pair[0].instance}', 0)" in log


@pytest.mark.parametrize("algorithm", ["sha256_cbor"])
def test_keys_of_other_algorithms_are_understood(router: Router, ports: tuple[int, int, int], algorithm: str) -> None:
    (port,) = free_ports(1)
    worker = RealWorker("sim-0", ports, port, algorithm)
    try:
        until(router, "sim-0", "bound by its id", bound_by="id", worker="sim-0")
        learn(router, worker, "sim-0", 700)
        assert entry(router, "sim-0")["hash"]["algorithm"] == algorithm
        ids = prompt(800)
        worker.do("put", ids)
        until(router, "sim-0", "admitted", admits=12)
        assert [ask(router, ids)[0] for _ in range(3)] == ["sim-0"] * 3
    finally:
        worker.do("close")
        worker.stop()


def test_workers_come_back_to_a_router_that_was_started_again(sims: SimFleet) -> None:
    pull, reply, heartbeat, port = free_ports(4)
    ports = pull, reply, heartbeat
    with routing("router-lmcache-1", sims, ports) as first:
        worker = RealWorker("sim-1", ports, port)
        until(first, "sim-1", "live", state="live")
        worker.do("put", prompt(900))
        until(first, "sim-1", "admitted", admits=3)
    try:
        with routing("router-lmcache-2", sims, ports) as second:
            found = until(second, "sim-1", "synced", full_syncs=1, state="live")
            assert found["keys"]["host"] == 3
    finally:
        worker.stop()
