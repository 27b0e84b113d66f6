"""What the router answers by itself on the data port: health, readiness, version, the fleet's models."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from router.core import RoutingCore
from router.fleet.worker import Health
from router.proxy.interface import Answer


def kvctl_version() -> str:
    try:
        return version("kvctl")
    except PackageNotFoundError:
        return "unknown"


class OwnAnswers:
    def __init__(self, core: RoutingCore, aliases: Mapping[str, str]) -> None:
        self.core = core
        self.aliases = aliases
        self.stopping = False

    def answer(self, path: str, allowed: frozenset[str] | None = None) -> Answer | None:
        """None where the path is not one of ours. `allowed`: the only models that are told of, if not all."""
        if path == "/health":
            return _json_answer(200, {"status": "ok"})
        if path == "/ready":
            up = sum(worker.health is Health.UP and not worker.draining for worker in self.core.fleet.workers.values())
            if self.stopping:
                return _json_answer(503, {"ready": False, "workers_up": up, "stopping": True})
            return _json_answer(200 if up else 503, {"ready": bool(up), "workers_up": up})
        if path == "/version":
            return _json_answer(200, {"version": kvctl_version(), "router": "kvctl"})
        if path == "/v1/models":
            models = self._models()
            if allowed is not None:
                models["data"] = [card for card in models["data"] if card["id"] in allowed]
            return _json_answer(200, models)
        return None

    def _models(self) -> dict[str, Any]:
        workers = self.core.fleet.workers.values()
        cards = []
        for model in self.core.fleet.view.models:
            lengths = [w.max_model_len for w in workers if model in w.models and w.max_model_len]
            cards.append(
                {
                    "id": model,
                    "object": "model",
                    "created": 0,
                    "owned_by": "kvctl",
                    "max_model_len": min(lengths) if lengths else None,
                }
            )
        served = {str(card["id"]): card for card in cards}
        cards += [
            {**served[model], "id": name, "root": model}
            for name, model in self.aliases.items()
            if model in served and name not in served
        ]
        return {"object": "list", "data": cards}


def _json_answer(status: int, data: object) -> Answer:
    return Answer(status, msgspec.json.encode(data))
