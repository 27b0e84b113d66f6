"""Chats with images: what the router cannot know of them it does not promise."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import numpy as np
import pytest

from router.core import CoreSettings, RoutingCore
from router.dispatch import RequestDispatcher
from router.events.wire import BlockStored
from router.fleet.monitor import FleetMonitor
from router.fleet.worker import Health, KvState
from router.legs import RoutedLeg
from router.metrics import RouterStats
from router.model import Degraded, WorkerSpec
from router.model_tokens import ModelTokens
from router.proxy.interface import Inbound, Usage
from router.reading import DispatchSettings
from router.records import DecisionLog
from router.tokens.body import Body, parse
from router.tokens.conversation import media_mark
from router.tokens.service import Source, TokenResult

B = 16
IDS = np.repeat(np.arange(1, 6, dtype=np.uint32), B)
CAT = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "Y2F0" * 1000}}
DOG = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "ZG9n" * 1000}}
LOOK = {"type": "text", "text": "What is this?"}


class EngineTokens:
    """Every prompt has the same ids: an engine's `/tokenize` does not tell one image from another."""

    def tokens(self, model: str, body: Body) -> TokenResult:
        return TokenResult(IDS, Source.ENGINE)


class Setup:
    def __init__(self, **settings: Any) -> None:
        self.core = RoutingCore(CoreSettings(seed=1, **settings))
        self.stats = RouterStats()
        for name in ("a", "b"):
            worker = self.core.fleet.add(WorkerSpec(url=f"http://{name}:1", id=name))
            worker.health, worker.models, worker.kv = Health.UP, ("m",), KvState.LIVE
            worker.block_size, worker.capacity_blocks = B, 1000
        self.core.fleet.changed()
        self.core.add_slots()
        self.dispatcher = RequestDispatcher(
            self.core,
            cast("FleetMonitor", None),
            cast("ModelTokens", EngineTokens()),
            DecisionLog(),
            self.stats,
            DispatchSettings(),
            lambda: 0.0,
        )

    def send(self, *parts: Any, **fields: Any) -> RoutedLeg:
        body = {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **fields}
        path = "/v1/chat/completions"
        leg = self.dispatcher.dispatch(Inbound("POST", path.encode(), path, [], json.dumps(body).encode(), True, 0.0))
        assert isinstance(leg, RoutedLeg)
        return leg


@pytest.fixture
async def setup() -> Setup:
    asyncio.get_running_loop()
    return Setup()


def promised(leg: RoutedLeg) -> int:
    return leg.decision.predicted_cached_tokens


async def test_a_chat_with_another_image_is_promised_nothing_of_the_first(setup: Setup) -> None:
    setup.send(LOOK, CAT)
    assert promised(setup.send(LOOK, DOG)) == 0


async def test_a_chat_with_the_same_image_is_promised_what_runs_already(setup: Setup) -> None:
    first = setup.send(LOOK, CAT)
    again = setup.send(LOOK, CAT)
    assert (again.worker, promised(again)) == (first.worker, 4 * B)


async def test_a_chat_without_images_is_promised_nothing_of_one_with(setup: Setup) -> None:
    setup.send(LOOK, CAT)
    assert promised(setup.send(LOOK)) == 0


async def test_the_decision_says_that_it_could_not_see_the_image(setup: Setup) -> None:
    assert setup.send(LOOK, CAT).decision.degraded == (Degraded.MULTIMODAL,)
    assert setup.send(LOOK).decision.degraded == ()


async def test_text_before_the_image_is_promised_as_the_events_tell_it_and_no_further(setup: Setup) -> None:
    """The engine has its image in the third block, which therefore has extra keys."""
    told = BlockStored(
        np.arange(4, dtype=np.uint64), None, IDS[: 4 * B], B, extra_keys=[None, None, [["cat", 0]], [["cat", 0]]]
    )
    setup.core.apply(0, told)
    leg = setup.send(LOOK, DOG)
    assert (leg.worker.id, promised(leg)) == ("a", 2 * B)


async def test_images_of_a_chat_whose_ids_were_given_count_as_well(setup: Setup) -> None:
    ids = {"token_data": IDS.tolist()}
    setup.send(LOOK, CAT, nvext=ids)
    assert promised(setup.send(LOOK, DOG, nvext=ids)) == 0
    assert promised(setup.send(LOOK, CAT, nvext=ids)) == 4 * B


@pytest.mark.parametrize("fields", [{}, {"prompt_logprobs": 1}])
async def test_a_prompt_that_is_computed_anew_for_its_log_probabilities_judges_nobody(
    setup: Setup, fields: dict[str, Any]
) -> None:
    setup.core.apply(0, BlockStored(np.arange(4, dtype=np.uint64), None, IDS[: 4 * B], B))
    leg = setup.send(LOOK, **fields)
    leg.usage(Usage(prompt_tokens=80, cached_tokens=0))
    assert setup.core.truth is not None
    setup.core.truth.settle(10.0)
    assert setup.core.truth.of(leg.worker).answers == (0 if fields else 1)


async def test_an_answer_with_usage_is_held_against_the_promise(setup: Setup) -> None:
    setup.core.apply(0, BlockStored(np.arange(4, dtype=np.uint64), None, IDS[: 4 * B], B))
    leg = setup.send(LOOK)
    leg.usage(Usage(prompt_tokens=80, cached_tokens=16))
    assert setup.core.truth is not None
    setup.core.truth.settle(10.0)
    # 1 + .1 (16 / 64 - 1)
    assert setup.core.truth.of(leg.worker).confidence == pytest.approx(0.925)


@pytest.mark.parametrize(
    ("fields", "reads"),
    [
        ({"echo": True, "logprobs": 1}, False),
        ({"echo": True}, True),
        ({"logprobs": 5}, True),
        ({"echo": True, "logprobs": None}, True),
        ({"prompt_logprobs": None}, True),
        ({"prompt_logprobs": 0}, False),
    ],
)
def test_whether_a_completion_reads_the_cache(fields: dict[str, Any], reads: bool) -> None:
    body = parse("/v1/completions", json.dumps({"model": "m", "prompt": "x", **fields}).encode())
    assert body.reads_cache is reads


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def test_the_mark_is_of_the_media_alone_and_of_their_order() -> None:
    both = media_mark(user(CAT, DOG))
    assert media_mark(user(LOOK)) is None
    assert media_mark([{"role": "user", "content": "text"}]) is None
    assert media_mark(user(CAT, LOOK, DOG)) == both
    assert media_mark([*user(CAT), *user(DOG)]) == both
    assert media_mark(user(DOG, CAT)) != both
    assert media_mark(user(CAT)) not in (None, both)


def test_a_part_nested_without_end_still_has_a_mark() -> None:
    part: Any = "deep"
    for _ in range(500):
        part = {"image_url": part}
    assert media_mark(user(part)) is not None
