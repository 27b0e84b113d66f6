"""Engines in processes of their own: killed and started again at the same ports, while the others go on."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from bench.sim.apart import SplitFleet

BODY = {"model": "sim", "prompt": list(range(200, 264)), "max_tokens": 2, "temperature": 0}


@pytest.fixture(scope="module")
def fleet() -> Iterator[SplitFleet]:
    with SplitFleet(2, {0}, {"speedup": 0, "num_blocks": 64, "lora": ["one", "two"]}) as fleet:
        yield fleet


def cached(url: str, model: str = "sim") -> int:
    usage = httpx.post(f"{url}/v1/completions", json=BODY | {"model": model}, timeout=10).json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_engines_are_numbered_through(fleet: SplitFleet) -> None:
    assert [engine.id for engine in fleet.engines] == ["sim-0", "sim-1"]
    assert len({engine.url for engine in fleet.engines}) == 2


def test_a_killed_engine_is_gone_and_comes_back_empty_at_its_ports(fleet: SplitFleet) -> None:
    engine, other = fleet.engines
    cached(engine.url)
    assert cached(engine.url) > 0
    fleet.kill(0)
    assert not fleet.alive(0)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{engine.url}/health", timeout=5)
    assert httpx.get(f"{other.url}/health", timeout=5).status_code == 200
    fleet.start_again(0)
    assert fleet.alive(0)
    assert cached(engine.url) == 0
    sources = httpx.get(f"{engine.url}/kv_event_sources", timeout=5).json()
    assert engine.kv is not None
    assert engine.kv.rsplit(":", 1)[1] in str(sources)


def test_starting_what_runs_does_nothing(fleet: SplitFleet) -> None:
    fleet.start_again(0)
    assert httpx.get(f"{fleet.engines[0].url}/health", timeout=5).status_code == 200


def test_adapters_are_listed_with_their_parent(fleet: SplitFleet) -> None:
    cards = httpx.get(f"{fleet.engines[1].url}/v1/models", timeout=5).json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [("sim", None), ("one", "sim"), ("two", "sim")]


def test_the_cache_of_an_adapter_is_its_own(fleet: SplitFleet) -> None:
    url = fleet.engines[1].url
    cached(url, "one")
    assert cached(url, "one") > 0
    assert cached(url, "two") == 0


def test_an_answer_names_the_adapter_and_an_unknown_one_is_404(fleet: SplitFleet) -> None:
    url = f"{fleet.engines[1].url}/v1/completions"
    assert httpx.post(url, json=BODY | {"model": "two"}, timeout=10).json()["model"] == "two"
    assert httpx.post(url, json=BODY | {"model": "three"}, timeout=10).status_code == 404


def test_an_engine_outside_the_fleet_cannot_be_apart() -> None:
    with pytest.raises(ValueError, match="fleet of 2"):
        SplitFleet(2, {2})
