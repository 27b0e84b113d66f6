"""A router before simulated engines, seen from outside: what clients get, and what the engines count."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import socket
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.sim.fleet import SimFleet
from tests.live.conftest import running_router

COMMAND = os.environ.get("KVCTL_TORTURE_COMMAND")
URL = os.environ.get("KVCTL_TORTURE_URL")
FOREIGN = COMMAND is not None or URL is not None
SENTENCE = "the quick brown fox jumps over a lazy dog and then reads some of the code that it wrote last year"
WORDS = SENTENCE.split()


@dataclass(slots=True)
class System:
    """`engines`: base URLs. `admin`, `pid`: of kvctl's own router, None for another."""

    url: str
    engines: list[str]
    admin: str | None = None
    pid: int | None = None

    def served(self) -> list[int]:
        """Requests that each engine has finished so far."""
        return [int(_metric(url, "vllm:request_success_total")) for url in self.engines]

    def hits(self) -> list[int]:
        """Prompt tokens that each engine found in its cache so far."""
        return [int(_metric(url, "vllm:prefix_cache_hits_total")) for url in self.engines]

    def running(self) -> int:
        return int(sum(_metric(url, "vllm:num_requests_running") for url in self.engines))

    def ask(self, prompt: str, **fields: Any) -> httpx.Response:
        headers = fields.pop("headers", None)
        body = {"model": "sim", "prompt": prompt, "max_tokens": 4} | fields
        return httpx.post(f"{self.url}/v1/completions", json=body, headers=headers, timeout=60.0)

    def ask_all(self, prompts: list[str], at_once: int, **fields: Any) -> list[httpx.Response]:
        """Every prompt, `at_once` of them in flight."""
        return asyncio.run(self._ask_all(prompts, at_once, fields))

    async def _ask_all(self, prompts: list[str], at_once: int, fields: dict[str, Any]) -> list[httpx.Response]:
        gate = asyncio.Semaphore(at_once)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self.url, timeout=120.0, limits=limits) as client:

            async def one(prompt: str) -> httpx.Response:
                async with gate:
                    body = {"model": "sim", "prompt": prompt, "max_tokens": 16} | fields
                    return await client.post("/v1/completions", json=body)

            return await asyncio.gather(*(one(prompt) for prompt in prompts))

    def decision(self, answer: httpx.Response) -> dict[str, Any]:
        """kvctl's record of an answered request; skips for a router that keeps none."""
        if self.admin is None:
            pytest.skip("only kvctl's own router tells what it expected")
        found: dict[str, Any] = httpx.get(f"{self.admin}/decisions/{answer.headers['x-kvctl-decision']}").json()
        return found

    def resident_bytes(self) -> int:
        if self.pid is None:
            pytest.skip("the router's process is not known")
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024


@contextlib.contextmanager
def system(count: int = 4, router: tuple[str, ...] = (), **engines: Any) -> Iterator[System]:
    """`count` engines with `engines` as their options, and the router before them; `router`: options for kvctl's."""
    if URL is not None:
        told = os.environ.get("KVCTL_TORTURE_ENGINES", "")
        if set(engines) - {"speedup"} or not told:
            pytest.skip("needs engines that the suite may start itself")
        yield System(URL.rstrip("/"), [url.rstrip("/") for url in told.split(",")])
        return
    with SimFleet(count, **{"speedup": 20} | engines) as fleet, before([e.url for e in fleet.engines], router) as found:
        yield found


@contextlib.contextmanager
def before(urls: list[str], router: tuple[str, ...] = ()) -> Iterator[System]:
    """The router under test before engines at `urls`."""
    if COMMAND is None:
        workers = [part for number, url in enumerate(urls) for part in ("--worker", f"{url},id=w{number}")]
        with running_router("--seed", "11", *router, *workers) as own:
            yield System(own.url, urls, own.admin, own.process.pid)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = COMMAND.replace("{engines,}", ",".join(urls)).replace("{engines}", " ".join(urls))
    process = subprocess.Popen(shlex.split(text.replace("{port}", str(port))), start_new_session=True)
    try:
        found = System(f"http://127.0.0.1:{port}", urls, pid=process.pid)
        eventually("the router answers", lambda: _answers(found))
        yield found
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()


def eventually(what: str, true: Any, patience: float = 30.0) -> None:
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.1)


def text(words: int, seed: int | None = None) -> str:
    """About so many tokens of text that no other text begins with; with a seed always the same."""
    start = uuid.uuid4().hex if seed is None else f"document {seed} "
    return start + " " + " ".join(WORDS[(number * 7 + (seed or 0)) % len(WORDS)] for number in range(words))


def peak_to_mean(counts: list[int]) -> float:
    return max(counts) / (sum(counts) / len(counts))


def gained(before_run: list[int], after: list[int]) -> list[int]:
    return [late - early for early, late in zip(before_run, after, strict=True)]


def all_good(answers: list[httpx.Response]) -> None:
    assert Counter(answer.status_code for answer in answers) == {200: len(answers)}


def _answers(found: System) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return found.ask("hello").status_code == 200
    return False


def _metric(url: str, name: str) -> float:
    page = httpx.get(f"{url}/metrics", timeout=10.0).text
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE))
