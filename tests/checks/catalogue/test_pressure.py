"""KV607-KV609: pressure, spread, time to first token."""

from __future__ import annotations

import pytest

from checks.metrics.view import Metrics, Sample
from checks.model import Reason, Status
from checks.probe_evidence import ProbeEvidence, ProbeStep
from checks.snapshot import Snapshot
from tests.checks.build import NOW, findings, kubelet_time, only, router, sample, snapshot, statuses, worker


def grown(name: str, value: float, member: str = "prod/w-0", **labels: str) -> Sample:
    return sample(name, value, member, increase=value, **labels)


# -- KV607 -----------------------------------------------------------------------------------------------------------


def usage(share: float, waiting: float, *more: Sample) -> list[Sample]:
    return [sample("kv_cache_usage", share), sample("requests_waiting", waiting), *more]


def stats(shares: list[float], at: float = NOW - 300) -> str:
    return "\n".join(
        f"{kubelet_time(at + 10 * number)} INFO 08-01 10:25:00 [loggers.py:1] Engine 000: Avg prompt throughput: 71.3 "
        f"tokens/s, Running: 1 reqs, Waiting: 1 reqs, GPU KV cache usage: {share}%, Prefix cache hit rate: 45.0%"
        for number, share in enumerate(shares)
    )


def test_kv607_passes_with_room() -> None:
    found = only("KV607", snapshot(worker(), samples=usage(0.5, 3)))
    assert (found.status, found.message) == (Status.PASS, "use of the KV cache 50%, no request preempted")


def test_kv607_warns_where_it_is_full_now_and_requests_wait() -> None:
    found = only("KV607", snapshot(worker(), samples=usage(0.96, 3)))
    assert (found.status, found.message) == (Status.WARN, "KV cache above 95% now and 3 requests wait")


def test_kv607_passes_where_it_is_full_and_nothing_waits() -> None:
    assert statuses("KV607", snapshot(worker(), samples=usage(0.99, 0))) == {"w-0": Status.PASS}


def test_kv607_warns_of_preemptions_in_the_window() -> None:
    found = only("KV607", snapshot(worker(), samples=usage(0.5, 0, grown("preemptions", 2))))
    assert (found.status, found.message) == (Status.WARN, "2 requests were preempted in 15m: blocks are evicted")


def test_kv607_does_not_mind_preemptions_of_long_ago() -> None:
    old = sample("preemptions", 40, increase=0.0)
    assert statuses("KV607", snapshot(worker(), samples=usage(0.5, 0, old))) == {"w-0": Status.PASS}


def test_kv607_warns_where_most_lines_of_the_window_say_full() -> None:
    text = stats([97.0, 97.0, 97.0, 97.0, 50.0, 50.0])
    found = only("KV607", snapshot(worker(log=text), samples=usage(0.5, 3)))
    assert (found.status, found.message) == (
        Status.WARN,
        "KV cache above 95% in 67% of the engine's lines and 3 requests wait",
    )


def test_kv607_believes_the_lines_over_the_moment() -> None:
    text = stats([97.0, 97.0, 97.0, 50.0, 50.0, 50.0])
    assert statuses("KV607", snapshot(worker(log=text), samples=usage(0.99, 3))) == {"w-0": Status.PASS}


def test_kv607_does_not_judge_by_lines_before_the_window() -> None:
    text = stats([97.0] * 6, at=NOW - 1800)
    assert statuses("KV607", snapshot(worker(log=text), samples=usage(0.5, 3))) == {"w-0": Status.PASS}


def test_kv607_skips_without_numbers() -> None:
    assert only("KV607", snapshot(worker("w-0"), worker("w-1"))).reason is Reason.NO_DATA


def test_kv607_skips_without_a_ready_worker() -> None:
    assert only("KV607", snapshot(router(), worker(ready=False))).reason is Reason.NO_DATA


# -- KV608 -----------------------------------------------------------------------------------------------------------


def ratios(*pairs: tuple[float, float], model: str = "m") -> Snapshot:
    samples = []
    for at, (hits, queries) in enumerate(pairs):
        samples += [
            grown("prefix_cache_hits", hits, f"prod/w-{at}"),
            grown("prefix_cache_queries", queries, f"prod/w-{at}"),
        ]
    workers = [worker(f"w-{at}", model=model) for at in range(len(pairs))]
    return snapshot(*workers, samples=samples)


