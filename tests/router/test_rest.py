"""Whatever happens to requests, workers and limits in whatever order: in the end nothing is booked, queued or bound."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as some

from router.admission import AdmissionSettings, ClassSettings, Order
from router.affinity import AffinityMode, AffinitySettings
from router.core import CoreSettings, RoutingCore
from router.dispatch import RequestDispatcher
from router.eligibility import BusyThresholds
from router.engine_time import PrefillModel
from router.fleet.monitor import FleetMonitor
from router.fleet.worker import Health, KvState, Worker
from router.legs import RoutedLeg
from router.metrics import RouterStats
from router.model import WorkerSpec
from router.model_tokens import ModelTokens
from router.policies.settings import PolicySettings
from router.proxy.interface import Answer, Inbound, Leg, Outcome, Usage
from router.reading import DispatchSettings
from router.records import DecisionLog
from router.shadow import Shadows
from router.tokens.body import Body
from router.tokens.service import Source, TokenResult

B = 16
LATER = 3
PROMPTS = [np.repeat(np.arange(first, first + 6, dtype=np.uint32), B) for first in (0, 3, 50)]


class Tokens:
    """Ids by the number that is the prompt; some only after a turn of the loop."""

    def tokens(self, model: str, body: Body) -> Any:
        number = int(body.text or 0)
        found = TokenResult(PROMPTS[number % LATER], Source.LOCAL)
        if number < LATER:
            return found

        async def soon() -> TokenResult:
            await asyncio.sleep(0)
            return found

        return asyncio.ensure_future(soon())


class Monitor:
    def connection_failed(self, worker: Worker, why: str) -> None:
        worker.health = Health.DOWN

    def suspect(self, worker: Worker) -> None:
        pass


class System:
    """A dispatcher before a fleet that is only told of; `now` is its clock."""

    def __init__(self, mode: str, affinity: AffinityMode) -> None:
        self.now = 0.0
        policies = PolicySettings()
        self.core = RoutingCore(
            CoreSettings(
                seed=1,
                affinity=AffinitySettings(30, affinity),
                thresholds=BusyThresholds(prefill_tokens=50),
                track_output=True,
                prefill_model=PrefillModel.FITTED,
                policies=policies,
            )
        )
        self.shadows = Shadows(("prefixaware", "kvaware", "direct"), policies, 1)
        self.core.on_forgotten.append(self.shadows.dropped)
        classes = (ClassSettings("batch", Order.WSPT, quantum=64), ClassSettings("small", limit=2))
        self.dispatcher = RequestDispatcher(
            self.core,
            cast("FleetMonitor", Monitor()),
            cast("ModelTokens", Tokens()),
            DecisionLog(),
            RouterStats(),
            DispatchSettings(mode=mode, admission=AdmissionSettings(6, 1000.0, 3, classes)),
            lambda: self.now,
            self.shadows,
        )
        self.waiting: list[asyncio.Future[Answer | Leg]] = []
        self.legs: list[tuple[Inbound, RoutedLeg]] = []
        self.added = 0
        for _ in range(2):
            self.add()

    def add(self) -> None:
        worker = self.core.fleet.add(
            WorkerSpec(url=f"http://w{self.added}:1", id=f"w{self.added}", ranks=1 + self.added % 2)
        )
        worker.health, worker.models, worker.kv, worker.block_size = Health.UP, ("m",), KvState.LIVE, B
        self.added += 1
        self.core.fleet.changed()
        self.core.add_slots()
        self.dispatcher.waiting.poke()

    def some_worker(self, number: int) -> Worker | None:
        workers = list(self.core.fleet.workers.values())
        return workers[number % len(workers)] if workers else None

    def ask(self, number: int) -> None:
        headers = [
            (name, b"%s%d" % (value, number % of))
            for name, value, of, asked in (
                (b"x-session-id", b"s", 3, number & 1),
                (b"x-tenant-id", b"t", 2, number & 2),
                (b"x-kvctl-worker", b"w", 3, number & 4),
                (b"x-kvctl-strict-priority", b"", 3, number & 8),
            )
            if asked
        ]
        headers.append((b"x-kvctl-class", (b"batch", b"small", b"unheard")[number % 3]))
        body = json.dumps({"model": "m", "prompt": str(number % (2 * LATER))}).encode()
        inbound = Inbound("POST", b"/v1/completions", "/v1/completions", headers, body, True, self.now)
        self.take(inbound, self.dispatcher.dispatch(inbound))

    def take(self, inbound: Inbound, found: Any) -> None:
        """As the data plane does: legs are kept, what is to come is waited for."""
        if isinstance(found, RoutedLeg):
            self.legs.append((inbound, found))
        elif not isinstance(found, Answer):
            task = asyncio.ensure_future(found)
            self.waiting.append(task)

            def done(task: asyncio.Future[Answer | Leg]) -> None:
                self.waiting.remove(task)
                if not task.cancelled():
                    self.take(inbound, task.result())

            task.add_done_callback(done)

    def act(self, action: str, number: int) -> None:
        worker = self.some_worker(number)
        if action == "ask":
            self.ask(number)
        elif action == "leave" and self.waiting:
            self.waiting[number % len(self.waiting)].cancel()
        elif action == "first token" and self.legs:
            self.legs[number % len(self.legs)][1].first_token()
        elif action == "output" and self.legs:
            leg = self.legs[number % len(self.legs)][1]
            leg.generated(number)
            leg.usage(Usage(96, number, number % 97))
        elif action == "end" and self.legs:
            _inbound, leg = self.legs.pop(number % len(self.legs))
            leg.end(list(Outcome)[number % len(Outcome)], 200)
        elif action == "retry" and self.legs:
            inbound, leg = self.legs.pop(number % len(self.legs))
            leg.end(Outcome.RESET, 0)
            self.take(inbound, self.dispatcher.retry(inbound, leg, Outcome.RESET))
        elif action == "add" and self.added < 6:
            self.add()
        elif action == "reset":
            self.core.reset()
        elif action == "thresholds":
            self.core.thresholds = BusyThresholds(prefill_tokens=(0, 50, None)[number % 3])
            self.dispatcher.waiting.poke()
        elif action == "time":
            self.now += number
        elif action == "remove" and worker is not None:
            self.core.fleet.remove(worker.id)
            self.core.retire(worker)
            self.shadows.removed(worker.id)
        elif action == "health" and worker is not None:
            worker.health = Health.UP if worker.health is not Health.UP else Health.DOWN
            worker.draining = bool(number & 1)
            self.core.fleet.changed()

    async def rest(self) -> None:
        """All clients leave, all answers end."""
        for task in list(self.waiting):
            task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
            while self.legs:
                self.legs.pop()[1].end(Outcome.OK, 200)
        self.core.reclaim()


ACTIONS = ("ask", "ask", "ask", "ask", "turn", "leave", "first token", "output", "end", "end", "retry", "add")
ACTIONS += ("remove", "health", "thresholds", "time", "reset")
STEPS = some.lists(some.tuples(some.sampled_from(ACTIONS), some.integers(0, 63)), max_size=60)


@given(STEPS, some.sampled_from(("kv", "prefixaware", "session", "kvaware")), some.sampled_from(AffinityMode))
@settings(max_examples=150, deadline=None)
def test_in_the_end_nothing_is_booked_queued_or_bound(
    steps: list[tuple[str, int]], mode: str, affinity: AffinityMode
) -> None:
    async def scene() -> None:
        system = System(mode, affinity)
        for action, number in steps:
            if action == "turn":
                await asyncio.sleep(0)
            else:
                system.act(action, number)
        await system.rest()
        core, room = system.core, system.dispatcher.waiting
        assert (core.loads.open_bookings, len(room.queue), len(room.tenants), system.waiting) == (0, 0, 0, [])
        assert not core.loads.active_requests.any()
        assert not core.loads.prefill_tokens.any()
        assert not core.loads.output_blocks.any()
        assert not core.loads.active.counts().any()
        assert len(core.loads.pending) == 0
        assert all(tokens == 0 for _name, _requests, tokens in room.queue.depths())
        assert core.affinity is not None
        assert not any(binding.active for binding in core.affinity._bound.values())
        assert core._retired == []
        system.dispatcher.close()

    asyncio.run(asyncio.wait_for(scene(), 30))


async def test_an_error_after_the_booking_gives_it_back() -> None:
    system = System("kv", AffinityMode.HARD)
    system.dispatcher.stats = cast("RouterStats", None)
    inbound = Inbound("POST", b"/v1/completions", "/v1/completions", [(b"x-session-id", b"s")], b"{}", True, 0.0)
    inbound.body = b'{"model": "m", "prompt": "1"}'
    try:
        system.dispatcher.dispatch(inbound)
    except AttributeError:
        pass
    else:
        raise AssertionError("the statistics are gone, so placing must fail")
    assert system.core.loads.open_bookings == 0
    assert system.core.affinity is not None
    assert not any(binding.active for binding in system.core.affinity._bound.values())
