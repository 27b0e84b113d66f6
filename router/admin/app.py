"""The admin port: metrics, workers, decisions, explain, index. A small ASGI app on the router's loop, loopback by
default; not on the way of any request.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import asdict, replace
from typing import Any, Protocol

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router.core import RoutingCore
from router.dispatch import RequestDispatcher
from router.eligibility import BusyThresholds
from router.fleet.monitor import FleetMonitor
from router.fleet.registry import FleetFull
from router.fleet.spec import SpecError, spec_from_item
from router.fleet.worker import Worker
from router.model import BadRequest, Decision, RoutingError
from router.proxy.errors import error_body
from router.records import (
    DecisionLog,
    Refusal,
    record,
    refusal_record,
    refusal_summary,
    shown_shadow,
    shown_trust,
    summary,
)
from router.retry import CONTENT_PATHS

MAX_BODY = 64 << 20
_SLICE = 0.002


class KvFeedStates(Protocol):
    def states(self, worker_id: str) -> list[dict[str, Any]]: ...


class LMCacheStates(Protocol):
    """Who can tell of an LMCache controller (`router.lmcache.controller`)."""

    def shown(self) -> dict[str, Any]: ...

    def state_of(self, worker: str) -> list[dict[str, Any]]: ...


class AdminApp:
    """Holds what the handlers read; `app` is the ASGI application."""

    def __init__(
        self,
        core: RoutingCore,
        monitor: FleetMonitor,
        dispatcher: RequestDispatcher,
        log: DecisionLog,
        feed: KvFeedStates,
        registry: CollectorRegistry,
        config: dict[str, Any],
        lmcache: LMCacheStates | None = None,
    ) -> None:
        self.core = core
        self.monitor = monitor
        self.dispatcher = dispatcher
        self.log = log
        self.feed = feed
        self.registry = registry
        self.config = config
        self.lmcache = lmcache
        self.app = Starlette(
            routes=[
                Route("/health", self.health),
                Route("/metrics", self.metrics),
                Route("/workers", self.workers, methods=["GET"]),
                Route("/workers", self.add_worker, methods=["POST"]),
                Route("/workers/{id}", self.worker, methods=["GET"]),
                Route("/workers/{id}", self.remove_worker, methods=["DELETE"]),
                Route("/workers/{id}/drain", self.drain, methods=["POST"]),
                Route("/workers/{id}/undrain", self.undrain, methods=["POST"]),
                Route("/decisions", self.decisions),
                Route("/decisions/{id}", self.decision),
                Route("/explain", self.explain, methods=["POST"]),
                Route("/index", self.index),
                Route("/loads", self.loads),
                Route("/reset", self.reset, methods=["POST"]),
                Route("/busy-thresholds", self.thresholds, methods=["GET"]),
                Route("/busy-thresholds", self.set_thresholds, methods=["POST"]),
                Route("/shadow", self.shadow),
                Route("/queue", self.queue),
                Route("/lmcache", self.show_lmcache),
                Route("/config", self.show_config),
            ],
            exception_handlers={
                HTTPException: _http_error,
                RoutingError: _routing_error,
            },
        )

    async def health(self, request: Request) -> Response:
        return _json({"status": "ok", "mode": self.dispatcher.settings.mode})

    async def metrics(self, request: Request) -> Response:
        return Response(generate_latest(self.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    # -- workers -----------------------------------------------------------------------------------------------

    async def workers(self, request: Request) -> Response:
        return _json({"workers": [self._worker(worker) for worker in self.core.fleet.workers.values()]})

    async def worker(self, request: Request) -> Response:
        return _json(self._worker(self._find(request)))

    async def add_worker(self, request: Request) -> Response:
        """Body: `{"url": …, "id": …}` with the keys of a SPEC, or `{"spec": "URL,key=value"}`."""
        data = await _body(request)
        item = data.get("spec") if isinstance(data, dict) and "spec" in data else data
        try:
            spec = spec_from_item(item, "the request body")
        except SpecError as error:
            raise BadRequest(str(error)) from None
        if spec.id in self.core.fleet.workers:
            return _error(409, f"a worker with the id '{spec.id}' is registered already", "worker_exists")
        try:
            worker = self.monitor.add(spec)
        except FleetFull as error:
            return _error(409, str(error), "fleet_full")
        return _json(self._worker(worker), status=201)

    async def remove_worker(self, request: Request) -> Response:
        worker = self._find(request)
        self.monitor.remove(worker.id)
        return _json({"removed": worker.id})

    async def drain(self, request: Request) -> Response:
        return self._set_draining(request, True)

    async def undrain(self, request: Request) -> Response:
        return self._set_draining(request, False)

    def _set_draining(self, request: Request, draining: bool) -> Response:
        worker = self._find(request)
        worker.draining = draining
        self.core.fleet.changed()
        self.dispatcher.waiting.poke()
        return _json(self._worker(worker))

    def _find(self, request: Request) -> Worker:
        worker = self.core.fleet.workers.get(request.path_params["id"])
        if worker is None:
            raise HTTPException(404, f"no worker with the id '{request.path_params['id'][:200]}'")
        return worker

    def _worker(self, worker: Worker) -> dict[str, Any]:
        core = self.core
        return {
            "id": worker.id,
            "url": worker.spec.url,
            "health": str(worker.health),
            "health_why": worker.health_why,
            "draining": worker.draining,
            "circuit": self._circuit(worker),
            "warm_share": self._warm_share(worker),
            "models": list(worker.models),
            "max_model_len": worker.max_model_len,
            "engine_version": worker.engine_version,
            "block_size": worker.block_size or None,
            "block_size_from": worker.block_size_from or None,
            "capacity_blocks": worker.capacity_blocks or None,
            "device": worker.spec.device,
            "taints": list(worker.spec.taints),
            "ranks": worker.ranks,
            "kv_events": str(worker.kv),
            "kv_endpoint": worker.kv_endpoint,
            "replay_endpoint": worker.replay_endpoint,
            "kv_sources": self.feed.states(worker.id),
            "lmcache": [] if self.lmcache is None else self.lmcache.state_of(worker.id),
            "cached_blocks": sum(core.index.blocks(slot) for slot in worker.slots),
            "index_trust": None if core.truth is None else shown_trust(core.truth.of(worker)),
            "active_requests": sum(int(core.loads.active_requests[slot]) for slot in worker.slots),
            "warnings": dict(worker.warnings),
            "tokenizer": self.dispatcher.tokens.describe(worker.models),
        }

    def _circuit(self, worker: Worker) -> dict[str, Any] | None:
        breaker = self.dispatcher.breaker
        return None if breaker is None else breaker.shown(worker, time.monotonic())

    def _warm_share(self, worker: Worker) -> float:
        """What it may have of the others' mean load: less than 1 while it is in its slow start."""
        view = self.core.fleet.view
        shares = dict(zip(view.warming, self.core.warm_shares(view, time.monotonic()).tolist(), strict=True))
        return next((share for row, share in shares.items() if view.members[row] is worker), 1.0)

    # -- decisions ---------------------------------------------------------------------------------------------

    async def decisions(self, request: Request) -> Response:
        count = _count(request.query_params.get("limit"), 100, 10_000)
        full = request.query_params.get("full") in ("1", "true")
        shown: list[bytes] = []
        until = time.perf_counter() + _SLICE
        for kept in self.log.newest(count):
            shown.append(msgspec.json.encode(self._record(kept) if full else summary(kept)))
            if time.perf_counter() > until:
                await asyncio.sleep(0)  # requests share this loop
                until = time.perf_counter() + _SLICE
        refused = msgspec.json.encode(
            [refusal_record(one) if full else refusal_summary(one) for one in self.log.refusals(min(count, 1000))]
        )
        body = b'{"decisions":[%b],"kept":%d,"refusals":%b}' % (b",".join(shown), len(self.log), refused)
        return Response(body, media_type="application/json")

    async def decision(self, request: Request) -> Response:
        found = self.log.get(request.path_params["id"])
        if found is None:
            raise HTTPException(
                404, f"no decision or request '{request.path_params['id'][:200]}' among the newest {len(self.log)}"
            )
        return _json(refusal_record(found) if isinstance(found, Refusal) else self._record(found))

    def _record(self, decision: Decision) -> dict[str, Any]:
        return record(decision, self.core.settings.policies.weights)

    async def explain(self, request: Request) -> Response:
        """Body: a request as a client would send it. `?path=` says its path, `?mode=` another mode."""
        raw = await _raw(request)
        path = request.query_params.get("path") or _guess_path(raw)
        if path not in CONTENT_PATHS:
            raise BadRequest(f"path must be one of {', '.join(sorted(CONTENT_PATHS))}", param="path")
        return _json(self._record(await self.dispatcher.explain(path, raw, request.query_params.get("mode"))))

    # -- state -------------------------------------------------------------------------------------------------

    async def index(self, request: Request) -> Response:
        core = self.core
        counters = core.index.counters
        return _json(
            {
                "bytes": core.index.bytes,
                "limit_bytes": core.index.limit,
                "prediction_bytes": core.predictions.bytes,
                "counters": {name: getattr(counters, name) for name in counters.__dataclass_fields__},
                "workers": [
                    {
                        "worker": worker.id,
                        "dp_rank": rank,
                        "blocks": core.index.blocks(slot),
                        "block_size": worker.block_size or None,
                    }
                    for worker in core.fleet.workers.values()
                    for rank, slot in enumerate(worker.slots)
                ],
            }
        )

    async def loads(self, request: Request) -> Response:
        core, view = self.core, self.core.fleet.view
        blocks = core.loads.decode_blocks(view.slots)
        return _json(
            {
                "open_bookings": core.loads.open_bookings,
                "loads": [
                    {
                        "worker": view.workers[row],
                        "dp_rank": view.ranks[row],
                        "active_requests": int(core.loads.active_requests[slot]),
                        "prefill_tokens": int(core.loads.prefill_tokens[slot]),
                        "decode_blocks": int(blocks[row]),
                    }
                    for row, slot in enumerate(view.slots.tolist())
                ],
            }
        )

    async def reset(self, request: Request) -> Response:
        self.core.reset()
        if self.dispatcher.lookup is not None:
            self.dispatcher.lookup.forget()
        return _json({"reset": ["index", "predictions", "shared", "policies"]})

    async def thresholds(self, request: Request) -> Response:
        return _json(asdict(self.core.thresholds))

    async def set_thresholds(self, request: Request) -> Response:
        data = await _body(request)
        if not isinstance(data, dict) or not data.keys() <= asdict(self.core.thresholds).keys():
            raise BadRequest(
                "expected an object with decode_blocks (0..1 or null), prefill_tokens (count or null) and "
                "prefill_share (multiple of a worker's batch-tokens, or null)"
            )
        self.core.thresholds = replace(self.core.thresholds, **checked_thresholds(data))
        self.dispatcher.waiting.poke()
        return await self.thresholds(request)

    async def queue(self, request: Request) -> Response:
        return _json(self.dispatcher.waiting.shown())

    async def shadow(self, request: Request) -> Response:
        shadows = self.dispatcher.shadows
        counts = {} if shadows is None else {mode: shown_shadow(one) for mode, one in shadows.counts.items()}
        return _json({"mode": self.dispatcher.settings.mode, "shadows": counts})

    async def show_lmcache(self, request: Request) -> Response:
        if self.lmcache is None:
            raise HTTPException(404, "no LMCache controller runs here; start the router with --lmcache-controller")
        return _json(self.lmcache.shown())

    async def show_config(self, request: Request) -> Response:
        return _json(self.config)