def test_kv608_passes_at_25_points() -> None:
    found = only("KV608", ratios((500, 1000), (250, 1000)))
    assert (found.status, found.message) == (Status.PASS, "hit ratios of m from 25% (w-1) to 50% (w-0), 15m")


def test_kv608_warns_above() -> None:
    assert only("KV608", ratios((501, 1000), (250, 1000))).status is Status.WARN


def test_kv608_leaves_out_a_worker_with_too_few_queries() -> None:
    assert only("KV608", ratios((900, 999), (500, 1000), (500, 1000))).status is Status.PASS


def test_kv608_skips_with_only_one_worker_that_saw_enough() -> None:
    assert only("KV608", ratios((900, 999), (0, 1000))).reason is Reason.NO_TRAFFIC


def test_kv608_is_not_asked_of_one_worker() -> None:
    assert only("KV608", ratios((900, 1000))).reason is Reason.NOT_APPLICABLE


def test_kv608_compares_only_workers_of_one_model() -> None:
    first, second = ratios((900, 1000), model="a"), ratios((0, 1000), (0, 1000), model="b")
    samples = [one for group in (first, second) for rows in group.metrics.samples.values() for one in rows]
    of = snapshot(worker("w-0", model="a"), worker("w-1", model="b"), samples=samples)
    assert {one.reason for one in findings("KV608", of)} == {Reason.NOT_APPLICABLE}


def test_kv608_shows_how_often_chunks_are_held() -> None:
    lmc = ("--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1"}')
    samples = [
        *(grown("prefix_cache_hits", 1, f"prod/w-{at}") for at in (0, 1)),
        *(grown("prefix_cache_queries", 1000, f"prod/w-{at}") for at in (0, 1)),
        *(sample("lmcache_hot_cache_count", 30, f"prod/w-{at}") for at in (0, 1)),
        sample("controller_keys", 40, "prod/router-0"),
    ]
    of = snapshot(worker("w-0", args=lmc), worker("w-1", args=lmc), samples=samples)
    assert only("KV608", of).evidence[-1].text == "workers hold 60 chunks, the controller knows 40 keys"


def test_kv608_skips_without_counters() -> None:
    assert only("KV608", snapshot(worker("w-0"), worker("w-1"))).reason is Reason.NO_DATA


def test_kv608_skips_where_series_have_no_worker() -> None:
    metrics = Metrics(window="15m", source="prometheus", by_member=False)
    assert only("KV608", snapshot(worker("w-0"), worker("w-1"), metrics=metrics)).reason is Reason.NO_DATA


def test_kv608_skips_without_workers() -> None:
    assert only("KV608", snapshot(router())).reason is Reason.NO_DATA


# -- KV609 -----------------------------------------------------------------------------------------------------------


def test_kv609_shows_the_fleets_median_and_the_probes_times() -> None:
    # 100 answers: 50 up to 0.1 s, 50 up to 0.2 s: the 50th is at 0.1 s
    samples = [
        *(grown("ttft_seconds_bucket", count, le=le) for le, count in (("0.1", 50), ("0.2", 100), ("+Inf", 100))),
        grown("ttft_seconds_count", 100),
    ]
    steps = (
        ProbeStep("stream-cold", "a", 200, ttft_s=0.4),
        ProbeStep("stream-warm", "b", 200, ttft_s=0.1),
        ProbeStep("stream-warm", "c", 500, ttft_s=9.0),
    )
    found = only("KV609", snapshot(worker(), samples=samples, probe=ProbeEvidence(steps)))
    assert found.status is Status.PASS
    assert found.message == (
        "median TTFT of all requests 100 ms (15m); of the probe 400 ms cold, 100 ms warm, 4.0 times as fast"
    )


def test_kv609_shows_the_probe_alone() -> None:
    steps = (ProbeStep("stream-cold", "a", 200, ttft_s=0.1), ProbeStep("stream-warm", "b", 200, ttft_s=0.2))
    found = only("KV609", snapshot(worker(), probe=ProbeEvidence(steps)))
    assert found.message == "of the probe 100 ms cold, 200 ms warm"


@pytest.mark.parametrize(
    ("samples", "reason"), [([], Reason.NO_DATA), ([grown("ttft_seconds_count", 0)], Reason.NO_TRAFFIC)]
)
def test_kv609_skips_without_numbers(samples: list[Sample], reason: Reason) -> None:
    assert only("KV609", snapshot(worker(), samples=samples)).reason is reason
