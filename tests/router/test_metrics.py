"""What is counted on the request path, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from router.core import CoreSettings, RoutingCore
from router.metrics import Histogram, RouterCollector, RouterStats
from router.model import WorkerSpec
from router.proxy.interface import Outcome, PlaneStats


def scraped(
    stats: RouterStats, core: RoutingCore | None = None, plane: PlaneStats | None = None
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = CollectorRegistry()
    registry.register(RouterCollector(core or RoutingCore(CoreSettings(seed=1)), stats, plane or PlaneStats()))
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_histogram_counts_cumulatively_up_to_each_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 3.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1]
    stats = RouterStats()
    stats.ttft = histogram
    found = scraped(stats)
    name = "kvctl_time_to_first_token_seconds"
    assert found[f"{name}_bucket", (("le", "0.1"),)] == 2
    assert found[f"{name}_bucket", (("le", "1.0"),)] == 3
    assert found[f"{name}_bucket", (("le", "+Inf"),)] == 4
    assert found[f"{name}_sum", ()] == 3.65


def test_predicted_and_reported_tokens_are_kept_apart() -> None:
    stats = RouterStats()
    stats.joined(predicted=96, reported=96)
    stats.joined(predicted=64, reported=0)
    found = scraped(stats)
    assert found["kvctl_joined_requests_total", ()] == 2
    assert found["kvctl_joined_predicted_tokens_total", ()] == 160
    assert found["kvctl_engine_reused_tokens_total", ()] == 96
    assert found["kvctl_exact_predictions_total", ()] == 1


def test_internal_errors_are_counted_where_they_can_be_seen() -> None:
    found = scraped(RouterStats(), plane=PlaneStats(requests=4, faults=3, unwatched=2))
    assert found["kvctl_requests_total", ()] == 4
    assert found["kvctl_faults_total", ()] == 3
    assert found["kvctl_unwatched_answers_total", ()] == 2


def test_a_removed_worker_leaves_the_labels() -> None:
    stats = RouterStats()
    stats.leg_ended("a", Outcome.OK)
    stats.leg_ended("b", Outcome.CUT)
    stats.worker_removed("a")
    found = scraped(stats)
    assert ("kvctl_legs_total", (("outcome", "cut"), ("worker", "b"))) in found
    assert not any(("worker", "a") in labels for _name, labels in found)


def test_each_worker_has_its_state_and_load() -> None:
    core = RoutingCore(CoreSettings(seed=1))
    core.fleet.add(WorkerSpec(url="http://a:1", id="a", ranks=2))
    core.add_slots()
    core.loads.book(1, 50, 0, None)
    found = scraped(RouterStats(), core)
    assert found["kvctl_worker_up", (("worker", "a"),)] == 0
    assert found["kvctl_worker_active_requests", (("dp_rank", "1"), ("worker", "a"))] == 1
    assert found["kvctl_worker_prefill_tokens", (("dp_rank", "1"), ("worker", "a"))] == 50
