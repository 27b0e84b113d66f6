"""`kvctl serve` as a child process, seen only through its command line, its data port and its admin port."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx

from .engines import LOGS, ROOT

READY_TIMEOUT = 90.0
T = TypeVar("T")


class RouterFailed(RuntimeError):
    """The router ended or did not come up. The message ends with the tail of its log."""


class Router:
    """A running router: `url` is the data port, `admin` the admin port."""

    def __init__(self, url: str, admin: str) -> None:
        self.url = url
        self.admin = admin
        self._http = httpx.Client(base_url=admin, timeout=30.0)

    def get(self, path: str) -> Any:
        answer = self._http.get(path)
        answer.raise_for_status()
        return answer.json()

    def workers(self) -> dict[str, dict[str, Any]]:
        """The workers by URL."""
        return {worker["url"]: worker for worker in self.get("/workers")["workers"]}

    def decision(self, decision_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/decisions/{decision_id}")
        return found

    def explain(self, body: dict[str, Any], path: str) -> dict[str, Any]:
        """The decision that `body` would get now; nothing is sent."""
        answer = self._http.post("/explain", json=body, params={"path": path})
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def joined(self, decision_id: str, timeout: float = 5.0) -> dict[str, Any]:
        """The decision once the engine's own count has been joined to it."""
        return wait_for(
            lambda: found if (found := self.decision(decision_id))["engine_cached_tokens"] is not None else None,
            f"the engine's count in decision {decision_id}",
            timeout,
        )

    def wait_up(self, urls: list[str], timeout: float = 60.0) -> None:
        """Returns when all of these workers are up and their KV events flow."""
        wait_for(
            lambda: all(
                worker["health"] == "up" and worker["kv_events"] == "live"
                for url, worker in self.workers().items()
                if url in urls
            ),
            f"{urls} up with live KV events",
            timeout,
            lambda: json.dumps(self.workers(), indent=1),
        )

    def close(self) -> None:
        self._http.close()


def wait_for(ask: Callable[[], T | None], what: str, timeout: float, state: Callable[[], str] = lambda: "") -> T:
    """The first truthy answer of `ask`, asked ten times a second."""
    deadline = time.monotonic() + timeout
    while True:
        found = ask()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:.0f} s: {what}\n{state()}")
        time.sleep(0.1)


@contextlib.contextmanager
def serve(name: str, *workers: str, options: tuple[str, ...] = ()) -> Iterator[Router]:
    """A router with nothing but the URLs of its workers; stopped, and its exit code checked, at the end."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log_path = LOGS / f"{name}.log"
    command = [sys.executable, "-m", "kvctl", "serve", "--router-mode", "kv", "--port", "0", "--admin-port", "0"]
    command += ["-o", "json", *options]
    for worker in workers:
        command += ["--worker", worker]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KVCTL_")}
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    router: Router | None = None
    try:
        assert process.stdout is not None
        line = _first_line(process, log_path)
        ready = json.loads(line)
        router = Router(ready["url"], ready["admin"])
        yield router
        process.send_signal(signal.SIGTERM)
        code = process.wait(60.0)
        assert code == 0, f"the router ended with {code}\n{_tail(log_path)}"
    finally:
        if router is not None:
            router.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _first_line(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(READY_TIMEOUT):
            raise RouterFailed(f"no ready line within {READY_TIMEOUT:.0f} s\n{_tail(log)}")
    line = process.stdout.readline()
    if not line:
        raise RouterFailed(f"the router ended with {process.wait()} before it was ready\n{_tail(log)}")
    return line


def _tail(path: Path, lines: int = 40) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
