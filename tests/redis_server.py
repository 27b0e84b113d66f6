"""A real Redis server on a free loopback port, without persistence, for tests that need one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

BINARY = "redis-server"
INSTALL = Path(__file__).parents[1] / "scripts" / "system-packages.sh"
PATIENCE = 20.0


class RedisServer:
    """`url` stays the same when the server is killed and started again."""

    def __init__(self, binary: str, folder: str) -> None:
        self._binary = binary
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        for _attempt in range(3):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port: int = free.getsockname()[1]
            self.url = f"redis://127.0.0.1:{self.port}/0"
            self.client = redis.Redis.from_url(self.url, socket_timeout=5.0)
            if self.start():
                return
        raise AssertionError(f"{binary} did not start on three free ports")

    def start(self) -> bool:
        """Start it, empty; False if it ended at once (its port was taken in the meantime)."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        options += ["--dir", self._folder, "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"]
        self._process = subprocess.Popen([self._binary, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(redis.RedisError):
                if self.client.ping():
                    return True
            time.sleep(0.02)
        self.kill()
        return False

    def kill(self) -> None:
        """As a crash: no goodbye to its clients."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """It keeps its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def keys(self) -> int:
        return int(self.client.dbsize())


@contextlib.contextmanager
def redis_server() -> Iterator[RedisServer]:
    """A running server; skips the test where none can be had, and fails it in CI."""
    binary = _binary()
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(binary, folder)
        try:
            yield server
        finally:
            server.kill()
            server.client.close()


def _binary() -> str:
    found = shutil.which(BINARY)
    if found is None and os.geteuid() == 0:
        subprocess.run(["bash", str(INSTALL), BINARY], check=False, timeout=300)
        found = shutil.which(BINARY)
    if found is None:
        reason = f"{BINARY} is not installed; as root: bash scripts/system-packages.sh {BINARY}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found
