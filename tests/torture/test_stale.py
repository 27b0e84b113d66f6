"""What a worker no longer holds must not attract requests: cleared caches, restarts at the same address."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.torture.system import URL, System, before, eventually, gained, system, text


def empty_caches(found: System) -> None:
    """Resets every engine's cache; one small request makes each tell of it, as vLLM tells with its next step."""
    for engine in found.engines:
        httpx.post(f"{engine}/reset_prefix_cache", timeout=10.0).raise_for_status()
        body = {"model": "sim", "prompt": "a", "max_tokens": 1}
        httpx.post(f"{engine}/v1/completions", json=body, timeout=10.0).raise_for_status()
    time.sleep(0.3)


def test_a_cleared_cache_attracts_nothing() -> None:
    """The caches are emptied after each request, so every worker is as good as any: 16 requests use several."""
    with system(4, speedup=50) as found:
        prefix, used = text(500), set()
        for _ in range(16):
            served = found.served()
            assert found.ask(f"{prefix} {text(3)}", max_tokens=1).status_code == 200
            used.add(gained(served, found.served()).index(1))
            empty_caches(found)
        assert len(used) >= 3


def test_after_a_clear_nothing_is_promised() -> None:
    with system(2, speedup=50) as found:
        prompt = text(500)
        eventually("the blocks are known", lambda: found.decision(found.ask(prompt))["predicted_cached_tokens"] > 0)
        empty_caches(found)
        time.sleep(1.0)
        assert found.decision(found.ask(prompt))["predicted_cached_tokens"] == 0


@contextlib.contextmanager
def engine(port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "kvctl", "sim", "--port", str(port), "--speedup", "50", "-o", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline(), "the engine did not start"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.skipif(URL is not None, reason="needs engines that the suite may kill")
def test_an_engine_that_was_killed_and_comes_back_starts_with_nothing() -> None:
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    prompt = text(500)
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(engine(port)) for port in ports]
        with before(urls) as found:
            assert found.ask(prompt).status_code == 200
            home = found.served().index(1)
            os.killpg(running[home].pid, signal.SIGKILL)
            running[home].wait()
            for _ in range(4):
                assert found.ask(f"{prompt} {text(3)}").status_code == 200
            stack.enter_context(engine(ports[home]))
            eventually("it serves again", lambda: found.ask(text(3)).status_code == 200 and found.served()[home] > 0)
            time.sleep(1.0)
            served = found.served()
            for _ in range(6):
                assert found.ask(f"{prompt} {text(3)}").status_code == 200
            after = gained(served, found.served())
            assert after[1 - home] >= 5, "the one that kept its cache is where the prefix is"
