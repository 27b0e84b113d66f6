"""What a soak looks at: the router's memory and descriptors, its own figures, and how late its loop is."""

from __future__ import annotations

import asyncio
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

_KEPT = re.compile(
    r"^kvctl_(?:decision_log|token_cache|prediction|index)_bytes(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE
)
_PAGE = os.sysconf("SC_PAGE_SIZE")


class AdminClient:
    """The router's admin port, and `/health` on its data port (`lag`)."""

    def __init__(self, admin: str, data: str) -> None:
        self._http = httpx.AsyncClient(timeout=20.0, trust_env=False)
        self._admin, self._data = admin, data

    async def get(self, path: str) -> Any:
        answer = await self._http.get(self._admin + path)
        answer.raise_for_status()
        return answer.json()

    async def text(self, path: str) -> str:
        answer = await self._http.get(self._admin + path)
        answer.raise_for_status()
        return answer.text

    async def post(self, path: str) -> None:
        (await self._http.post(self._admin + path)).raise_for_status()

    async def lag(self) -> float:
        """Seconds until the router answers `GET /health`, which it does from its loop without further ado."""
        began = time.perf_counter()
        (await self._http.get(self._data + "/health")).raise_for_status()
        return time.perf_counter() - began

    async def close(self) -> None:
        await self._http.aclose()


@dataclass(frozen=True, slots=True)
class Sample:
    """`rss`: bytes; `at`: seconds from the start; `lag_ms`: the longest since the sample before; `kept`: bytes that the
    router says it keeps within limits of its own (decision log, caches, index), which fill in the course of a run."""

    at: float
    rss: int
    fds: int
    active: int
    bookings: int
    lag_ms: float
    cpu_s: float
    kept: int


def rss_of(pid: int) -> int:
    """Resident bytes of a process (Linux)."""
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * _PAGE


def fds_of(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def cpu_of(pid: int) -> float:
    """Seconds of processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watch:
    """Takes a sample every `every` seconds while it runs, the loop's lag four times a second."""

    def __init__(self, pid: int, admin: AdminClient, every: float) -> None:
        self.samples: list[Sample] = []
        self.worst_lag_ms = 0.0
        self._pid = pid
        self._admin = admin
        self._every = every
        self._began = time.monotonic()
        self._lag = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        following = self._began
        while not stop.is_set():
            self._lag = max(self._lag, await self._admin.lag())
            if time.monotonic() >= following:
                following += self._every
                await self.take()
            try:
                async with asyncio.timeout(0.25):
                    await stop.wait()
            except TimeoutError:
                pass
        await self.take()

    async def take(self) -> Sample:
        loads = await self._admin.get("/loads")
        active = sum(int(row["active_requests"]) for row in loads["loads"])
        lag, self._lag = self._lag * 1e3, 0.0
        self.worst_lag_ms = max(self.worst_lag_ms, lag)
        pid = self._pid
        sample = Sample(
            time.monotonic() - self._began,
            rss_of(pid),
            fds_of(pid),
            active,
            int(loads["open_bookings"]),
            lag,
            cpu_of(pid),
            int(sum(float(value) for value in _KEPT.findall(await self._admin.text("/metrics")))),
        )
        self.samples.append(sample)
        return sample


def slope(samples: list[Sample], skip: float = 0.3) -> float:
    """Bytes a second by which memory grows beyond what is kept on purpose: least squares over the samples after the
    first `skip` share, in which everything is used for the first time."""
    used = samples[int(len(samples) * skip) :]
    if len(used) < 2:
        return 0.0
    mean_at = sum(one.at for one in used) / len(used)
    other = [one.rss - one.kept for one in used]
    mean = sum(other) / len(other)
    spread = sum((one.at - mean_at) ** 2 for one in used)
    sloped = sum((one.at - mean_at) * (rest - mean) for one, rest in zip(used, other, strict=True))
    return sloped / spread if spread else 0.0
