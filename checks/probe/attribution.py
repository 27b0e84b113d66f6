"""Who served a request, whether its cache decided, and how many tokens came from a cache. Pure.

Headers are believed first, then the router's log, then counters that moved; what nothing tells stays unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from checks.logs.view import LogView, Match
from checks.metrics.view import Metrics
from checks.snapshot import Member, Snapshot
from checks.traffic import engine_unit

HIT_BEFORE_ROUTE_S = 1.0
"""A router writes that a cache was found just before it writes where the request goes."""
BLIND_REASONS = frozenset(
    {"random", "round_robin", "power_of_two", "least_loaded", "pinned", "session", "only_candidate", "affinity"}
)
"""Reasons of kvctl's decisions in which no cache took part."""

_FINISHED = ("request_success",)
_PROMPTS = ("sglang_prompt_tokens", "trtllm_prompt_tokens", "prompt_tokens")
_CACHED = (("sglang_cached_tokens",), ("trtllm_cached_tokens",))


def named(workers: Sequence[Member], told: str) -> str:
    """Key of the worker that a header, a log line or an answer means: by name, URL, HOST:PORT or address; '' if none or
    several fit."""
    text = told.strip()
    host, port = _place(text.partition("@")[0] if "://" in text else text)
    exact = [one for one in workers if text in (one.key, one.name) or (one.url and text.rstrip("/") == one.url)]
    by_place = [one for one in workers if port is not None and _listens(one, host, port)]
    by_address = [one for one in workers if port is None and host and host in one.ips]
    for found in (exact, by_place, by_address):
        if len(found) == 1:
            return found[0].key
    return ""


def _listens(worker: Member, host: str, port: int) -> bool:
    known_host, known_port = _place(worker.url)
    if known_host == host and known_port == port:
        return True
    return host in worker.ips and known_port in (None, port)


def _place(text: str) -> tuple[str, int | None]:
    """Host and port of a URL, or of HOST:PORT; '' and None where there is none."""
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        return parts.hostname or "", parts.port
    except ValueError:
        return "", None


@dataclass(frozen=True, slots=True)
class Route:
    """What a router's log says of one request."""

    url: str
    by_cache: bool


def routes(log: LogView, request_ids: Iterable[str]) -> dict[str, Route]:
    """By request id, where each of these requests went and whether a cache was found for it.

    The line about a cache has no request id: it is the last one before the request's own line, at most a second
    earlier, whose instance is that URL's, and not yet taken by another request. Where the URL of an instance is not
    known, any fits.
    """
    wanted = frozenset(request_ids)
    instances = _instances(log)
    waiting: list[Match] = []
    found: dict[str, Route] = {}
    for match in log.all("router-kv-hit", "router-route"):
        if match.pattern == "router-kv-hit":
            waiting.append(match)
            continue
        hit = next((one for one in reversed(waiting) if _belongs(one, match, instances)), None)
        if hit is not None:
            waiting.remove(hit)
        if match["rid"] in wanted:
            found[match["rid"]] = Route(match["url"], hit is not None)
    return found


def _belongs(hit: Match, route: Match, instances: Mapping[str, str]) -> bool:
    before, after = hit.record.at, route.record.at
    if before is not None and after is not None and after - before > HIT_BEFORE_ROUTE_S:
        return False
    host = instances.get(hit["inst"])
    return host is None or host == _place(route["url"])[0]


def _instances(log: LogView) -> dict[str, str]:
    """Host by instance id, from the router's map and the controller's registrations."""
    found = {match["inst"]: match["ip"] for match in log.all("lmcache-registered")}
    for match in log.all("router-instance-map"):
        try:
            told = ast.literal_eval(match["map"])
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        for name, url in told.items() if isinstance(told, dict) else ():
            if isinstance(url, str) and (host := _place(url)[0]):
                found[str(name)] = host
    return found


@dataclass(frozen=True, slots=True)
class Looked:
    """What LMCache wrote of one request, in tokens."""

    total: int
    computed: int | None
    """In the engine's own cache; None up to 0.3.13, which does not say."""
    hit: int

    @property
    def cached(self) -> int:
        """Both count from the prompt's start."""
        return max(self.hit, self.computed or 0)


def looked(log: LogView, request_id: str) -> Looked | None:
    """LMCache's line about the request; the first of them, where it was scheduled twice."""
    for match in log.all("lmcache-request"):
        if request_id in match["rid"] and match["hit"].isdecimal():
            computed = match["computed"]
            return Looked(int(match["total"]), int(computed) if computed else None, int(match["hit"]))
    return None


def moved(grown: Metrics, workers: Sequence[Member]) -> str:
    """Key of the one worker that finished exactly one request, or took in one prompt; '' if that is not clear."""
    finished = {worker.key: _first(grown, _FINISHED, worker.key) for worker in workers}
    if any(value is not None for value in finished.values()):
        active = [(key, value) for key, value in finished.items() if value]
        return active[0][0] if len(active) == 1 and active[0][1] == 1 else ""
    took = [worker.key for worker in workers if (_first(grown, _PROMPTS, worker.key) or 0) > 0]
    return took[0] if len(took) == 1 else ""


def cached_by_metric(snapshot: Snapshot, grown: Metrics, worker: Member) -> int | None:
    """Tokens that the worker took from a cache, by its counters; only where `moved` named it. None: not counted."""
    own = grown.increase("prefix_cache_hits", worker.key).value
    external = grown.increase("external_prefix_cache_hits", worker.key).value
    if own is not None:
        return round(own * engine_unit(snapshot, worker.key) + (external or 0.0))
    other = next((value for names in _CACHED if (value := _first(grown, names, worker.key)) is not None), None)
    return None if other is None else round(other)


def loaded_by_metric(grown: Metrics, worker: Member) -> float | None:
    """Tokens that a connector or LMCache brought to the worker; None where neither is counted."""
    told = [
        value
        for name in ("external_prefix_cache_hits", "lmcache_hit_tokens")
        if (value := grown.increase(name, worker.key, **grown.one_rank(name, worker.key)).value) is not None
    ]
    return max(told, default=None)


def external_hits(log: LogView | None, grown: Metrics, worker: Member, request_id: str) -> float | None:
    """Tokens that LMCache had for a request at an engine: by its line, else by the counters. None: nothing tells."""
    told = looked(log, request_id) if log is not None else None
    return float(told.hit) if told is not None else loaded_by_metric(grown, worker)


def _first(grown: Metrics, names: Iterable[str], member: str) -> float | None:
    return next((value for name in names if (value := grown.increase(name, member).value) is not None), None)


def by_cache(decision: Mapping[str, object]) -> bool:
    """A decision of kvctl's router was made by what caches hold."""
    predicted, reason = decision.get("predicted_cached_tokens"), decision.get("reason")
    return isinstance(predicted, int) and predicted > 0 and str(reason) not in BLIND_REASONS
