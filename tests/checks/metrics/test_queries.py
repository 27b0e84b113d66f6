"""Dashboard expressions; that each runs is tested on a real Prometheus (tests/checks/live_prometheus)."""

from __future__ import annotations

import pytest

from checks.metrics.queries import checks_with_expressions, expressions


def test_every_check_of_the_effect_has_an_expression() -> None:
    assert {f"KV60{at}" for at in range(1, 10)} <= set(checks_with_expressions())


def test_a_check_without_metrics_has_none() -> None:
    assert expressions("KV401") == ()


def test_an_older_name_stands_behind_or() -> None:
    (ratio, _) = expressions("KV601")
    assert (
        'increase(vllm:prefix_cache_hits_total{namespace="prod",server=""}[15m])'
        ' or increase(vllm:gpu_prefix_cache_hits_total{namespace="prod",server=""}[15m])'
    ) in ratio.promql


@pytest.mark.parametrize("check", checks_with_expressions())
def test_expressions_of_engines_leave_out_what_routers_copy(check: str) -> None:
    for expression in expressions(check):
        names = expression.promql.count("vllm:") + expression.promql.count("lmcache:")
        routers = expression.promql.count("cache_controller")
        assert expression.promql.count('server=""') == names - routers


def test_selector_and_window_are_those_given() -> None:
    (up, *_) = expressions("KV704", router='ns="x"')
    assert up.promql == 'up{ns="x"} == 0'
    assert "[1h]" in expressions("KV602", window="1h")[0].promql
