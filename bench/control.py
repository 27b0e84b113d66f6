"""Control calls to engines and routers: models, cache reset, metrics, decisions. httpx; never on the measured path.

Every call has a timeout and answers with what it learned or None; only `Unreachable` is raised, with the address.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

from bench.workload.tokens import Tokens

_BLOCK_SIZE = re.compile(r'^vllm:cache_config_info\{[^}]*block_size="(\d+)"', re.MULTILINE)


class Unreachable(Exception):
    """A router or engine did not answer, or not as such a thing does. The message names it."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """From an engine's /metrics; None where it does not say."""

    block_size: int | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None

    @property
    def idle(self) -> bool:
        """True also where the engine does not say."""
        return not (self.running or self.waiting)


@dataclass(frozen=True, slots=True)
class Clock:
    """A duration that a server adds up: all of them in seconds, and how many."""

    seconds: float
    count: float

    def since(self, before: Clock) -> Clock:
        return Clock(self.seconds - before.seconds, self.count - before.count)

    def plus(self, other: Clock) -> Clock:
        return Clock(self.seconds + other.seconds, self.count + other.count)


ENGINE_CLOCKS = {
    "ttft": ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
    "queue": ("vllm:request_queue_time_seconds",),
    "prefill": ("vllm:request_prefill_time_seconds",),
}
"""Durations that engines add up, by the names of their histograms."""
ROUTER_CLOCKS = {
    "ttft": ("kvctl_time_to_first_token_seconds",),
    "tokenize": ("kvctl_tokenize_seconds",),
    "decide": ("kvctl_decide_seconds",),
}


@dataclass(frozen=True, slots=True)
class DecisionFacts:
    """What a router says of one decision."""

    decide_us: float | None
    predicted: int | None


class Control:
    """One HTTP client for control calls. Use as an async context manager."""

    def __init__(self, timeout: float = 30.0) -> None:
        token = os.environ.get("KVCTL_ADMIN_TOKEN", "").strip()
        self._admin = {"authorization": f"Bearer {token}"} if token else {}
        """Sent to admin ports only."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(timeout, connect=5.0), limits=limits, trust_env=False)

    async def __aenter__(self) -> Control:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def _call(self, method: str, url: str, **options: Any) -> httpx.Response:
        try:
            return await self._http.request(method, url, **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unreachable(f"{method} {url}: {error or type(error).__name__}") from error

    async def models(self, url: str) -> dict[str, int | None]:
        """The models behind an address, each with the longest request that it takes (None: it does not say)."""
        answer = await self._call("GET", f"{url}/v1/models")
        if answer.status_code != 200:
            raise Unreachable(f"GET {url}/v1/models: HTTP {answer.status_code}")
        data = _json(answer)
        entries = data.get("data") if isinstance(data, dict) else None
        found: dict[str, int | None] = {}
        for entry in entries or []:
            if isinstance(entry, dict) and "id" in entry:
                limit = entry.get("max_model_len")
                found[str(entry["id"])] = limit if isinstance(limit, int) else None
        return found

    async def version(self, url: str) -> tuple[str, str] | None:
        """A server's version and where it stands: `/version`, or the `server` header; None if it tells neither."""
        answer = await self._call("GET", f"{url}/version")
        data = _json(answer) if answer.status_code == 200 else None
        if isinstance(data, dict) and "version" in data:
            return str(data["version"])[:200], "/version"
        header = answer.headers.get("server")
        return (header[:200], "server header") if header else None

    async def post(self, url: str) -> None:
        """POSTs to an address that the user names.

        Raises:
            Unreachable: no answer, or not a 2xx.
        """
        answer = await self._call("POST", url)
        if not answer.is_success:
            raise Unreachable(f"POST {url}: HTTP {answer.status_code}")

    async def reset_engine(self, url: str) -> int:
        """Asks an engine to drop its prefix cache; the HTTP status. 200 alone proves nothing: see `cold.py`."""
        return (await self._call("POST", f"{url}/reset_prefix_cache")).status_code

    async def engine_state(self, url: str) -> EngineState:
        answer = await self._call("GET", f"{url}/metrics")
        if answer.status_code != 200:
            return EngineState()
        text = answer.text
        size = _BLOCK_SIZE.search(text)
        return EngineState(
            int(size.group(1)) if size else None,
            _sample(text, "vllm:num_requests_running"),
            _sample(text, "vllm:num_requests_waiting"),
            _sample(text, "vllm:kv_cache_usage_perc"),
        )

    async def clocks(self, url: str, names: Mapping[str, Sequence[str]]) -> dict[str, Clock]:
        """What a server's /metrics adds up, by our name; those that it has. Engine or admin port."""
        headers = self._admin if names is ROUTER_CLOCKS else None
        answer = await self._call("GET", f"{url}/metrics", headers=headers)
        if answer.status_code != 200:
            return {}
        found = {}
        for ours, theirs in names.items():
            for name in theirs:
                seconds, count = _sample(answer.text, f"{name}_sum"), _sample(answer.text, f"{name}_count")
                if seconds is not None and count is not None:
                    found[ours] = Clock(seconds, count)
        return found

    async def cached_tokens(self, url: str, model: str, prompt: Tokens) -> int | None:
        """Sends a prompt for one token, not streaming: the cached tokens that the engine reports; None if none.

        vLLM leaves the field out when it is 0; whether an engine reports at all is for the caller to find out.
        """
        body = {"model": model, "prompt": prompt.tolist(), "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        answer = await self._call("POST", f"{url}/v1/completions", json=body)
        if answer.status_code != 200:
            raise Unreachable(f"POST {url}/v1/completions: HTTP {answer.status_code}: {answer.text[:200]}")
        data = _json(answer)
        usage = data.get("usage") if isinstance(data, dict) else None
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return cached if isinstance(cached, int) else None

    async def reset_router(self, admin: str) -> None:
        answer = await self._call("POST", f"{admin}/reset", headers=self._admin)
        if answer.status_code != 200:
            raise Unreachable(f"POST {admin}/reset: HTTP {answer.status_code}")

    async def decisions(self, admin: str, limit: int) -> dict[str, DecisionFacts]:
        """The newest decisions of a router by id; empty where it has no such page."""
        answer = await self._call("GET", f"{admin}/decisions", params={"limit": str(limit)}, headers=self._admin)
        data = _json(answer) if answer.status_code == 200 else None
        rows = data.get("decisions") if isinstance(data, dict) else data
        if not isinstance(rows, list):
            return {}
        return {
            str(row["id"]): DecisionFacts(row.get("decide_us"), row.get("predicted_cached_tokens"))
            for row in rows
            if isinstance(row, dict) and "id" in row
        }

    async def workers(self, admin: str) -> frozenset[str] | None:
        """The ids of a router's workers; None where it has no such page."""
        answer = await self._call("GET", f"{admin}/workers", headers=self._admin)
        data = _json(answer) if answer.status_code == 200 else None
        rows = data.get("workers") if isinstance(data, dict) else data
        if not isinstance(rows, list):
            return None
        return frozenset(str(row["id"]) for row in rows if isinstance(row, dict) and "id" in row)


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None


def _sample(text: str, name: str) -> float | None:
    """The sum of a metric's samples in an exposition text."""
    values = []
    for line in text.splitlines():
        if line.startswith(name) and line[len(name) : len(name) + 1] in ("{", " "):
            try:
                values.append(float(line.rsplit(" ", 1)[1]))
            except ValueError:
                continue
    return sum(values) if values else None
