"""`--shared-cache`, `--l2` and the sizes of tiers: what is taken, and what is said of the rest."""

from __future__ import annotations

import json

import pytest

from bench.sim.tiers import TierConfig
from kvctl.errors import Problem
from kvctl.shared_cache import lookup_of
from kvctl.sim_settings import l2_of, tiers_of
from router.redis_url import RedisUrl
from router.server import ServeSettings, shown_settings


def test_a_redis_address_is_asked() -> None:
    settings = lookup_of("redis://h:1/2", 0.5)
    assert settings is not None
    assert (settings.url, settings.timeout) == (RedisUrl("redis://h:1/2"), 0.5)


@pytest.mark.parametrize("text", [None, "events"])
def test_without_an_address_nobody_is_asked(text: str | None) -> None:
    assert lookup_of(text, 0.5) is None


@pytest.mark.parametrize(
    ("text", "timeout", "said"),
    [
        ("http://h", 0.5, "--shared-cache: not a Redis address"),
        ("redis://h/path1", 0.5, "--shared-cache: the database of a Redis address is a number"),
        ("redis://h", 0.0, "--shared-cache: the shared cache's timeout must be between"),
    ],
)
def test_a_wrong_shared_cache_is_a_problem_that_names_it(text: str, timeout: float, said: str) -> None:
    with pytest.raises(Problem) as problem:
        lookup_of(text, timeout)
    assert said in str(problem.value)
    assert "\n" not in str(problem.value)


def test_without_redis_py_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.redis_url.redis_installed", lambda: False)
    for read in (lambda: lookup_of("redis://h", 0.5), lambda: l2_of("redis://h")):
        with pytest.raises(Problem, match=r"pip install 'kvctl\[redis\]'"):
            read()


def test_the_shown_settings_have_no_password() -> None:
    settings = ServeSettings(shared_redis=lookup_of("redis://user:s3cret@h:1/3", 0.5))
    shown = json.dumps(shown_settings(settings))
    assert "redis://h:1/3" in shown
    assert "s3cret" not in shown


def test_the_store_of_simulated_engines_is_memory_or_a_redis() -> None:
    assert (l2_of(None), l2_of("memory"), l2_of("redis://h")) == (None, "memory", RedisUrl("redis://h"))
    with pytest.raises(Problem, match="--l2: a Redis address without a host"):
        l2_of("redis://")


def test_there_are_tiers_where_one_is_asked_for() -> None:
    assert tiers_of(0, 0, 1.0, 2.0, 3.0, l2=False) is None
    assert tiers_of(5, 0, 1.0, 2.0, 3.0, l2=False) == TierConfig(5, 0, 1.0, 2.0, 3.0)
    assert tiers_of(0, 0, 1.0, 2.0, 3.0, l2=True) == TierConfig(0, 0, 1.0, 2.0, 3.0)
