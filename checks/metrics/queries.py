"""PromQL for people: the expressions behind the metric checks, for dashboards, `--explain` and the pages of checks.

No check evaluates them: a check asks numerator and denominator apart (checks/metrics/prometheus.py). Names come from
metric_aliases.yaml; where an engine had another name before, `or` takes it where the new one is absent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from checks.metrics.aliases import Aliases

SELECTOR = 'namespace="prod",server=""'
ROUTER_SELECTOR = 'namespace="prod"'
WINDOW = "15m"


@dataclass(frozen=True, slots=True)
class Expression:
    """One expression and what it shows."""

    title: str
    promql: str


@dataclass(frozen=True, slots=True)
class _Terms:
    """Selectors and window of the expressions, and how a canonical name is written in them."""

    selector: str
    router: str
    window: str

    def now(self, name: str, more: str = "", *, router: bool = False) -> str:
        """The series of a name, older names by `or`."""
        inside = ",".join(one for one in (self.router if router else self.selector, more) if one)
        return _or(f"{spelled}{{{inside}}}" for spelled in _spelled(name))

    def increase(self, name: str, more: str = "", *, part: str = "") -> str:
        return self._over("increase", name, part, more)

    def rate(self, name: str, *, part: str = "") -> str:
        return self._over("rate", name, part, "")

    def _over(self, function: str, name: str, part: str, more: str) -> str:
        inside = ",".join(one for one in (self.selector, more) if one)
        return _or(f"{function}({spelled}{{{inside}}}[{self.window}])" for spelled in _spelled(name, part))

    def share(self, above: str, below: str, floor: int, more: str = "") -> str:
        """Growth over growth by pod; no sample where the denominator is at or below the floor."""
        numerator, denominator = self.increase(above, more), self.increase(below)
        return f"sum by (pod) ({numerator}) / (sum by (pod) ({denominator}) > {floor})"

    def mean(self, name: str) -> str:
        return f"sum({self.rate(name, part='_sum')}) / sum({self.rate(name, part='_count')})"

    def median(self, name: str) -> str:
        return _or(
            f"histogram_quantile(0.5, sum by (le) (rate({spelled}{{{self.selector}}}[{self.window}])))"
            for spelled in _spelled(name, "_bucket")
        )


def _spelled(name: str, part: str = "") -> list[str]:
    """Names as exported, one for each epoch: counters with `_total`, colons as they are."""
    alias = Aliases.load()[name]
    total = "_total" if alias.type == "counter" and not alias.exact else ""
    return [f"{exported}{total}{part}" for exported in alias.names]


def _or(terms: Iterable[str]) -> str:
    """For use inside parentheses."""
    return " or ".join(terms)


def expressions(
    check: str, *, selector: str = SELECTOR, router: str = ROUTER_SELECTOR, window: str = WINDOW
) -> tuple[Expression, ...]:
    """Of one check id; empty where a check has none. Selectors are PromQL matchers without braces."""
    return _all(_Terms(selector, router, window)).get(check, ())


def checks_with_expressions() -> tuple[str, ...]:
    return tuple(sorted(_all(_Terms(SELECTOR, ROUTER_SELECTOR, WINDOW))))


def _all(t: _Terms) -> dict[str, tuple[Expression, ...]]:
    return {**_index(t), **_health(t), **_effect(t), **_zeros(t), **_load(t), **_trust(t)}


def _index(t: _Terms) -> dict[str, tuple[Expression, ...]]:
    registered = t.now("controller_registered_workers", 'role="controller"', router=True)
    keys = t.now("controller_keys", 'role="controller"', router=True)
    return {
        "KV201": (
            Expression("workers registered with the router", f"max({registered})"),
            Expression(
                "the fewest in the window; below the one above: workers come and go",
                f"min_over_time({registered}[{t.window}])",
            ),
        ),
        "KV209": (Expression("chunks the router knows", f"max({keys})"),),
    }


def _health(t: _Terms) -> dict[str, tuple[Expression, ...]]:
    failed = t.rate("lmcache_local_cpu_evict_failed")
    return {
        "KV303": (Expression("LMCache healthy, by pod", f"min by (pod) ({t.now('lmcache_is_healthy')})"),),
        "KV311": (
            Expression(
                "last ping to the remote cache, by pod: 0 good, -1 timeout, -2 other",
                f"min by (pod) ({t.now('lmcache_remote_ping_error_code')})",
            ),
        ),
        "KV313": (Expression("failed evictions per second, by pod", f"sum by (pod) ({failed})"),),
        "KV316": (
            Expression("mean speed of retrieval, tokens/s", t.mean("lmcache_retrieve_speed")),
            Expression("mean time of a remote get, ms", t.mean("lmcache_remote_time_to_get")),
        ),
    }


def _effect(t: _Terms) -> dict[str, tuple[Expression, ...]]:
    local, asked = t.increase("prefix_cache_hits"), t.increase("prefix_cache_queries")
    loaded, loadable = t.increase("external_prefix_cache_hits"), t.increase("external_prefix_cache_queries")
    hit, requested = t.increase("lmcache_hit_tokens"), t.increase("lmcache_requested_tokens")
    engine_ratio = t.share("prefix_cache_hits", "prefix_cache_queries", 10000)
    lookup_ratio = t.share("lmcache_lookup_hits", "lmcache_lookup_tokens", 10000)
    return {
        "KV601": (
            Expression("hit ratio of the engine's prefix cache, by pod", engine_ratio),
            Expression(
                "local and external hits over local queries",
                f"(sum({local}) + (sum({loaded}) or vector(0))) / (sum({asked}) > 10000)",
            ),
        ),
        "KV602": (Expression("hit ratio of LMCache's lookups, by pod", f"clamp_max({lookup_ratio}, 1)"),),
        "KV603": (
            Expression(
                "share of the prompt tokens that LMCache delivered, by pod",
                t.share("lmcache_hit_tokens", "prompt_tokens", 10000, 'worker_id="0"'),
            ),
            Expression("delivered over requested tokens", f"sum({hit}) / (sum({requested}) > 0)"),
            Expression(
                "prompt tokens by where they came from (vLLM 0.19 and later)",
                f"sum by (source) ({t.increase('prompt_tokens_by_source')})",
            ),
        ),
        "KV605": (
            Expression(
                "stored over prompt tokens, by pod",
                t.share("lmcache_stored_tokens", "prompt_tokens", 5120, 'worker_id="0"'),
            ),
        ),
        "KV606": (
            Expression("hit ratio of external caches as vLLM sees it", f"sum({loaded}) / (sum({loadable}) > 10000)"),
        ),
        "KV608": (Expression("spread of the hit ratio between pods", f"max({engine_ratio}) - min({engine_ratio})"),),
    }


def _zeros(t: _Terms) -> dict[str, tuple[Expression, ...]]:
    name = "lmcache_request_cache_hit_rate"
    one_rank = 'worker_id="0"'
    zeros = f"sum({t.increase('lmcache_lookup_0_hit_requests', one_rank)})"
    observed = f"(sum({t.increase(name, one_rank, part='_count')}) or vector(0))"
    total = f"(sum({t.increase(name, one_rank, part='_sum')}) or vector(0))"
    requests = f"(({zeros} or vector(0)) + {observed} > 0)"
    return {
        "KV604": (
            Expression("share of requests without any hit", f"({zeros} or vector(0)) / {requests}"),
            Expression("mean hit rate of all requests, those without a hit included", f"{total} / {requests}"),
        )
    }


def _load(t: _Terms) -> dict[str, tuple[Expression, ...]]:
    served = t.increase("request_success")
    return {
        "KV505": (
            Expression(
                "share of the requests, by pod",
                f"sum by (pod) ({served}) / ignoring(pod) group_left () sum({served})",
            ),
        ),
        "KV607": (
            Expression("use of the KV cache, by pod", f"max by (pod) ({t.now('kv_cache_usage')})"),
            Expression("preemptions, by pod", f"sum by (pod) ({t.increase('preemptions')})"),
        ),
        "KV609": (
            Expression("median time to first token, s", t.median("ttft_seconds")),
            Expression("median time between tokens, s", t.median("inter_token_seconds")),
        ),
        "KV142": (_configuration(t),),
        "KV408": (_configuration(t),),
    }


def _configuration(t: _Terms) -> Expression:
    labels = "block_size, prefix_caching_hash_algo, cache_dtype, enable_prefix_caching"
    title = "settings of the engines' caches; more than one row a model: they differ"
    return Expression(title, f"count by ({labels}) ({t.now('cache_config_info')})")


def _trust(t: _Terms) -> dict[str, tuple[Expression, ...]]:
    running = t.now("requests_running")
    return {
        "KV704": (
            Expression("targets that are down", f"up{{{t.router}}} == 0"),
            Expression("age of the newest sample, by pod, s", f"time() - max by (pod) (timestamp({running}))"),
            Expression("pods with samples", f"count by (pod) ({running})"),
        ),
    }
