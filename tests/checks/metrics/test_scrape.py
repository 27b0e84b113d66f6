"""Metrics from two scrapes: growth, restarts, renamed and mangled names, router copies, odd and absent pages."""

from __future__ import annotations

import pytest

from checks.metrics.scrape import PageText, from_pages
from checks.metrics.view import Metrics, Sample
from checks.model import Reason
from checks.sources.tape import Answer

BEFORE_S, AFTER_S = 1000.0, 1014.0
KEY = "prod/w-0"


def scraped(first: str | None, second: str | None) -> Metrics:
    """The two pages of one member; None: it was not asked."""
    return from_pages(
        {} if first is None else {KEY: PageText(first, BEFORE_S)},
        {} if second is None else {KEY: PageText(second, AFTER_S)},
    )


def only(metrics: Metrics, name: str) -> Sample:
    (sample,) = metrics.find(name, KEY)
    return sample


def test_growth_is_the_difference_of_the_pages() -> None:
    sample = only(scraped("vllm:prompt_tokens_total 10\n", "vllm:prompt_tokens_total 25\n"), "prompt_tokens")
    assert (sample.value, sample.increase, sample.reset) == (25, 15, False)


def test_the_window_is_the_time_between_the_pages() -> None:
    metrics = scraped("vllm:prompt_tokens_total 10\n", "vllm:prompt_tokens_total 25\n")
    assert (metrics.window, metrics.source, metrics.missing) == ("14s", "scrape", None)


def test_a_gauge_has_a_value_and_no_growth() -> None:
    sample = only(scraped("vllm:num_requests_running 1\n", "vllm:num_requests_running 4\n"), "requests_running")
    assert (sample.value, sample.increase) == (4, None)


def test_a_series_born_between_the_pages_grew_by_its_value() -> None:
    sample = only(scraped("other 1\n", "sglang:cached_tokens_total 40\n"), "sglang_cached_tokens")
    assert (sample.increase, sample.reset) == (40, False)


def test_a_counter_that_fell_began_anew() -> None:
    sample = only(scraped("vllm:prompt_tokens_total 100\n", "vllm:prompt_tokens_total 30\n"), "prompt_tokens")
    assert (sample.increase, sample.reset) == (30, True)


def test_one_fallen_counter_speaks_for_all_of_its_program() -> None:
    first = "vllm:prefix_cache_queries_total 1000\nvllm:prefix_cache_hits_total 10\n"
    second = "vllm:prefix_cache_queries_total 900\nvllm:prefix_cache_hits_total 500\n"
    metrics = scraped(first, second)
    assert (only(metrics, "prefix_cache_hits").increase, only(metrics, "prefix_cache_queries").increase) == (500, 900)


def test_a_fallen_counter_does_not_speak_for_another_program() -> None:
    first = "vllm:prompt_tokens_total 1000\nlmcache:num_hit_tokens_total 10\n"
    second = "vllm:prompt_tokens_total 1900\nlmcache:num_hit_tokens_total 5\n"
    metrics = scraped(first, second)
    assert (only(metrics, "prompt_tokens").increase, only(metrics, "lmcache_hit_tokens").increase) == (900, 5)


def test_a_new_start_time_is_a_restart_although_the_counter_rose() -> None:
    first = "process_start_time_seconds 500\nvllm:prompt_tokens_total 10\n"
    second = "process_start_time_seconds 1005\nvllm:prompt_tokens_total 25\n"
    sample = only(scraped(first, second), "prompt_tokens")
    assert (sample.increase, sample.reset) == (25, True)


def test_a_start_time_that_differs_by_rounding_is_no_restart() -> None:
    first = "process_start_time_seconds 500.1\nvllm:prompt_tokens_total 10\n"
    second = "process_start_time_seconds 500.09\nvllm:prompt_tokens_total 25\n"
    assert only(scraped(first, second), "prompt_tokens").increase == 15


def test_the_old_names_of_0_8_are_found() -> None:
    page = 'vllm:gpu_prefix_cache_hits_total{model_name="m"} 3\nvllm:gpu_cache_usage_perc 0.5\n'
    metrics = scraped(page, page)
    assert only(metrics, "prefix_cache_hits").spelled == "vllm:gpu_prefix_cache_hits_total"
    assert only(metrics, "kv_cache_usage").value == 0.5


def test_of_both_names_of_0_9_the_new_one_counts_alone() -> None:
    old, new = 'vllm:gpu_prefix_cache_hits_total{model_name="m"} 3', 'vllm:prefix_cache_hits_total{engine="0"} 3'
    page = f"{old}\n{new}\n"
    metrics = scraped(page, page)
    assert only(metrics, "prefix_cache_hits").spelled == "vllm:prefix_cache_hits_total"
    assert metrics.now("prefix_cache_hits").value == 3


def test_both_inter_token_names_of_0_11_count_once() -> None:
    page = "vllm:inter_token_latency_seconds_count 5\nvllm:time_per_output_token_seconds_count 5\n"
    assert scraped(page, page).now("inter_token_seconds_count").value == 5


def test_sources_of_prompt_tokens_of_0_33_stay_apart() -> None:
    page = (
        'vllm:prompt_tokens_by_source_total{source="local_compute"} 1\n'
        'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"} 2\n'
    )
    assert scraped(page, page).now("prompt_tokens_by_source", source="external_kv_transfer").value == 2


def test_a_counter_without_total_is_found() -> None:
    assert only(scraped("a 1\n", "vllm:prompt_tokens 5\n"), "prompt_tokens").value == 5


def test_names_with_underscores_are_found_and_the_page_is_mangled() -> None:
    metrics = scraped("vllm_prompt_tokens_total 1\n", "vllm_prompt_tokens_total 4\n")
    assert (only(metrics, "prompt_tokens").increase, metrics.mangled) == (3, True)


