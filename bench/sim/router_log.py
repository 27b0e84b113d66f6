"""The router's side of the imitated logs: LMCache's controller, and the lines of a KV-aware router.

`Controller` knows which workers are registered and drops those whose heartbeat stays away; `RouterLog` writes its
records and those of routing, in the production stack's words or, for the HyperPod style, also in AWS's. Whoever
routes feeds it: the simulated workers register by themselves, and `routed_from` reads a decision of kvctl's own
router (`GET /decisions`). No clock: times are passed in. Cost: a record an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.sim.lines import Lines

_ROUTING = "routing_logic.py:{}:vllm_router.routers.routing_logic"
_REQUEST = "request.py:{}:vllm_router.services.request_service.request"
_DISCOVERY = "service_discovery.py:{}:vllm_router.service_discovery"
_MANAGER = "controller_manager.py:{}:lmcache.v1.cache_controller.controller_manager"
_REGISTRATION = "registration_controller.py:{}:lmcache.v1.cache_controller.controllers.registration_controller"


@dataclass(frozen=True, slots=True)
class Routed:
    """One request's way. `instance` is the worker's LMCache instance; `hit` whether its cache decided.

    `at` in seconds since 1970, `seconds` what the decision took.
    """

    request: str
    instance: str
    url: str
    hit: bool
    at: float
    seconds: float
    session: str | None = None


def routed_from(decision: Mapping[str, Any], urls: Mapping[str, str], instances: Mapping[str, str]) -> Routed | None:
    """A row of `GET /decisions` of kvctl's router as an event, a hit where the winner was thought to hold part of the
    prompt; None if nobody served the request.

    Args:
        decision: the row.
        urls: base URL by worker id.
        instances: LMCache instance id by worker id; a worker that is not there goes by its own id.
    """
    winner = decision["winner"]
    if winner is None:
        return None
    worker = winner["worker"]
    return Routed(
        request=decision["request_id"],
        instance=instances.get(worker, worker),
        url=urls[worker],
        hit=bool(decision["predicted_cached_tokens"]),
        at=decision["at"],
        seconds=decision["decide_us"] / 1e6,
    )


class RouterLog:
    """Writes the records of a router's container."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._urls: dict[str, str] = {}

    def began(self, none_hash: int, check_interval: float, ports: tuple[int, int, int]) -> None:
        """The start: `ports` are those on which registrations of KV, replies and heartbeats arrive."""
        pull, reply, heartbeat = ports
        self._lines.router("INFO", "Initializing kvaware routing logic", _ROUTING.format(860))
        text = f"port: {pull}, reply port: {reply}, heartbeat port: {heartbeat}"
        self._lines.router("INFO", f"Initializing KvawareRouter with {text}", _ROUTING.format(270))
        text = f"Initialized NONE_HASH={none_hash} from vLLM (>= PR#20511)"
        self._lmcache("INFO", text, "token_database.py:100:lmcache.v1.token_database")
        self._lmcache("INFO", "Using hash algorithm: builtin", "token_database.py:110:lmcache.v1.token_database")
        self._lmcache("INFO", f"Start health check thread, interval: {check_interval:g}", _MANAGER.format(148))
        self._lmcache("INFO", f"Starting reply request handler on 0.0.0.0:{reply}", _MANAGER.format(508))
        self._lmcache("INFO", f"Starting heartbeat request handler on 0.0.0.0:{heartbeat}", _MANAGER.format(512))
        self._lmcache("INFO", f"Starting pull request handler on 0.0.0.0:{pull}", _MANAGER.format(521))

    def discovered(self, name: str, host: str, models: list[str]) -> None:
        """An engine answers; AWS's router is silent about it."""
        if self._lines.style.aws:
            return
        text = f"Discovered new serving engine {name} at {host}, running models: {models}"
        self._lines.router("INFO", text, _DISCOVERY.format(460))

    def registered(self, instance: str, worker: int, address: str) -> None:
        self._lmcache(
            "INFO",
            f"peer init url of {(instance, worker)} is None, only register when p2p is used.",
            _REGISTRATION.format(138),
        )
        text = f"Registered instance-worker {(instance, worker)} with URL {address}"
        self._lmcache("INFO", text, _REGISTRATION.format(163))
        if self._lines.style.aws:
            self._lines.plain("INFO", f"Worker registered: {instance}")

    def registered_again(self, instance: str, worker: int) -> None:
        text = f"Instance-worker {(instance, worker)} already registered, skip registration"
        self._lmcache("WARNING", text, _REGISTRATION.format(125))

    def unknown_heartbeat(self, instance: str, worker: int) -> None:
        text = f"{(instance, worker)} has not been registered, re-register the worker."
        self._lmcache("WARNING", text, _REGISTRATION.format(215))

    def reaped(self, instance: str, worker: int, last: float, now: float, timeout: float) -> None:
        text = f"Worker {instance}_{worker} last heartbeat time: {last}, current time: {now}"
        self._lmcache("WARNING", f"{text}, more than {timeout:g} seconds", _MANAGER.format(487))
        text = f"Deregistered instance-worker {(instance, worker)}"
        self._lmcache("INFO", text, _REGISTRATION.format(190))

    def routed(self, event: Routed) -> None:
        """A request's lines: of a hit the instance, of a miss nothing but (AWS's router) that there is none."""
        known = self._urls.get(event.instance) == event.url
        self._urls[event.instance] = event.url
        found = f"Routing request to {event.instance} found by kvaware router"
        if self._lines.style.aws:
            if event.hit:
                self._lines.plain("INFO", found)
            else:
                self._lines.plain("DEBUG", "Matched instance url None")
            return
        if event.hit:
            if not known:
                self._lines.router("INFO", f"Instance id to ip mapping: {self._urls}", _ROUTING.format(372))
            self._lines.router("INFO", found, _ROUTING.format(381))
        text = f"Routing request {event.request} with session id {event.session} to {event.url} at {event.at}"
        self._lines.router("INFO", f"{text}, process time = {event.seconds:.4f}", _REQUEST.format(303))

    def _lmcache(self, level: str, message: str, place: str) -> None:
        self._lines.lmcache(level, message, place, child=False)


@dataclass(slots=True)
class _Registered:
    address: str
    last: float


class Controller:
    """Who is registered.

    Args:
        log: where it tells what happens.
        timeout: seconds after which a worker without a heartbeat is dropped.
    """

    def __init__(self, log: RouterLog, timeout: float) -> None:
        self._log = log
        self._timeout = timeout
        self._workers: dict[tuple[str, int], _Registered] = {}

    def knows(self, instance: str, worker: int) -> bool:
        """Whether this worker is registered now."""
        return (instance, worker) in self._workers

    def register(self, instance: str, worker: int, address: str, now: float) -> None:
        """`address` is the worker's `ip:port`; `now` in seconds since 1970."""
        if (instance, worker) in self._workers:
            self._log.registered_again(instance, worker)
            return
        self._workers[instance, worker] = _Registered(address, now)
        self._log.registered(instance, worker, address)

    def heartbeat(self, instance: str, worker: int, address: str, now: float) -> None:
        known = self._workers.get((instance, worker))
        if known is None:
            self._log.unknown_heartbeat(instance, worker)
            self.register(instance, worker, address, now)
        else:
            known.last = now

    def check(self, now: float) -> None:
        """Drop whoever has not been heard for too long."""
        for (instance, worker), known in list(self._workers.items()):
            if now - known.last > self._timeout:
                del self._workers[instance, worker]
                self._log.reaped(instance, worker, known.last, now, self._timeout)
