"""Two systems as answers in memory, with every field that anything reads: to be broken, field by field.

A `Script` answers like a recording, so that collection, checks and reports run over it without a server or a file.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from checks.catalogue.registry import ALL
from checks.collect import CollectRequest, collect
from checks.model import Diagnosis, Reason
from checks.report import json_, junit, sarif, yaml_
from checks.request import LogFile
from checks.runner import diagnose
from checks.snapshot import Role, Snapshot
from checks.sources.recording import Recording
from checks.sources.tape import Answer, Tape

NOW = 1785580200.0
Path = tuple[str | int, ...]
Key = tuple[str, str]

_ROUTER_LOG = """\
2026-08-01T10:00:01Z [2026-08-01 10:00:01,120] INFO: Initializing kvaware routing logic (routing_logic.py:1:x)
2026-08-01T10:00:02Z [2026-08-01 10:00:02,120] LMCache INFO: Start health check thread with interval 5 (c.py:1:x)
2026-08-01T10:00:09Z [2026-08-01 10:00:09,120] LMCache INFO: Registered instance-worker pair (w-0, 0) with IP \
10.0.0.1, port 9001 (registration_controller.py:1:x)
"""
_WORKER_LOG = """\
2026-08-01T10:00:01Z INFO 08-01 10:00:05 [api_server.py:1] vLLM API server version 0.19.1
2026-08-01T10:00:02Z [2026-08-01 10:00:02,000] LMCache INFO: LMCache initialized for role KVConnectorRole.WORKER with \
version 0.4.3, vllm version 0.19.1, lmcache cache_engine metadata: None (vllm_v1_adapter.py:485:lmcache.vllm)
2026-08-01T10:00:03Z [2026-08-01 10:00:03,000] LMCache INFO: Registering lmcache instance-worker: ('w-0', 0) (w.py:1:x)
"""
_WORKER_PAGE = """\
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{model_name="m"} 90000
vllm:prefix_cache_queries_total{model_name="m"} 90000
vllm:prefix_cache_hits_total{model_name="m"} 40000
vllm:kv_cache_usage_perc{model_name="m"} 0.5
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",num_gpu_blocks="100"} 1
lmcache:num_lookup_tokens_total 9000
lmcache:num_lookup_hits_total 900
"""


def _pod(name: str, container: Mapping[str, Any], labels: Mapping[str, str], ip: str) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "prod",
            "uid": f"uid-{name}",
            "labels": {"app": "m", "pod-template-hash": "5d4", "model": "m", **labels},
            "annotations": {
                "kvctl.io/ignore": "KV313",
                "kubectl.kubernetes.io/default-container": "vllm",
                "prometheus.io/port": "8000",
            },
            "creationTimestamp": "2026-08-01T10:00:00Z",
            "ownerReferences": [{"kind": "ReplicaSet", "name": "m-5d4", "controller": True}],
        },
        "spec": {
            "nodeName": "node-1",
            "hostNetwork": False,
            "volumes": [
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
                {"name": "conf", "configMap": {"name": "epp"}},
            ],
            "initContainers": [{"name": "fetch", "image": "busybox"}],
            "containers": [container, {"name": "proxy", "image": "envoy:v1"}],
        },
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "ready": True,
                    "restartCount": 1,
                    "state": {"running": {"startedAt": "2026-08-01T10:00:00Z"}},
                    "lastState": {
                        "terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-08-01T09:59:00Z"}
                    },
                },
                {"name": "proxy", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
            ],
        },
    }


def _worker(number: int) -> dict[str, Any]:
    container = {
        "name": "vllm",
        "image": "lmcache/vllm-openai:v0.4.3",
        "command": ["/bin/sh", "-c"],
        "args": [
            "vllm serve m --port 8000 --enable-prefix-caching --kv-events-config '{\"enable_kv_cache_events\": true}' "
            '--kv-transfer-config \'{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}\''
        ],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "OWNER", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
            {"name": "LMCACHE_INSTANCE_ID", "value": f"w-{number}"},
            {"name": "LMCACHE_ENABLE_CONTROLLER", "value": "True"},
            {"name": "LMCACHE_CONTROLLER_PULL_URL", "value": "router:9000"},
            {"name": "LMCACHE_CONTROLLER_REPLY_URL", "value": "router:9001"},
            {"name": "LMCACHE_LMCACHE_WORKER_PORTS", "value": "9101"},
            {"name": "LMCACHE_REMOTE_URL", "value": "redis://cache:6379"},
            {"name": "LMCACHE_INTERNAL_API_SERVER_ENABLED", "value": "true"},
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}},
            {"name": "CHUNK", "valueFrom": {"configMapKeyRef": {"name": "epp", "key": "chunk"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        ],
        "envFrom": [{"prefix": "X_", "configMapRef": {"name": "epp"}}, {"secretRef": {"name": "hf"}}],
        "ports": [{"name": "http", "containerPort": 8000}],
        "resources": {"limits": {"memory": "64Gi", "nvidia.com/gpu": "1"}, "requests": {"memory": "64Gi"}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    labels = {"app.kubernetes.io/component": "serving-engine", "llm-d.ai/role": "decode"}
    return _pod(f"w-{number}", container, labels, f"10.0.0.{number + 1}")


def _router() -> dict[str, Any]:
    container = {
        "name": "router-container",
        "image": "lmcache/lmstack-router:v0.1.11",
        "command": ["vllm-router"],
        "args": ["--routing-logic", "kvaware", "--port", "8000", "--lmcache-controller-port", "9000"],
        "env": [{"name": "LMCACHE_LOG_LEVEL", "value": "INFO"}],
        "ports": [{"name": "http", "containerPort": 8000}, {"name": "lmcache", "containerPort": 9000}],
    }
    return _pod("router-0", container, {"app.kubernetes.io/component": "router"}, "10.0.0.9")


def _named(name: str, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "prod", "labels": {"app": "m"}, "annotations": {}}, **fields}


def _resources() -> dict[str, list[dict[str, Any]]]:
    """Objects by plural; endpoints of HyperPod, the operator's and llm-d's beside each other."""
    endpoint = {
        "kind": "InferenceEndpointConfig",
        "metadata": {
            "name": "m",
            "namespace": "prod",
            "generation": 3,
            "annotations": {"kvctl.io/ignore": "KV312,KV999"},
        },
        "spec": {
            "modelName": "m",
            "invocationEndpoint": "v1/completions",
            "intelligentRoutingSpec": {"enabled": True, "routingStrategy": "kvaware", "sessionKey": "x"},
            "kvCacheSpec": {
                "enableL1Cache": True,
                "enableL2Cache": True,
                "cacheConfigFile": "",
                "l2CacheSpec": {"l2CacheBackend": "redis", "l2CacheLocalUrl": "redis://cache:6379"},
            },
            "metrics": {"enabled": True, "modelMetrics": {"port": 8000, "path": "/metrics"}},
            "worker": {"modelInvocationPort": {"containerPort": 8000}, "image": "x"},
        },
        "status": {
            "observedGeneration": 2,
            "selector": "app=m",
            "deploymentStatus": {"name": "m", "status": {"conditions": []}},
            "conditions": [{"type": "Error", "status": "False", "reason": "x", "message": "y"}],
        },
    }
    template = {
        "metadata": {"labels": {"app": "m"}, "annotations": {"addon": "v1.2.0-eksbuild.1"}},
        "spec": {"containers": [{"name": "manager", "image": "x/hyperpod-inference-operator:v3.1"}]},
    }
    return {
        "services": [
            _named(
                "router",
                spec={
                    "type": "ClusterIP",
                    "clusterIP": "10.1.0.1",
                    "selector": {"app.kubernetes.io/component": "router"},
                    "ports": [{"name": "pull", "port": 9000, "targetPort": "lmcache"}, {"port": 9001}],
                },
            ),
            _named("cache", spec={"type": "ExternalName", "externalName": "cache.example.com", "ports": []}),
            _named("prometheus-operated", spec={"clusterIP": "None", "ports": [{"name": "web", "port": 9090}]}),
        ],
        "deployments": [
            _named("m", kind="Deployment", spec={"replicas": 2, "template": template}),
            _named("hyperpod-inference-operator-controller-manager", spec={"replicas": 1, "template": template}),
        ],
        "replicasets": [
            {
                "metadata": {
                    "name": "m-5d4",
                    "namespace": "prod",
                    "ownerReferences": [{"kind": "Deployment", "name": "m", "controller": True}],
                }
            }
        ],
        "statefulsets": [_named("other", spec={"replicas": 1})],
        "horizontalpodautoscalers": [
            _named("m", spec={"scaleTargetRef": {"kind": "Deployment", "name": "m"}, "maxReplicas": 3})
        ],
        "networkpolicies": [
            _named(
                "closed",
                spec={
                    "podSelector": {
                        "matchLabels": {"app": "m"},
                        "matchExpressions": [{"key": "app", "operator": "In", "values": ["m"]}],
                    },
                    "policyTypes": ["Ingress"],
                    "ingress": [
                        {
                            "ports": [
                                {"protocol": "TCP", "port": 8000, "endPort": 8100},
                                {"port": "lmcache"},
                                {"protocol": "UDP", "port": 53},
                            ],
                            "from": [
                                {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/24"]}},
                                {
                                    "podSelector": {"matchLabels": {"a": "b"}},
                                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "prod"}},
                                },
                            ],
                        }
                    ],
                },
            )
        ],
        "endpointslices": [
            {
                "metadata": {
                    "name": "router-x",
                    "namespace": "prod",
                    "labels": {"kubernetes.io/service-name": "router"},
                },
                "endpoints": [{"addresses": ["10.0.0.9"]}],
            }
        ],
        "inferenceendpointconfigs": [endpoint],
        "jumpstartmodels": [
            _named("j", spec={"intelligentRoutingSpec": {"enabled": True}}, status={"selector": "app=j"})
        ],
        "vllmrouters": [_named("r", spec={"routingLogic": "kvaware"})],
        "vllmruntimes": [_named("m", spec={})],
        "inferencepools": [
            _named(
                "pool",
                spec={
                    "selector": {"matchLabels": {"app": "m"}},
                    "endpointPickerRef": {"name": "router", "namespace": "prod"},
                    "targetPorts": [{"number": 8000}],
                },
            )
        ],
    }


_EPP_CONFIG = """\
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: precise-prefix-cache-scorer
  parameters: {tokenProcessorConfig: {blockSize: 16, hashSeed: "42"}}
