"""`from_prometheus` against a real Prometheus: labels, ratios, renamed and mangled names, restarts, targets."""

from __future__ import annotations

import time

import httpx
import pytest

from bench.sim.fleet import SimFleet
from checks.metrics.connection import PrometheusServer
from checks.metrics.histogram import hit_rates
from checks.metrics.prometheus import from_prometheus
from checks.metrics.queries import checks_with_expressions, expressions
from checks.metrics.view import Metrics
from checks.model import Reason
from checks.snapshot import Member
from checks.sources.tape import Tape
from tests.checks.build import router, worker

WINDOW_S = 120.0


def ask(server: PrometheusServer, *members: Member, tape: Tape | None = None) -> Metrics:
    metrics, unread = from_prometheus(tape or Tape.live(), server, members, window_s=WINDOW_S)
    assert unread == ()
    return metrics


def ratio(metrics: Metrics, above: str, below: str, member: str | None = None) -> float:
    denominator = metrics.increase(below, member)
    assert denominator.or_zero() > 0
    return metrics.increase(above, member).or_zero() / denominator.or_zero()


@pytest.fixture(scope="module")
def prod(prometheus: PrometheusServer) -> Metrics:
    return ask(prometheus, *(one(name, namespace="prod") for one, name in _PROD))


_PROD = ((worker, "w-0"), (worker, "w-1"), (router, "router-0"))


def test_each_member_has_its_own_ratio(prod: Metrics) -> None:
    assert ratio(prod, "prefix_cache_hits", "prefix_cache_queries", "prod/w-0") == pytest.approx(0.3)
    assert ratio(prod, "prefix_cache_hits", "prefix_cache_queries", "prod/w-1") == pytest.approx(0.6)


def test_the_window_is_named(prod: Metrics) -> None:
    assert (prod.window, prod.source, prod.by_member, prod.missing) == ("2m", "prometheus", True, None)


def test_what_a_router_exports_again_is_not_counted_as_an_engines(prod: Metrics) -> None:
    assert prod.now("requests_running").value == 4
    assert prod.find("prefix_cache_hits", "prod/router-0") == ()


def test_a_routers_own_names_keep_their_server_label(prod: Metrics) -> None:
    (pods,) = prod.find("router_healthy_pods")
    assert (pods.member, pods.labels) == ("prod/router-0", {"server": "http://10.0.0.1:8000"})


def test_the_controller_is_the_routers(prod: Metrics) -> None:
    assert prod.now("controller_registered_workers", "prod/router-0").value == 2
    assert prod.now("controller_keys").value == 640


def test_labels_of_the_configuration_are_kept(prod: Metrics) -> None:
    assert [one.labels["block_size"] for one in prod.find("cache_config_info")] == ["16", "16"]


def test_buckets_keep_their_bounds(prod: Metrics) -> None:
    assert {one.labels["le"] for one in prod.find("ttft_seconds_bucket", "prod/w-0")} == {"0.1", "+Inf"}


def test_targets_that_answer_are_up_and_their_samples_young(prod: Metrics) -> None:
    assert {key: target.up for key, target in prod.targets.items()} == dict.fromkeys(
        ("prod/router-0", "prod/w-0", "prod/w-1"), 1.0
    )
    assert all(target.age_s is not None and 0 <= target.age_s < 60 for target in prod.targets.values())


def test_the_scrape_interval_is_measured(prod: Metrics) -> None:
    assert prod.scrape_interval_s is not None
    assert round(prod.scrape_interval_s) >= 1


def test_a_page_scraped_by_two_jobs_counts_once(prometheus: PrometheusServer) -> None:
    found = ask(prometheus, worker("w-0", namespace="twice"))
    assert found.now("requests_running").value == 2
    assert ratio(found, "prefix_cache_hits", "prefix_cache_queries") == pytest.approx(0.3)


def test_names_of_0_8_and_0_9_are_found_and_nothing_is_counted_twice(prometheus: PrometheusServer) -> None:
    found = ask(prometheus, worker("w-0", namespace="old"), worker("w-1", namespace="old"))
    assert {one.member: one.spelled for one in found.find("prefix_cache_hits")} == {
        "old/w-0": "vllm:gpu_prefix_cache_hits_total",
        "old/w-1": "vllm:prefix_cache_hits_total",
    }
    for member in ("old/w-0", "old/w-1"):
        assert ratio(found, "prefix_cache_hits", "prefix_cache_queries", member) == pytest.approx(0.4)


def test_names_with_underscores_are_found_and_said_to_be_mangled(prometheus: PrometheusServer) -> None:
    found = ask(prometheus, worker("w-0", namespace="mangled"))
    assert found.mangled
    assert ratio(found, "prefix_cache_hits", "prefix_cache_queries") == pytest.approx(0.2)


def test_a_restart_in_the_window_is_seen_and_growth_goes_on(prometheus: PrometheusServer) -> None:
    found = ask(prometheus, worker("w-0", namespace="restarting"))
    grown = found.increase("prefix_cache_queries")
    assert grown.reset
    assert grown.or_zero() > found.now("prefix_cache_queries").or_zero()
    assert ratio(found, "prefix_cache_hits", "prefix_cache_queries") == pytest.approx(0.25)


def test_without_traffic_the_growth_is_zero_not_missing(prometheus: PrometheusServer) -> None:
    grown = ask(prometheus, worker("w-0", namespace="idle")).increase("prefix_cache_queries")
    assert (grown.value, grown.missing) == (0.0, None)


