"""metric_aliases.yaml: every canonical name, its spellings in order, none of them twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from checks.metrics.aliases import Alias, Aliases

ALIASES = Aliases.load()


def test_a_counter_is_looked_for_with_total_first_and_with_underscores() -> None:
    assert ALIASES["preemptions"].spellings() == (
        "vllm:num_preemptions_total",
        "vllm_num_preemptions_total",
        "vllm:num_preemptions",
        "vllm_num_preemptions",
    )


def test_a_newer_name_goes_before_an_older_one() -> None:
    ranks = {name: ALIASES.by_spelling[name].rank for name in ALIASES["prefix_cache_hits"].spellings()}
    assert max(rank for name, rank in ranks.items() if "gpu" not in name) < min(
        rank for name, rank in ranks.items() if "gpu" in name
    )


def test_a_histogram_is_known_by_its_three_parts() -> None:
    part = ALIASES.by_spelling["vllm:time_to_first_token_seconds_bucket"]
    assert part.canonical == "ttft_seconds_bucket"
    assert ALIASES["ttft_seconds"].parts == ("_bucket", "_sum", "_count")


def test_exact_names_get_no_total() -> None:
    assert "lmcache:cache_controller_pull_socket_message_count_total" not in ALIASES.by_spelling


def test_a_gauge_that_ends_in_total_is_found_under_its_name() -> None:
    assert ALIASES.by_spelling["vllm:healthy_pods_total"].canonical == "router_healthy_pods"


@pytest.mark.parametrize(
    ("spelled", "mangled"),
    [("vllm_prompt_tokens_total", True), ("vllm:prompt_tokens_total", False), ("kvctl_requests_total", False)],
)
def test_only_an_underscore_for_a_colon_is_mangled(spelled: str, mangled: bool) -> None:
    assert ALIASES.by_spelling[spelled].mangled is mangled


def test_series_of_engines_are_those_that_routers_copy() -> None:
    assert {alias.owner for alias in ALIASES if alias.copied_by_routers} == {"engine", "lmcache"}


def test_one_spelling_of_two_names_is_refused() -> None:
    rows = {
        name: Alias(owner="engine", type="gauge", unit="1", names=("a:b",), canonical=name) for name in ("one", "two")
    }
    with pytest.raises(ValueError, match="a:b belongs to one and two"):
        Aliases(rows)


def test_every_metric_of_our_own_router_is_known() -> None:
    source = (Path(__file__).parents[3] / "router" / "metrics.py").read_text()
    exported = set(re.findall(r'"(kvctl_[a-z_]+)"', source))
    assert len(exported) > 20
    assert exported <= set(ALIASES.by_name)
