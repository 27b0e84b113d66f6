"""The real-engine tests run only when asked for (`make test-real` sets KVCTL_REAL=1), grouped so that each fleet of
engines starts once, and never more than two engines at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .engines import Engine, missing, start_all, with_lmcache
from .router_process import Router, serve

if TYPE_CHECKING:
    from openai import OpenAI

HERE = Path(__file__).parent
FLEETS = ("pair", "small", "middle", "degraded", "alone")
"""In the order in which they run. A test module names its own in `FLEET`."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    skip = pytest.mark.skip(reason="needs a real vLLM: run make test-real")
    for item in mine:
        item.add_marker(pytest.mark.real)
        item.add_marker(pytest.mark.timeout(1500))
        if os.environ.get("KVCTL_REAL") != "1":
            item.add_marker(skip)
    mine.sort(key=lambda item: FLEETS.index(_fleet_of(item)))
    ordered = iter(mine)
    items[:] = [next(ordered) if HERE in item.path.parents else item for item in items]


def _fleet_of(item: pytest.Item) -> str:
    assert isinstance(item, pytest.Function)
    return str(item.module.FLEET)


class Stage:
    """The engines that run now. Asking for another fleet stops the one before."""

    def __init__(self) -> None:
        self.name = ""
        self.engines: tuple[Engine, ...] = ()

    def fleet(self, name: str) -> tuple[Engine, ...]:
        if name != self.name:
            self.clear()
            engines = _make(name)
            start_all(engines)
            self.engines, self.name = engines, name
        return self.engines

    def clear(self) -> None:
        for engine in self.engines:
            engine.stop()
        self.engines, self.name = (), ""


def _make(name: str) -> tuple[Engine, ...]:
    tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    if name == "pair":
        return (Engine("pair-a", "tiny", extra=tools), Engine("pair-b", "tiny", extra=tools))
    if name == "small":
        return (
            Engine("small-a", "tiny-bos", blocks=64, max_model_len=1024),
            Engine("small-b", "tiny-bos", blocks=64, max_model_len=1024),
        )
    if name == "degraded":
        return (with_lmcache("degraded"),)
    if name == "alone":
        return (Engine("alone", "tiny"),)
    return (Engine("middle-a", "middle", max_model_len=12288), Engine("middle-b", "middle", max_model_len=12288))


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    reason = missing()
    if reason is not None:
        pytest.fail(reason)
    stage = Stage()
    yield stage
    stage.clear()


@pytest.fixture(scope="module")
def engines(stage: Stage, request: pytest.FixtureRequest) -> Sequence[Engine]:
    """The module's fleet, with empty prefix caches."""
    engines = stage.fleet(request.module.FLEET)
    for engine in engines:
        engine.reset_cache()
    return engines


@pytest.fixture(scope="module")
def router(engines: Sequence[Engine], request: pytest.FixtureRequest) -> Iterator[Router]:
    """A router that was told nothing but the engines' URLs."""
    name = f"router-{request.module.__name__.rsplit('.', 1)[-1]}"
    with serve(name, *(engine.url for engine in engines)) as router:
        router.wait_up([engine.url for engine in engines])
        yield router


@pytest.fixture(scope="module")
def client(router: Router) -> Iterator[OpenAI]:
    """The `openai` package, which does not retry, so that the router's failures are seen."""
    from openai import OpenAI

    with OpenAI(base_url=f"{router.url}/v1", api_key="unused", max_retries=0) as client:
        yield client
