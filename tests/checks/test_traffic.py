"""What several checks ask of traffic, in one way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.metrics.view import Metrics, Page, Reading, Sample
from checks.model import FLEET, Reason, Status, passed, skipped, warned
from checks.probe_evidence import ProbeEvidence, ProbeStep
from checks.traffic import Ratio, bad, collapsed, engine_unit, names_by_member, percent, prefixes_repeat, routed
from tests.checks.build import NOW, kubelet_time, router, sample, snapshot, worker

LMC = ("--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1"}')


def reading(value: float | None) -> Reading:
    return Reading("x", value, None if value is not None else Reason.NO_DATA)


@pytest.mark.parametrize(
    ("part", "whole", "value"), [(1.0, 4.0, 0.25), (5.0, 4.0, 1.0), (0.0, 0.0, 0.0), (None, 4.0, 0.0)]
)
def test_a_ratio_is_between_0_and_1_and_divides_by_no_zero(part: float | None, whole: float, value: float) -> None:
    assert Ratio(reading(part), reading(whole), reading(None)).value == value


def test_a_ratio_without_its_numerator_is_missing_not_zero() -> None:
    assert Ratio(reading(None), reading(4.0), reading(None)).missing is Reason.NO_DATA


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0%"), (0.004, "0.4%"), (0.0999, "10.0%"), (0.45, "45%"), (1.0, "100%")]
)
def test_small_shares_have_a_digit_more(share: float, text: str) -> None:
    assert percent(share) == text


def test_a_failure_over_the_lifetime_is_a_warning() -> None:
    assert bad("x", FLEET, lifetime=True).status is Status.WARN
    assert bad("x", FLEET, lifetime=False).status is Status.FAIL


def test_skips_in_the_same_words_become_one() -> None:
    targets = [worker(f"w-{at}").target for at in range(3)]
    found = collapsed(skipped(Reason.NO_DATA, "no metric", target) for target in targets)
    assert [(one.target, one.message) for one in found] == [(FLEET, "no metric (3 workers)")]


def test_findings_that_are_no_skips_or_differ_stay() -> None:
    target = worker().target
    same = [passed("good", target), passed("good", target)]
    mixed = [skipped(Reason.NO_DATA, "x", target), warned("y", target)]
    assert collapsed(same) == same
    assert collapsed(mixed) == mixed


@pytest.mark.parametrize(("image", "unit"), [("v0.8.5", 16.0), ("v0.9.2", 1.0), ("latest", 1.0)])
def test_queries_are_blocks_only_up_to_vllm_08(image: str, unit: float) -> None:
    of = snapshot(worker(image=f"vllm/vllm-openai:{image}"))
    assert engine_unit(of, "prod/w-0") == unit


def test_the_fleets_unit_is_a_token_unless_all_count_blocks() -> None:
    old, new = (worker(name, image=f"vllm/vllm-openai:{tag}") for name, tag in (("w-0", "v0.8.5"), ("w-1", "v0.11.0")))
    assert engine_unit(snapshot(old, new), None) == 1.0
    assert engine_unit(snapshot(old), None) == 16.0


def test_a_retried_request_does_not_make_more_than_all() -> None:
    hit = f"{kubelet_time(NOW - 60)} INFO: Routing request to lmcache_1 found by kvaware router"
    route = f"{kubelet_time(NOW - 60)} INFO: Routing request r-1 with session id None to http://10.0.0.1:8000 at 1.0"
    found = routed(snapshot(router(log="\n".join([hit, hit, route]))))
    assert (found.by_cache, found.total, found.share) == (2, 1, 1.0)


def test_nothing_shows_that_prompts_repeat_where_nothing_was_read() -> None:
    assert prefixes_repeat(snapshot(router(), worker())) is None


def test_a_probe_whose_requests_failed_proves_no_repeat() -> None:
    steps = (ProbeStep("cold", "a", 200), ProbeStep("repeat", "b", 503))
    assert prefixes_repeat(snapshot(worker(), probe=ProbeEvidence(steps))) is None


@pytest.mark.parametrize(("hits", "proof"), [(1001.0, True), (1000.0, False)])
def test_lmcache_that_is_hit_often_proves_repeats(hits: float, proof: bool) -> None:
    samples = [
        sample("lmcache_lookup_hits", hits, increase=hits),
        sample("lmcache_lookup_tokens", 10000, increase=10000.0),
    ]
    assert (prefixes_repeat(snapshot(worker(args=LMC), samples=samples)) is not None) is proof


def test_names_come_from_the_page_and_from_samples_where_there_is_none() -> None:
    series = Sample("a", "prod/w-1", {}, 1.0, spelled="vllm:a_total")
    metrics = Metrics({"a": (series,)}, pages={"prod/w-0": Page("prod/w-0", 200, frozenset({"vllm:b"}))})
    found = names_by_member(replace(metrics))
    assert found == {"prod/w-0": frozenset({"vllm:b"}), "prod/w-1": frozenset({"vllm:a_total"})}
