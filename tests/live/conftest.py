"""A simulated fleet for the whole session, and routers as child processes, seen only through their ports."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest

from bench.sim.fleet import SimFleet

READY = 90.0


class RunningRouter:
    """`url` is the data port, `admin` the admin port; `http` and `control` are clients of the two."""

    def __init__(self, process: subprocess.Popen[str], ready: dict[str, Any], log: Any) -> None:
        self.process = process
        self.ready = ready
        self.url: str = ready["url"]
        self.admin: str = ready["admin"]
        self.http = httpx.Client(base_url=self.url, timeout=30.0)
        self.control = httpx.Client(base_url=self.admin, timeout=30.0)
        self._log = log

    def get(self, path: str) -> Any:
        answer = self.control.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ask(
        self, prompt: Any = "def main(): pass", headers: dict[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        body = {"model": "sim", "prompt": prompt, "max_tokens": 2} | fields
        return self.http.post("/v1/completions", json=body, headers=headers)

    def decision(self, answer: httpx.Response) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/decisions/{answer.headers['x-kvctl-decision']}")
        return found

    def wait(self, what: str, true: Callable[[], Any], patience: float = 20.0) -> None:
        deadline = time.monotonic() + patience
        while not true():
            assert time.monotonic() < deadline, f"never happened: {what}\n{self.log()}"
            time.sleep(0.05)

    def log(self) -> str:
        return _written(self._log)

    def stop(self) -> int:
        self.http.close()
        self.control.close()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40.0)


def _written(log: Any) -> str:
    """All of the log. Its position is shared with the process that writes it, and must not be moved."""
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode("utf-8", "replace")


@contextlib.contextmanager
def running_router(*arguments: str, variables: Mapping[str, str] | None = None) -> Iterator[RunningRouter]:
    """`kvctl serve` on free ports; its exit code after SIGTERM must be 0. `variables`: of its environment."""
    command = [sys.executable, "-m", "kvctl", "serve", "--port", "0", "--admin-port", "0", "-o", "json", *arguments]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KVCTL_")} | dict(
        variables or {}
    )
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
        assert process.stdout is not None
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                assert selector.select(READY), "the router was never ready"
            line = process.stdout.readline()
            assert line, _written(log)
            router = RunningRouter(process, json.loads(line), log)
            yield router
            code = router.stop()
            assert code == 0, router.log()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.fixture(scope="session")
def sims() -> Iterator[SimFleet]:
    """Four engines of one model, fast."""
    with SimFleet(4, speedup=20, num_blocks=2000) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def worker_options(sims: SimFleet) -> list[str]:
    return [option for engine in sims.engines for option in ("--worker", f"{engine.url},id={engine.id}")]


@pytest.fixture(scope="session")
def kv_router(worker_options: list[str]) -> Iterator[RunningRouter]:
    """A kv router before the four engines, told nothing but their URLs."""
    with running_router("--router-mode", "kv", "--seed", "7", *worker_options) as router:
        yield router