def test_a_target_that_fails_is_down_and_has_no_samples(prometheus: PrometheusServer) -> None:
    found = ask(prometheus, worker("w-0", namespace="down"), worker("w-1", namespace="down"))
    assert {key: target.up for key, target in found.targets.items()} == {"down/w-0": 1.0, "down/w-1": 0.0}
    assert found.targets["down/w-1"].age_s is None
    assert found.find("prefix_cache_queries", "down/w-1") == ()


def test_where_every_target_is_down_the_targets_still_say_so(prometheus: PrometheusServer) -> None:
    found, unread = from_prometheus(Tape.live(), prometheus, [worker("w-1", namespace="down")], window_s=WINDOW_S)
    assert (found.targets["down/w-1"].up, found.missing, unread) == (0.0, Reason.NO_DATA, ())


def test_labels_that_a_collector_exported_are_used(prometheus: PrometheusServer) -> None:
    found = ask(prometheus, worker("w-0", namespace="exported"))
    assert ratio(found, "prefix_cache_hits", "prefix_cache_queries", "exported/w-0") == pytest.approx(0.4)
    assert all(target.up is None for target in found.targets.values())


def test_without_pod_labels_the_instance_is_mapped_by_address(prometheus: PrometheusServer) -> None:
    found = ask(prometheus, worker("w-0", namespace="anywhere", ip="10.9.0.1"))
    assert ratio(found, "prefix_cache_hits", "prefix_cache_queries", "anywhere/w-0") == pytest.approx(0.7)
    assert {one.member for one in found.find("prefix_cache_hits")} == {"anywhere/w-0"}


def test_without_any_pod_label_or_address_only_the_fleet_is_known(prometheus: PrometheusServer) -> None:
    found = ask(prometheus, worker("w-0", namespace="bare", ip=""))
    assert not found.by_member
    assert ratio(found, "prefix_cache_hits", "prefix_cache_queries") == pytest.approx(0.8)
    assert found.find("prefix_cache_hits", "bare/w-0") == ()


def test_a_namespace_without_series_is_no_data_and_those_known_are_named(prometheus: PrometheusServer) -> None:
    found, (unread,) = from_prometheus(Tape.live(), prometheus, [worker("w-9", namespace="nowhere", ip="")])
    assert (found.missing, found.samples) == (Reason.NO_DATA, {})
    assert "bare" in unread.message
    assert "none of nowhere" in unread.message


def test_hit_rates_put_the_requests_without_a_hit_back_and_count_one_rank(prometheus: PrometheusServer) -> None:
    found = ask(prometheus, worker("w-0", namespace="ranks"))
    rates = hit_rates(found, "ranks/w-0")
    assert rates is not None
    assert rates.zero_share == pytest.approx(0.9)
    assert rates.mean == pytest.approx(0.05)
    assert found.increase("lmcache_lookup_0_hit_requests").or_zero() == pytest.approx(2 * rates.zeros)


def test_a_simulated_engine_is_found_by_its_url(prometheus: PrometheusServer, engines: SimFleet) -> None:
    members = [
        worker(engine.id, namespace="", kind="Process", ip="127.0.0.1", url=engine.url) for engine in engines.engines
    ]
    body = {"model": engines.model, "prompt": "def main(): pass " * 40, "max_tokens": 2}
    deadline = time.monotonic() + 20
    while True:
        httpx.post(f"{engines.engines[1].url}/v1/completions", json=body, timeout=20).raise_for_status()
        found = ask(prometheus, *members)
        if found.increase("prefix_cache_hits", members[1].key).or_zero() > 0:
            break
        assert time.monotonic() < deadline, found.samples.get("prefix_cache_hits")
        time.sleep(0.5)
    assert found.increase("prefix_cache_hits", members[0].key).value == 0
    assert found.now("request_success", members[1].key, finished_reason="length").or_zero() > 0
    assert {key: target.up for key, target in found.targets.items()} == {one.key: 1.0 for one in members}


def test_a_recording_gives_the_same_metrics_without_a_server(
    prometheus: PrometheusServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kept = tmp_path_factory.mktemp("recording") / "kept"
    member = worker("w-0", namespace="prod")
    with Tape.record(kept, options={}, version="test") as tape:
        live = ask(prometheus, member, tape=tape)
    nowhere = PrometheusServer("http://127.0.0.1:9")
    assert ask(nowhere, member, tape=Tape.replay(kept)) == live


@pytest.mark.parametrize("check", checks_with_expressions())
def test_every_dashboard_expression_runs(prometheus: PrometheusServer, check: str) -> None:
    for expression in expressions(check, window="2m"):
        answer = prometheus.query(expression.promql)
        assert answer.error is None, f"{expression.title}: {answer.message}"


@pytest.mark.parametrize(
    ("check", "at", "namespace", "expected"),
    [
        ("KV201", 0, "prod", 2.0),
        ("KV209", 0, "prod", 640.0),
        ("KV604", 0, "ranks", 0.9),
        ("KV604", 1, "ranks", 0.05),
        ("KV704", 2, "idle", 1.0),
    ],
)
def test_dashboard_expressions_show_what_they_say(
    prometheus: PrometheusServer, check: str, at: int, namespace: str, expected: float
) -> None:
    from checks.metrics.assemble import rows_of

    scope = f'namespace="{namespace}"'
    expression = expressions(check, selector=f'{scope},server=""', router=scope, window="2m")[at]
    (row,) = rows_of(prometheus.query(expression.promql).text)
    assert row.number() == pytest.approx(expected)