def test_names_as_exported_are_not_mangled() -> None:
    assert not scraped("vllm:prompt_tokens_total 1\n", "vllm:prompt_tokens_total 4\n").mangled


def test_what_a_router_exports_again_is_left_out() -> None:
    page = 'vllm:num_requests_running{server="http://w-0"} 4\nvllm:healthy_pods_total{server="http://w-0"} 1\n'
    metrics = scraped(page, page)
    assert metrics.find("requests_running") == ()
    assert only(metrics, "router_healthy_pods").labels == {"server": "http://w-0"}


def test_an_empty_server_label_is_the_engines_own() -> None:
    assert scraped("a 1\n", 'vllm:num_requests_running{server=""} 4\n').now("requests_running").value == 4


def test_counters_that_stand_twice_are_added_up() -> None:
    twice = "lmcache:num_stored_tokens_total {}\n"
    metrics = scraped(twice.format(1) + twice.format(2), twice.format(4) + twice.format(5))
    sample = only(metrics, "lmcache_stored_tokens")
    assert (sample.value, sample.increase) == (9, 6)


def test_of_a_gauge_that_stands_twice_the_last_counts() -> None:
    page = "lmcache:lmcache_is_healthy 0\nlmcache:lmcache_is_healthy 1\n"
    assert only(scraped(page, page), "lmcache_is_healthy").value == 1


def test_a_declared_family_without_samples_is_no_value_but_is_on_the_page() -> None:
    page = "# TYPE lmcache:lmcache_is_healthy gauge\nvllm:prompt_tokens_total 1\n"
    metrics = scraped(page, page)
    assert metrics.now("lmcache_is_healthy").missing is Reason.NO_DATA
    assert "lmcache:lmcache_is_healthy" in metrics.pages[KEY].families


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
def test_values_that_are_no_numbers_are_no_samples(value: str) -> None:
    assert scraped("a 1\n", f"vllm:kv_cache_usage_perc {value}\n").find("kv_cache_usage") == ()


def test_a_counter_below_zero_is_no_sample() -> None:
    assert scraped("a 1\n", "vllm:prompt_tokens_total -5\n").find("prompt_tokens") == ()


def test_a_gauge_may_be_below_zero() -> None:
    assert scraped("a 1\n", "lmcache:remote_ping_error_code -2\n").now("lmcache_remote_ping_error_code").value == -2


def test_without_traffic_the_lifetime_is_told() -> None:
    page = "vllm:prefix_cache_hits_total 30\nvllm:prefix_cache_queries_total 100\n"
    hits, queries = scraped(page, page).grown(("prefix_cache_hits", "prefix_cache_queries"), KEY)
    assert (hits.value, queries.value, queries.window) == (30, 100, "lifetime")


def test_an_only_page_gives_values_without_growth() -> None:
    sample = only(scraped(None, "vllm:prompt_tokens_total 7\n"), "prompt_tokens")
    assert (sample.value, sample.increase) == (7, None)


def test_where_the_second_page_fails_the_first_gives_the_values_and_the_failure_is_told() -> None:
    first = {KEY: PageText("vllm:prompt_tokens_total 7\n", BEFORE_S)}
    metrics = from_pages(first, {KEY: PageText(at=AFTER_S, status=0, problem=Reason.TIMEOUT, message="timed out")})
    assert only(metrics, "prompt_tokens").increase is None
    assert metrics.pages[KEY].problem is Reason.TIMEOUT


def test_where_the_first_page_fails_nothing_grew() -> None:
    first = {KEY: PageText(at=BEFORE_S, problem=Reason.TIMEOUT)}
    metrics = from_pages(first, {KEY: PageText("vllm:prompt_tokens_total 7\n", AFTER_S)})
    assert only(metrics, "prompt_tokens").increase is None


def test_a_page_that_is_none_is_a_parse_problem_of_its_member() -> None:
    page = scraped("<html>", "<html>").pages[KEY]
    assert (page.problem, page.message, page.status) == (Reason.PARSE, "the answer is not a Prometheus page", 200)


def test_where_no_page_could_be_read_the_commonest_reason_is_told() -> None:
    pages = {f"w-{at}": PageText(problem=Reason.RBAC) for at in range(2)} | {"w-2": PageText(problem=Reason.TIMEOUT)}
    metrics = from_pages({}, pages)
    assert (metrics.missing, metrics.now("prompt_tokens").missing) == (Reason.RBAC, Reason.RBAC)


def test_one_good_page_is_enough() -> None:
    pages = {"w-0": PageText(problem=Reason.RBAC), "w-1": PageText("vllm:prompt_tokens_total 7\n", AFTER_S)}
    assert from_pages({}, pages).missing is None


def test_no_pages_are_no_data() -> None:
    assert from_pages({}, {}).missing is Reason.NO_DATA


def test_members_are_kept_apart() -> None:
    pages = {name: PageText(f"vllm:prompt_tokens_total {at}\n", AFTER_S) for at, name in enumerate(("w-0", "w-1"), 1)}
    metrics = from_pages({}, pages)
    assert (metrics.now("prompt_tokens", "w-1").value, metrics.now("prompt_tokens").value) == (2, 3)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer(200, "a 1\n"), None),
        (Answer(403, "no"), Reason.RBAC),
        (Answer(404, "no"), Reason.UNREACHABLE),
        (Answer(0, error=Reason.TIMEOUT, message="too slow"), Reason.TIMEOUT),
    ],
)
def test_an_answer_of_the_tape_becomes_a_page(answer: Answer, problem: Reason | None) -> None:
    page = PageText.of(answer, "http://10.0.0.1:8000/metrics")
    assert (page.problem, page.url) == (problem, "http://10.0.0.1:8000/metrics")
