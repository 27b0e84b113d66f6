"""KV605: does LMCache store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.metrics.view import Metrics, Sample
from checks.model import Reason, Status
from checks.snapshot import Member, Snapshot
from tests.checks.build import findings, only, said, sample, snapshot, statuses, worker

LMC = ("--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}')


def lmcache(name: str = "w-0", **more: object) -> Member:
    return worker(name, **{"args": LMC, **more})  # type: ignore[arg-type]


def grown(name: str, value: float) -> Sample:
    """A counter that grew by its whole value in the window."""
    return sample(name, value, "prod/w-0", increase=value)


def storing(stored: float, prompt: float, found: float = 0, **more: object) -> Snapshot:
    samples = [
        grown("lmcache_stored_tokens", stored),
        grown("lmcache_lookup_hits", found),
        grown("prompt_tokens", prompt),
    ]
    return snapshot(lmcache(**more), samples=samples)  # type: ignore[arg-type]


def test_kv605_passes_from_one_percent_on() -> None:
    found = only("KV605", storing(100, 10000))
    assert (found.status, found.message) == (Status.PASS, "LMCache stored 1.0% of 10000 new prompt tokens")


def test_kv605_warns_below() -> None:
    assert only("KV605", storing(99, 10000)).status is Status.WARN


def test_kv605_fails_where_nothing_was_stored_of_twenty_chunks() -> None:
    assert only("KV605", storing(0, 5120)).status is Status.FAIL


def test_kv605_skips_below_twenty_chunks() -> None:
    assert only("KV605", storing(0, 5119)).reason is Reason.NO_TRAFFIC


def test_kv605_counts_chunks_of_the_configured_size() -> None:
    assert only("KV605", storing(0, 5120, env={"LMCACHE_CHUNK_SIZE": "512"})).reason is Reason.NO_TRAFFIC


def test_kv605_does_not_expect_to_store_again_what_was_found() -> None:
    assert only("KV605", storing(0, 100000, found=96000)).reason is Reason.NO_TRAFFIC


def test_kv605_only_warns_over_the_lifetime() -> None:
    of = storing(0, 5120)
    samples = {name: tuple(replace(one, increase=0.0) for one in group) for name, group in of.metrics.samples.items()}
    of = replace(of, metrics=Metrics(samples, window="14s", source="scrape"))
    assert only("KV605", of).status is Status.WARN


def told(requests: int, hit: int, stored: int, *, storing: bool = False) -> str:
    """Requests of 1,000 tokens, and what was stored in all."""
    lines = [
        said(f"Reqid: cmpl-{at}, Total tokens 1000, LMCache hit tokens: {hit}, need to load: 0")
        for at in range(requests)
    ]
    if storing:
        lines.append(said("Storing KV cache for 768 out of 1000 tokens (skip_leading_tokens=0) for request cmpl-0"))
    if stored:
        lines.append(said(f"Stored {stored} out of total 1000 tokens. size: 0.0625 gb, cost 12.3 ms"))
    return "".join(lines)


@pytest.mark.parametrize(
    ("log", "status"),
    [
        (told(6, 0, 768), Status.PASS),
        (told(6, 0, 59), Status.WARN),  # of 6,000: below 1 %
        (told(6, 0, 0), Status.FAIL),
        (told(5, 0, 0), Status.SKIP),  # 5,000 tokens are less than 20 chunks of 256
        (told(6, 256, 0), Status.SKIP),  # and so are 4,464
    ],
)
def test_kv605_judges_by_lmcaches_lines_where_no_metric_tells(log: str, status: Status) -> None:
    assert only("KV605", snapshot(lmcache(log=log))).status is status


def test_kv605_shows_that_a_store_was_begun() -> None:
    found = only("KV605", snapshot(lmcache(log=told(6, 0, 0, storing=True))))
    assert found.status is Status.FAIL
    assert found.evidence[1].text.startswith("Storing KV cache for 768")


def test_kv605_skips_the_worker_whose_log_tells_of_no_request() -> None:
    of = snapshot(lmcache(log=told(6, 0, 768)), lmcache("w-1"))
    assert statuses("KV605", of) == {"w-0": Status.PASS, "w-1": Status.SKIP}


def test_kv605_believes_a_metric_before_the_lines() -> None:
    of = snapshot(lmcache(log=told(6, 0, 0)), samples=storing(100, 10000).metrics.samples["lmcache_stored_tokens"])
    assert only("KV605", of).reason is Reason.NO_DATA


def test_a_whole_fleet_without_numbers_is_one_line() -> None:
    found = findings("KV605", snapshot(*(lmcache(f"w-{at}") for at in range(5))))
    assert [one.message for one in found] == ["the counter prompt_tokens could not be read (5 workers)"]
