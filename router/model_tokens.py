"""Token ids by model: one `TokenService` a model, its engines found in the fleet, its self-check run for new workers.

A local tokenizer, where given, serves every model until a self-check shows that it is not that model's; then the
model's own engines are asked. Touches the network only through the services.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable
from typing import Any

import msgspec

from router.fleet.registry import Fleet
from router.fleet.view import FleetView
from router.fleet.worker import Health, Worker
from router.secret import Secret, bearer
from router.tokens.body import Body
from router.tokens.engine_http import EngineHttp
from router.tokens.remote import Fetched, RemoteTokenizer, fetch, fetch_text
from router.tokens.selfcheck import CheckResult, check
from router.tokens.service import TokenResult, TokenService
from router.tokens.tokenizer import LocalTokenizer

log = logging.getLogger("kvctl.tokens")

_MOST_MODELS = 256
_CHECK_TIMEOUT = 5.0
_TEXT_TIMEOUT = 5.0
_TEXT_TRIES = 3


class ModelTokens:
    def __init__(
        self,
        fleet: Fleet,
        local: LocalTokenizer | None,
        tls: ssl.SSLContext | None = None,
        key: Secret | None = None,
    ) -> None:
        self._fleet = fleet
        self._local = local
        self._http = EngineHttp(tls, "" if key is None else f"authorization: {bearer(key)}\r\n")
        self._services: dict[str, TokenService] = {}
        self._checks: dict[str, CheckResult] = {}
        self._urls: dict[str, tuple[FleetView, list[str]]] = {}

    def tokens(self, model: str, body: Body) -> TokenResult | Awaitable[TokenResult]:
        """The ids of the body's prompt, see `TokenService.tokens`. Only a model that a worker has told gets a service
        of its own: the other names are a client's invention, or those of engines that tell none."""
        return self._service(model if model in self._fleet.view.models else "").tokens(body)

    def text(self, model: str, ids: list[int]) -> str | Awaitable[str | None] | None:
        """The text of generated ids, special tokens shown; None where nobody can tell."""
        model = model if model in self._fleet.view.models else ""
        service = self._service(model)
        if service.local is not None and service.distrusted is None:
            return service.local.decode(ids)
        return self._text(model, ids)

    async def _text(self, model: str, ids: list[int]) -> str | None:
        asked = msgspec.json.encode({"tokens": ids} | ({"model": model} if model else {}))
        for url in self._engines(model)[:_TEXT_TRIES]:
            text = await fetch_text(self._http, url, asked, _TEXT_TIMEOUT)
            if text is not None:
                return text
        return None

    def services(self) -> dict[str, TokenService]:
        return self._services

    def caches(self) -> list[tuple[str, int, int]]:
        """(name, bytes, limit) of the segment cache and of the engines' answers, summed over models."""
        found = []
        if self._local is not None:
            found.append(("segments", self._local.segments.lru.bytes, self._local.segments.lru.limit))
        answers = [service.remote.lru for service in self._services.values() if service.remote is not None]
        found.append(("engine_answers", sum(lru.bytes for lru in answers), sum(lru.limit for lru in answers)))
        return found

    def describe(self, models: tuple[str, ...]) -> dict[str, Any]:
        """For the admin port: where each model's ids come from, and what the self-check found."""
        return {model: self._describe(model) for model in models}

    def _describe(self, model: str) -> dict[str, Any]:
        service = self._services.get(model)
        checked = self._checks.get(model)
        distrusted = service.distrusted if service is not None else None
        return {
            "source": "local" if self._local is not None and distrusted is None else "engine",
            "distrusted": None if distrusted is None else str(distrusted),
            "self_check": None if checked is None else checked.message,
        }

    async def check(self, worker: Worker) -> None:
        """Compare our ids with this worker's, for each of its models; a difference is logged and acted on there."""
        if self._local is None:
            return
        for model in worker.models[:_MOST_MODELS]:

            async def ask(question: dict[str, Any]) -> Fetched:
                return await fetch(self._http, worker.spec.url, msgspec.json.encode(question), _CHECK_TIMEOUT)

            self._checks[model] = await check(self._service(model), ask, model)

    def _service(self, model: str) -> TokenService:
        service = self._services.get(model)
        if service is None:
            if len(self._services) >= _MOST_MODELS:
                model = ""
                if model in self._services:
                    return self._services[model]
            remote = RemoteTokenizer(lambda: self._engines(model), self._http)
            service = self._services[model] = TokenService(self._local, remote)
        return service

    def _engines(self, model: str) -> list[str]:
        """URLs of reachable engines with `model`; kept until the fleet changes."""
        view = self._fleet.view
        kept = self._urls.get(model)
        if kept is None or kept[0] is not view:
            urls = [
                worker.spec.url
                for worker in self._fleet.workers.values()
                if worker.health is Health.UP and worker.serves(model)
            ]
            kept = self._urls[model] = (view, urls)
        return kept[1]

    def close(self) -> None:
        for service in self._services.values():
            service.close()
        self._http.close()
