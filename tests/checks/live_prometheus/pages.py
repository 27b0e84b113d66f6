"""The scripted pages: what each target exports at its n-th scrape, and the labels Prometheus puts on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Page = Callable[[int], tuple[int, str]]
RESTART_AT = 4


@dataclass(frozen=True)
class Target:
    page: Page
    labels: Mapping[str, str] = field(default_factory=dict)
    job: str = ""


def engine(ratio: float, *, labels: str = "", rate: int = 1000) -> Page:
    """vLLM 0.11 or later: `rate` queried tokens a scrape, `ratio` of them hits."""

    def page(n: int) -> tuple[int, str]:
        inside = f'model_name="m",engine="0"{labels}'
        return 200, (
            f"vllm:prefix_cache_queries_total{{{inside}}} {n * rate}\n"
            f"vllm:prefix_cache_hits_total{{{inside}}} {n * rate * ratio}\n"
            f"vllm:prompt_tokens_total{{{inside}}} {n * rate}\n"
            f"vllm:num_requests_running{{{inside}}} 2\n"
            f'vllm:cache_config_info{{engine="0",block_size="16",enable_prefix_caching="True"}} 1\n'
            f'vllm:time_to_first_token_seconds_bucket{{{inside},le="0.1"}} {n}\n'
            f'vllm:time_to_first_token_seconds_bucket{{{inside},le="+Inf"}} {2 * n}\n'
            f"vllm:time_to_first_token_seconds_sum{{{inside}}} {n}\n"
            f"vllm:time_to_first_token_seconds_count{{{inside}}} {2 * n}\n"
            f"process_start_time_seconds 1785578400\n"
        )

    return page


def lmcache(n: int) -> tuple[int, str]:
    """Two tensor-parallel ranks; nine of ten requests have no hit, the tenth one of 0.5."""
    _, text = engine(0.5)(n)
    for rank in ("0", "1"):
        inside = f'model_name="m",worker_id="{rank}",role="worker"'
        text += (
            f"lmcache:lookup_0_hit_requests_total{{{inside}}} {n * 9}\n"
            f'lmcache:request_cache_hit_rate_bucket{{{inside},le="0.4"}} 0\n'
            f'lmcache:request_cache_hit_rate_bucket{{{inside},le="0.5"}} {n}\n'
            f'lmcache:request_cache_hit_rate_bucket{{{inside},le="+Inf"}} {n}\n'
            f"lmcache:request_cache_hit_rate_sum{{{inside}}} {n * 0.5}\n"
            f"lmcache:request_cache_hit_rate_count{{{inside}}} {n}\n"
        )
    return 200, text


def router(n: int) -> tuple[int, str]:
    """A production stack's router: the engine's names again, with `server`, and LMCache's controller."""
    return 200, (
        f'vllm:num_requests_running{{server="http://10.0.0.1:8000"}} 2\n'
        f'vllm:gpu_prefix_cache_hits_total{{server="http://10.0.0.1:8000"}} {n * 7}\n'
        f'vllm:healthy_pods_total{{server="http://10.0.0.1:8000"}} 1\n'
        f'vllm:num_incoming_requests_total{{model="m"}} {n * 5}\n'
        f'lmcache:cache_controller_registered_workers_count{{role="controller"}} 2\n'
        f'lmcache:cache_controller_kv_pool_keys_count{{role="controller"}} 640\n'
    )


def version_0_8(n: int) -> tuple[int, str]:
    return 200, (
        f'vllm:gpu_prefix_cache_queries_total{{model_name="m"}} {n * 100}\n'
        f'vllm:gpu_prefix_cache_hits_total{{model_name="m"}} {n * 40}\n'
        f'vllm:gpu_cache_usage_perc{{model_name="m"}} 0.25\n'
        f'vllm:num_requests_running{{model_name="m"}} 1\n'
    )


def version_0_9(n: int) -> tuple[int, str]:
    _, old = version_0_8(n)
    return 200, old + (
        f'vllm:prefix_cache_queries_total{{model_name="m",engine="0"}} {n * 100}\n'
        f'vllm:prefix_cache_hits_total{{model_name="m",engine="0"}} {n * 40}\n'
    )


def mangled(n: int) -> tuple[int, str]:
    status, text = engine(0.2)(n)
    return status, text.replace("vllm:", "vllm_")


def restarting(n: int) -> tuple[int, str]:
    """Begins anew at its RESTART_AT-th scrape."""
    return engine(0.25)(n if n < RESTART_AT else n - RESTART_AT + 1)


def idle(_: int) -> tuple[int, str]:
    return engine(0.5)(7)


def broken(_: int) -> tuple[int, str]:
    return 500, "not today"


def pod(namespace: str, name: str) -> dict[str, str]:
    return {"namespace": namespace, "pod": name}


TARGETS: dict[str, Target] = {
    "w0": Target(engine(0.3), pod("prod", "w-0")),
    "w1": Target(engine(0.6), pod("prod", "w-1")),
    "r0": Target(router, pod("prod", "router-0")),
    "w0-again": Target(engine(0.3), pod("twice", "w-0"), job="monitor-a"),
    "w0-and-again": Target(engine(0.3), pod("twice", "w-0"), job="monitor-b"),
    "lmcache": Target(lmcache, pod("ranks", "w-0")),
    "v08": Target(version_0_8, pod("old", "w-0")),
    "v09": Target(version_0_9, pod("old", "w-1")),
    "mangled": Target(mangled, pod("mangled", "w-0")),
    "restarting": Target(restarting, pod("restarting", "w-0")),
    "idle": Target(idle, pod("idle", "w-0")),
    "lame": Target(engine(0.5), pod("down", "w-0")),
    "broken": Target(broken, pod("down", "w-1")),
    "collector": Target(engine(0.4, labels=',namespace="exported",pod="w-0"'), pod("monitoring", "collector-0")),
    "stranger": Target(engine(0.9), {"instance": "10.9.0.9:8000"}),
    "by-address": Target(engine(0.7), {"instance": "10.9.0.1:8000"}),
    "bare": Target(engine(0.8), {"namespace": "bare", "instance": "exporter"}),
}