"""


def _prometheus_row(**labels: str) -> dict[str, Any]:
    stamps = [[NOW - 30, "1"], [NOW - 15, "2"]]
    return {
        "metric": {"namespace": "prod", "pod": "w-0", "instance": "10.0.0.1:8000", "job": "x", **labels},
        "value": [NOW, "12"],
        "values": stamps,
    }


@dataclass(slots=True)
class Script:
    """Answers by (kind, key). Duck-typed as a recording."""

    options: Mapping[str, Any]
    answers: dict[Key, Any] = field(default_factory=dict)
    """Text, or JSON values."""
    prometheus: Any = None
    """The result of every query; None: there is no Prometheus."""
    now: float = NOW
    cut_short: str = ""
    asked: set[Key] = field(default_factory=set)

    def answer(self, kind: str, key: str, turn: int) -> Answer:
        self.asked.add((kind, key))
        told = self.prometheus if kind == "prometheus" else self.answers.get((kind, key))
        if told is None:
            return Answer(error=Reason.NO_DATA, message="not there", at=NOW)
        return Answer(200, told if isinstance(told, str) else json.dumps(told), at=NOW + turn)

    def changed(self, key: Key, value: Any) -> Script:
        return Script(self.options, {**self.answers, key: value}, self.prometheus)

    def snapshot(self, **options: Any) -> Snapshot:
        tape = Tape(recording=cast(Recording, self))
        return collect(CollectRequest.of_options({**self.options, **options}), tape)

    def diagnosis(self, **options: Any) -> Diagnosis:
        return diagnose(self.snapshot(**options), ALL)


def cluster() -> Script:
    """A namespace with a router, two workers and an object of every kind that is listed."""
    found = Script({"namespace": "prod", "scrape_interval_s": 0, "scrape": "always"})
    found.prometheus = [_prometheus_row(__name__="vllm:prompt_tokens_total"), _prometheus_row(__name__="up")]
    kubernetes: dict[str, Any] = {
        "context": {"context": "test", "namespace": "prod"},
        "apis": {"groups": [{"name": "inference.networking.k8s.io", "preferredVersion": {"version": "v1"}}]},
        "prod/access": [
            {
                "verb": "list",
                "resource": "pods",
                "namespace": "prod",
                "allowed": False,
                "required": True,
                "needed_for": "x",
            }
        ],
        "prod/pods": {"items": [_router(), _worker(0), _worker(1)]},
        "prod/configmaps/epp": {
            "metadata": {"name": "epp", "namespace": "prod"},
            "data": {"config.yaml": _EPP_CONFIG, "chunk": "256"},
        },
        "prod/events/w-0": {
            "items": [
                {
                    "type": "Warning",
                    "reason": "BackOff",
                    "message": "Back-off restarting",
                    "involvedObject": {"name": "w-0", "namespace": "prod"},
                }
            ]
        },
    }
    kubernetes |= {f"prod/{plural}": {"items": objects} for plural, objects in _resources().items()}
    found.answers = {("kubernetes", key): value for key, value in kubernetes.items()}
    for name in ("w-0", "w-1"):
        found.answers |= {
            ("log", f"prod/{name}/vllm head"): _WORKER_LOG,
            ("log", f"prod/{name}/vllm previous"): _WORKER_LOG,
            ("page", f"prod/{name}:8000/metrics"): _WORKER_PAGE,
            ("page", f"prod/{name}:8000/version"): {"version": "0.19.1"},
            ("page", f"prod/{name}:8000/v1/models"): {
                "data": [{"id": "m", "max_model_len": 4096, "parent": None, "root": "m"}]
            },
            ("page", f"prod/{name}:6999/conf"): {"chunk_size": 256},
        }
    found.answers |= {
        ("log", "prod/router-0/router-container head"): _ROUTER_LOG,
        ("page", "prod/router-0:8000/metrics"): "lmcache_controller_registered_workers_count 2\n",
        ("page", "prod/router-0:8000/version"): {"version": "0.1.11"},
        ("page", "prod/router-0:8000/engines"): {"data": [{"id": "m", "url": "http://10.0.0.1:8000"}]},
        ("page", "prod/router-0:8000/v1/models"): {"data": [{"id": "m"}]},
    }
    return found


def _own_worker(name: str, port: int) -> dict[str, Any]:
    source = {
        "dp_rank": 0,
        "endpoint": "tcp://127.0.0.1:36623",
        "replay_endpoint": "tcp://127.0.0.1:42239",
        "topic": "kv",
        "lost": "",
        "connected": True,
        "complete": True,
        "last_seq": 5,
        "seconds_since_last_event": 0.3,
        "frames": 6,
        "blocks": 9,
        "malformed": 1,
        "gaps": 1,
        "repaired": 1,
        "frames_lost": 1,
        "error": "",
        "ignored": {"x": 1},
    }
    return {
        "id": name,
        "url": f"http://10.0.0.2:{port}",
        "health": "up",
        "health_why": "ok",
        "draining": False,
        "models": ["m"],
        "max_model_len": 4096,
        "engine_version": "0.19.1",
        "block_size": 16,
        "capacity_blocks": 100,
        "device": "cuda",
        "taints": [],
        "ranks": 1,
        "kv_events": "live",
        "kv_sources": [source],
        "cached_blocks": 9,
        "active_requests": 1,
        "warnings": {"x": "odd"},
        "tokenizer": {"m": {"source": "engine", "distrusted": "differs", "self_check": "x"}},
    }


def processes() -> Script:
    """kvctl's own router with its admin port, and two workers."""
    decision = {
        "id": "d-1",
        "request_id": "r-1",
        "mode": "kv",
        "model": "m",
        "at": NOW,
        "winner": {"worker": "w1", "dp_rank": 0},
        "reason": "lowest_cost",
        "degraded": ["approximate"],
        "prompt_tokens": 2700,
        "block_size": 16,
        "decide_us": 3.0,
        "predicted_cached_tokens": 1600,
        "engine_cached_tokens": 16,
    }
    admin = {
        "/workers": {"workers": [_own_worker("w1", 8001), _own_worker("w2", 8002)]},
        "/index": {
            "bytes": 990,
            "limit_bytes": 1000,
            "counters": {"stored": 9, "evicted": 3, "orphan_stores": 1, "unknown_removals": 1},
            "workers": [{"worker": "w1", "dp_rank": 0, "blocks": 9, "block_size": 16}],
        },
        "/loads": {"open_bookings": 1, "loads": [{"worker": "w1", "dp_rank": 0, "active_requests": 1}]},
        "/config": {"dispatch": {"mode": "kv"}, "core": {"policies": {"weights": {"overlap_score_credit": 1.0}}}},
        "/decisions": {"decisions": [{**decision, "id": f"d-{number}"} for number in range(60)], "kept": 60},
    }
    page = 'kvctl_legs_total{worker="w1",outcome="ok"} 90\nkvctl_open_requests 1\n'
    router = "10.0.0.1:8000"
    found = Script(
        {
            "routers": [f"http://{router}"],
            "admin": "http://10.0.0.1:9090",
            "workers": ["http://10.0.0.2:8001", "http://10.0.0.2:8002"],
            "scrape_interval_s": 0,
            "prometheus": "none",
        }
    )
    found.answers = {("page", f"{router} admin{path}"): value for path, value in admin.items()}
    found.answers |= {
        ("page", f"{router} admin/metrics"): page,
        ("page", f"{router}/version"): {"version": "0.1.0", "router": "kvctl"},
        ("page", f"{router}/engines"): {"data": []},
        ("page", f"{router}/health"): {"status": "ok"},
        ("page", f"{router}/v1/models"): {"data": [{"id": "m"}]},
    }
    for name in ("w1", "w2"):
        found.answers |= {
            ("page", f"{name}/metrics"): _WORKER_PAGE,
            ("page", f"{name}/version"): {"version": "0.19.1"},
            ("page", f"{name}/v1/models"): {"data": [{"id": "m", "max_model_len": 4096}]},
        }
    return found


def logs(text: str, role: Role = Role.WORKER) -> Script:
    """A single log file."""
    file = LogFile(role, role.value, "x.log")
    request = CollectRequest(log_files=(file,), scrape_interval_s=0, prometheus="none")
    return Script(request.options(), {("log", f"{role.value}:{role.value} head"): text})


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of everything inside a JSON value, outermost first."""
    if isinstance(value, dict):
        inside: list[tuple[str | int, Any]] = list(value.items())
    else:
        inside = list(enumerate(value)) if isinstance(value, list) else []
    for step, item in inside:
        yield (*path, step)
        yield from places(item, (*path, step))


def with_at(value: Any, path: Path, put: Any) -> Any:
    """A copy with `put` at the path; `MISSING`: with nothing there."""
    copied = copy.deepcopy(value)
    inside = copied
    for step in path[:-1]:
        inside = inside[step]
    if put is MISSING:
        del inside[path[-1]]
    else:
        inside[path[-1]] = put
    return copied


MISSING = object()


def printed(diagnosis: Diagnosis) -> list[str]:
    """All forms for programs."""
    return [form.render(diagnosis, "1") for form in (json_, yaml_, junit, sarif)]
