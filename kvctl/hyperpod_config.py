"""A HyperPod inference manifest as `kvctl serve --config`: what of it a router can take, and what it cannot.

Kinds: InferenceEndpointConfig and JumpStartModel of `inference.sagemaker.aws.amazon.com`, with the defaults that their
CRD fills in (strategy prefixaware, L1 on, L2 off, metrics on port 8080, invocationEndpoint `invocations`). Pure.

    intelligentRoutingSpec.routingStrategy        -> router-mode
    kvCacheSpec.l2CacheSpec (redis)               -> shared-cache = the URL
    kvCacheSpec.l2CacheSpec (tieredstorage)       -> shared-cache = events
    kvCacheSpec.enableL1Cache: false              -> host-cache-hit-weight = 0
    worker.modelInvocationPort.containerPort      -> port
    --served-model-name in worker.args            -> model
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from kvctl.errors import Problem

GROUP = "inference.sagemaker.aws.amazon.com/"
KINDS = frozenset({"InferenceEndpointConfig", "JumpStartModel"})
STRATEGIES = ("prefixaware", "kvaware", "session", "roundrobin")
CONTENT_PATHS = frozenset({"v1/completions", "v1/chat/completions", "v1/responses", "v1/messages"})
DEFAULT_METRICS_PORT = 8080
_READ = frozenset({"kvCacheSpec", "intelligentRoutingSpec", "metrics", "worker", "invocationEndpoint", "modelName"})
_KNOWN = {
    "intelligentRoutingSpec": frozenset({"enabled", "routingStrategy", "autoScalingSpec"}),
    "kvCacheSpec": frozenset({"enableL1Cache", "enableL2Cache", "l2CacheSpec", "cacheConfigFile"}),
    "kvCacheSpec.l2CacheSpec": frozenset({"l2CacheBackend", "l2CacheLocalUrl"}),
    "metrics": frozenset({"enabled", "modelMetrics", "metricsScrapeIntervalSeconds"}),
    "metrics.modelMetrics": frozenset({"port", "path"}),
}


@dataclass(slots=True)
class Taken:
    """`options` of `kvctl serve` by their long names, and a line for each thing that is not honoured as written."""

    options: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def is_manifest(data: Any) -> bool:
    return isinstance(data, Mapping) and str(data.get("apiVersion", "")).startswith(GROUP)


def options_of(manifest: Mapping[str, Any], file: str) -> Taken:
    """What `kvctl serve` takes from a manifest; `file` names it in messages.

    Raises:
        Problem: the manifest is not what its CRD allows; one line that names the field.
    """
    reader = _Reader(manifest, file)
    if manifest.get("kind") not in KINDS:
        reader.refuse("kind", f"must be {' or '.join(sorted(KINDS))}, not {_shown(manifest.get('kind'))}")
    spec = reader.part("spec")
    if spec is None:
        reader.refuse("spec", "is missing")
    taken = Taken()
    _strategy(reader, taken)
    _caches(reader, taken)
    _ports(reader, taken)
    _model(reader, taken)
    _rest(reader, taken)
    return taken


class _Reader:
    """Fields by their path below `spec`, of the type that they must have."""

    def __init__(self, manifest: Mapping[str, Any], file: str) -> None:
        self._manifest = manifest
        self._file = file

    def refuse(self, path: str, why: str) -> NoReturn:
        raise Problem(f"{self._file}: {path} {why}")

    def part(self, path: str) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self._at(path)
        if found is not None and not isinstance(found, Mapping):
            self.refuse(path, f"must be a mapping, not {_shown(found)}")
        return found

    def flag(self, path: str, default: bool) -> bool:
        found = self._at(path)
        if found is None:
            return default
        if not isinstance(found, bool):
            self.refuse(path, f"must be true or false, not {_shown(found)}")
        return found

    def text(self, path: str, default: str = "") -> str:
        found = self._at(path)
        if found is None:
            return default
        if not isinstance(found, str):
            self.refuse(path, f"must be a string, not {_shown(found)}")
        return found.strip()

    def port(self, path: str) -> int | None:
        found = self._at(path)
        if found is None:
            return None
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= 65535:
            self.refuse(path, f"must be a port from 1 to 65535, not {_shown(found)}")
        return found

    def words(self, path: str) -> list[str]:
        found = self._at(path)
        if found is None:
            return []
        if not isinstance(found, list):
            self.refuse(path, f"must be a list, not {_shown(found)}")
        return [str(one) for one in found]

    def unknown(self, path: str) -> list[str]:
        part = self.part(f"spec.{path}") or {}
        return [f"{path}.{key}" for key in part if key not in _KNOWN[path]]

    def _at(self, path: str) -> Any:
        here: Any = self._manifest
        for name in path.split("."):
            if not isinstance(here, Mapping):
                return None
            here = here.get(name)
        return here


def _strategy(reader: _Reader, taken: Taken) -> None:
    if not reader.flag("spec.intelligentRoutingSpec.enabled", False):
        taken.notes.append("intelligentRoutingSpec.enabled is not true: the manifest chooses no router mode")
        return
    told = reader.text("spec.intelligentRoutingSpec.routingStrategy") or STRATEGIES[0]
    strategy = told.lower().replace("-", "").replace("_", "")
    if strategy not in STRATEGIES:
        reader.refuse("spec.intelligentRoutingSpec.routingStrategy", f"must be one of {', '.join(STRATEGIES)}")
    taken.options["router-mode"] = strategy
    if strategy == "session":
        taken.notes.append("routingStrategy session: sessions are read from x-session-id; --session-key names another")


def _caches(reader: _Reader, taken: Taken) -> None:
    if reader.part("spec.kvCacheSpec") is None:
        return
    if not reader.flag("spec.kvCacheSpec.enableL1Cache", True):
        taken.options["host-cache-hit-weight"] = 0.0
    if reader.text("spec.kvCacheSpec.cacheConfigFile"):
        taken.notes.append("kvCacheSpec.cacheConfigFile is LMCache's own and not read; it may overrule kvCacheSpec")
    second = reader.part("spec.kvCacheSpec.l2CacheSpec")
    if not reader.flag("spec.kvCacheSpec.enableL2Cache", False):
        if second:
            taken.notes.append("kvCacheSpec.l2CacheSpec is not used: enableL2Cache is not true")
        return
    if not second:
        taken.notes.append("kvCacheSpec.enableL2Cache has no l2CacheSpec: the router knows of no L2")
        return
    _second_level(reader, taken)


def _second_level(reader: _Reader, taken: Taken) -> None:
    path = "spec.kvCacheSpec.l2CacheSpec"
    backend = reader.text(f"{path}.l2CacheBackend")
    url = reader.text(f"{path}.l2CacheLocalUrl")
    if backend.lower() == "tieredstorage":
        taken.options["shared-cache"] = "events"
        taken.notes.append("l2CacheBackend tieredstorage cannot be asked: only what KV events tell of it counts")
    elif backend.lower() == "redis":
        taken.options["shared-cache"] = _redis(reader, f"{path}.l2CacheLocalUrl", url)
        taken.notes.append(
            "l2CacheBackend redis: the router asks it for blocks as `kvctl sim` names them; LMCache names its chunks "
            "otherwise, and --lmcache-controller tells of those"
        )
    else:
        reader.refuse(f"{path}.l2CacheBackend", f"must be redis or tieredstorage, not {_shown(backend)}")


def _redis(reader: _Reader, path: str, url: str) -> str:
    from router.redis_url import RedisUrl

    if not url:
        reader.refuse(path, "is missing: the redis backend needs it, as in redis://redis.NAMESPACE.svc:6379")
    try:
        RedisUrl(url)
    except ValueError as error:
        reader.refuse(path, f"is {error}")
    return url


def _ports(reader: _Reader, taken: Taken) -> None:
    invocation = reader.port("spec.worker.modelInvocationPort.containerPort")
    told = reader.port("spec.metrics.modelMetrics.port")
    if not reader.flag("spec.metrics.enabled", True):
        taken.notes.append(
            "metrics.enabled is false: workers' /metrics is read all the same, the router's is on --admin-port"
        )
    if invocation is None:
        if told is not None:
            taken.notes.append(
                f"metrics.modelMetrics.port {told}: workers' /metrics is read on the port that serves them"
            )
        return
    taken.options["port"] = invocation
    metrics = DEFAULT_METRICS_PORT if told is None else told
    if metrics != invocation:
        whence = f"{metrics} (the default)" if told is None else str(metrics)
        taken.notes.append(
            f"metrics.modelMetrics.port {whence} is not worker.modelInvocationPort.containerPort {invocation}: "
            "HyperPod wants them equal, kvctl reads workers' /metrics on the latter"
        )
    path = reader.text("spec.metrics.modelMetrics.path", "/metrics")
    if path != "/metrics":
        taken.notes.append(f"metrics.modelMetrics.path {path}: workers' metrics are read at /metrics")


def _model(reader: _Reader, taken: Taken) -> None:
    words = reader.words("spec.worker.args")
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--served-model-name":
            value = value if equals else next(iter(words[at + 1 : at + 2]), "")
            if value and not value.startswith("-"):
                taken.options["model"] = value
            return
    if reader.text("spec.modelName"):
        taken.notes.append("modelName is SageMaker's name of it: which models are served, the workers are asked")


def _rest(reader: _Reader, taken: Taken) -> None:
    endpoint = reader.text("spec.invocationEndpoint", "invocations").strip("/")
    if endpoint not in CONTENT_PATHS:
        taken.notes.append(
            f"invocationEndpoint {endpoint}: requests to it are passed on unread, by load; those to "
            "v1/chat/completions and v1/completions are routed by content"
        )
    for path in _KNOWN:
        taken.notes += [f"{name} is not known here" for name in reader.unknown(path)]
    if reader.part("spec.intelligentRoutingSpec.autoScalingSpec") is not None:
        taken.notes.append("intelligentRoutingSpec.autoScalingSpec: kvctl does not scale itself")
    others = sorted(str(key) for key in reader.part("spec") or {} if key not in _READ)
    if others:
        taken.notes.append(f"not for a router: {', '.join(others)}")
    taken.notes.append("a manifest names no addresses: add the workers with --worker or --workers-file")


def _shown(value: object) -> str:
    return repr(value)[:60] if value is not None else "nothing"
