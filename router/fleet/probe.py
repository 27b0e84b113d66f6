"""Asking an engine what it is: health, models, block size, capacity, where its KV events are.

One `httpx` client for the whole fleet, control calls only; one call a worker at a time, and no limit over all, so that
engines that hang hold up nobody else. Nothing is assumed: what the engine does not tell stays
unknown and is said so. Sizes of answers are bounded, so a lying engine cannot fill the memory.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import httpx
import msgspec

from router.secret import Secret, bearer

MAX_ANSWER = 8 << 20
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}\s", re.MULTILINE)
_LONGEST_NAME = 256
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Reach(StrEnum):
    """What became of a call: REFUSED and TIMEOUT are the transport's, BAD is an answer that says "not well"."""

    OK = "ok"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class EventSource:
    rank: int
    endpoint: str
    replay_endpoint: str | None
    topic: str


@dataclass(slots=True)
class EngineFacts:
    """What an engine told; None or empty where it did not."""

    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    max_model_len: int | None = None
    version: str | None = None
    block_size: int | None = None
    capacity_blocks: int | None = None
    sources: list[EventSource] = field(default_factory=list)


class Prober:
    def __init__(self, timeout: float, tls: ssl.SSLContext | None = None, key: Secret | None = None) -> None:
        """`tls`: checks the certificates of https engines; without it, what the system trusts does. `key`: the
        engines' API key."""
        self._http = httpx.AsyncClient(
            timeout=timeout,
            headers={} if key is None else {"authorization": bearer(key)},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            follow_redirects=False,
            trust_env=False,
            verify=True if tls is None else tls,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def health(self, url: str) -> tuple[Reach, str]:
        """How `GET /health` went, and a few words for a person. An engine without that path is well if it answers."""
        try:
            answer = await self._http.get(f"{url}/health")
        except httpx.TimeoutException:
            return Reach.TIMEOUT, "no answer to GET /health in time"
        except (httpx.HTTPError, OSError) as error:
            return Reach.REFUSED, f"GET /health: {_short(error)}"
        if answer.status_code in (200, 404, 405):
            return Reach.OK, "ok"
        return Reach.BAD, f"GET /health answered {answer.status_code}"

    async def facts(self, url: str) -> EngineFacts:
        """Everything an engine tells of itself; each part may be missing on its own."""
        facts = EngineFacts()
        models = await self.models(url)
        if models is not None:
            facts.models, facts.adapters, facts.max_model_len = models
        version = await self._json(f"{url}/version")
        if isinstance(version, dict) and isinstance(version.get("version"), str):
            facts.version = _name(version["version"][:100])
        metrics = await self._get(f"{url}/metrics")
        if metrics is not None:
            facts.block_size, facts.capacity_blocks = cache_config(metrics.decode("utf-8", "replace"))
        facts.sources = event_sources(await self._json(f"{url}/kv_event_sources"))
        return facts

    async def models(self, url: str) -> tuple[tuple[str, ...], tuple[str, ...], int | None] | None:
        """(models, those of them that are adapters, shortest context) as the engine lists them now; None if it does
        not."""
        models = await self._json(f"{url}/v1/models")
        if not isinstance(models, dict) or not isinstance(models.get("data"), list):
            return None
        cards = [card for card in models["data"][:1000] if isinstance(card, dict)]
        names, shortest = _models(cards)
        return names, _models([card for card in cards if isinstance(card.get("parent"), str)])[0], shortest

    async def _json(self, url: str) -> Any:
        body = await self._get(url)
        if body is None:
            return None
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError):
            return None

    async def _get(self, url: str) -> bytes | None:
        try:
            async with self._http.stream("GET", url) as answer:
                if answer.status_code != 200:
                    return None
                body = bytearray()
                async for part in answer.aiter_bytes():
                    body += part
                    if len(body) > MAX_ANSWER:
                        return None
                return bytes(body)
        except (httpx.HTTPError, OSError):
            return None


def _models(cards: list[dict[str, Any]]) -> tuple[tuple[str, ...], int | None]:
    """(names, shortest context) of an engine's model cards; what cannot be a name or a length is left out."""
    names = (_name(card.get("id")) for card in cards)
    lengths = [card.get("max_model_len") for card in cards]
    known = [length for length in lengths if type(length) is int and length > 0]
    return tuple(dict.fromkeys(name for name in names if name)), min(known, default=None)


def _name(given: Any) -> str | None:
    """A name that can stand in a log line: printable, and not endless."""
    return given if isinstance(given, str) and given.isprintable() and len(given) <= _LONGEST_NAME else None


def _short(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:200]


def cache_config(metrics: str) -> tuple[int | None, int | None]:
    """(block size, blocks) from vLLM's `vllm:cache_config_info` gauge; None where it is absent or not a number."""
    found = _CACHE_CONFIG.search(metrics)
    if found is None:
        return None, None
    labels = dict(_LABEL.findall(found.group(1)))
    return _positive(labels.get("block_size")), _positive(labels.get("num_gpu_blocks"))


def _positive(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch("[0-9]{1,10}", text) and 0 < int(text) < 1 << 31 else None


def event_sources(data: Any) -> list[EventSource]:
    """The ZMQ publishers in vLLM's answer to `GET /kv_event_sources`: a map from dp rank to its configuration."""
    if not isinstance(data, dict):
        return []
    sources: dict[int, EventSource] = {}
    for rank, config in list(data.items())[:64]:
        if not (isinstance(rank, str) and re.fullmatch("[0-9]{1,4}", rank) and isinstance(config, dict)):
            continue
        endpoint, replay = config.get("endpoint"), config.get("replay_endpoint")
        if config.get("publisher", "zmq") != "zmq" or not isinstance(endpoint, str):
            continue
        topic = config.get("topic")
        sources[int(rank)] = EventSource(
            rank=int(rank),
            endpoint=endpoint,
            replay_endpoint=replay if isinstance(replay, str) else None,
            topic=topic if isinstance(topic, str) else "",
        )
    return list(sources.values())