def checked_thresholds(data: dict[str, Any]) -> dict[str, Any]:
    """The given thresholds if they are in range.

    Raises:
        BadRequest: names the one that is not.
    """
    share = data.get("decode_blocks")
    if share is not None and not (_number(share) and 0 <= share <= 1):
        raise BadRequest("decode_blocks must be a number from 0 to 1, or null", param="decode_blocks")
    tokens = data.get("prefill_tokens")
    if tokens is not None and not (isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0):
        raise BadRequest("prefill_tokens must be a whole number, not negative, or null", param="prefill_tokens")
    multiple = data.get("prefill_share")
    if multiple is not None and not (_number(multiple) and multiple >= 0):
        raise BadRequest("prefill_share must be a number, not negative, or null", param="prefill_share")
    return data


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def threshold_settings(
    decode_blocks: float | None, prefill_tokens: int | None, prefill_share: float | None = None
) -> BusyThresholds:
    """Raises BadRequest where one is out of range."""
    given = {"decode_blocks": decode_blocks, "prefill_tokens": prefill_tokens, "prefill_share": prefill_share}
    return BusyThresholds(**checked_thresholds(given))


def _guess_path(raw: bytes) -> str:
    data = _json_value(raw)
    if isinstance(data, dict):
        if "messages" in data:
            return "/v1/chat/completions"
        if "input" in data:
            return "/v1/responses"
    return "/v1/completions"


async def _raw(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise HTTPException(413, f"the body is larger than {MAX_BODY} bytes")
    return bytes(body)


async def _body(request: Request) -> Any:
    return _json_value(await _raw(request))


def _json_value(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequest("the body is not valid JSON for this server: it is nested too deeply") from None


def _count(text: str | None, default: int, most: int) -> int:
    if text is None:
        return default
    if not text.isdecimal() or len(text) > len(str(most)) or not 1 <= int(text) <= most:
        raise BadRequest(f"limit must be a whole number from 1 to {most}", param="limit")
    return int(text)


def _json(data: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(data), status_code=status, media_type="application/json")


def _error(status: int, message: str, code: str, param: str | None = None) -> Response:
    return Response(error_body(status, message, code, param), status_code=status, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}.get(error.status_code, "error")
    return _error(error.status_code, str(error.detail), code)


async def _routing_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RoutingError)
    return _error(error.status, str(error), error.code, error.param)
