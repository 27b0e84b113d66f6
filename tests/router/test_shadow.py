"""Shadow policies: they decide on the live state, count, and change nothing."""

from __future__ import annotations

import random

import numpy as np

from router.core import CoreSettings, RoutingCore
from router.fleet.worker import Health
from router.model import Candidates, Decision, Need, RouteRequest, WorkerSpec
from router.policies.kv import Kv
from router.policies.plugins import Guarded
from router.policies.settings import PolicySettings
from router.records import shown_shadow
from router.shadow import Shadows
from tests.router.policies.build import fleet, request, rng


def test_agreement_and_differences_are_counted_against_the_acting_mode() -> None:
    """kv takes w1 (cost 10 - 6 + 0), least-loaded w0: 10 blocks dearer, no cached tokens instead of 60."""
    shadows = Shadows(("least-loaded",), PolicySettings(), seed=1)
    rows = fleet(2, device=[0, 6], active_requests=[0, 1], decode_blocks=[4, 0])
    asked = request(100)
    acted = Kv().decide(asked, rows, rng())
    acted.prompt_tokens = 100
    assert acted.worker == "w1"
    shadows.saw(asked, acted)
    counts = shadows.counts["least-loaded"]
    assert (counts.decisions, counts.agreed) == (1, 0)
    assert counts.cost_difference == (10 + 4) - (10 - 6)
    assert counts.cached_difference == -60
    assert counts.chosen == {"w0": 1}


def test_a_shadow_of_the_acting_mode_agrees() -> None:
    shadows = Shadows(("kv",), PolicySettings(), seed=1)
    rows = fleet(3, device=[0, 6, 2])
    acted = Kv().decide(request(100), rows, rng())
    shadows.saw(request(100), acted)
    assert shown_shadow(shadows.counts["kv"])["agreement"] == 1.0


def test_the_acting_decision_is_left_as_it_was() -> None:
    shadows = Shadows(("random", "round-robin", "prefixaware"), PolicySettings(), seed=1)
    asked = request(20, keys={10: np.array([1, 2], np.uint64)}, now=1.0)
    acted = Kv().decide(asked, fleet(4), rng())
    before = (acted.winner, acted.reason, acted.cost.tolist(), acted.mode)
    shadows.saw(asked, acted)
    assert (acted.winner, acted.reason, acted.cost.tolist(), acted.mode) == before


def test_a_shadow_that_learns_remembers_its_own_choices() -> None:
    shadows = Shadows(("prefixaware",), PolicySettings(), seed=1)
    asked = request(20, keys={10: np.array([1, 2], np.uint64)}, now=1.0)
    for only in (0, 0, 0):
        rows = fleet(4, active_requests=[1, 1, 1, 0] if only == 0 else [0, 0, 0, 0])
        shadows.saw(asked, Kv().decide(asked, rows, rng()))
    assert shadows.counts["prefixaware"].chosen == {"w3": 3}


def test_a_removed_workers_counts_go() -> None:
    shadows = Shadows(("least-loaded",), PolicySettings(), seed=1)
    shadows.saw(request(), Kv().decide(request(), fleet(1), rng()))
    shadows.removed("w0")
    assert shadows.counts["least-loaded"].chosen == {}


def test_what_a_shadow_remembers_of_a_worker_goes_with_the_workers_cache() -> None:
    shadows = Shadows(("prefixaware",), PolicySettings(), seed=1)
    core = RoutingCore(CoreSettings(seed=1))
    core.on_forgotten.append(shadows.dropped)
    for name in ("a", "b"):
        worker = core.fleet.add(WorkerSpec(url=f"http://{name}:1", id=name))
        worker.health, worker.block_size = Health.UP, 10
    core.add_slots()
    asked = request(20, keys={10: np.array([1, 2], np.uint64)})
    shadows.saw(asked, core.decide(asked, "kv", 1.0))
    (home,) = shadows.counts["prefixaware"].chosen
    busy = core.loads.book(core.fleet.workers[home].slots[0], 1, 1, None)
    core.reset()
    shadows.saw(asked, core.decide(asked, "kv", 2.0))
    busy.release()
    assert shadows.counts["prefixaware"].chosen == {"a": 1, "b": 1}


def test_a_shadow_that_fails_is_counted_and_its_stand_in_is_not() -> None:
    class Fails:
        name = "fails"
        needs: frozenset[Need] = frozenset()

        def decide(self, request: RouteRequest, candidates: Candidates, rng: random.Random) -> Decision:
            raise RuntimeError

    shadows = Shadows(("random",), PolicySettings(), seed=1)
    shadows._policies["random"] = Guarded("fails", Fails())
    shadows.saw(request(), Kv().decide(request(), fleet(2), rng()))
    assert (shadows.counts["random"].failed, shadows.counts["random"].decisions) == (1, 0)


def test_blocks_of_the_shared_store_count_as_cached() -> None:
    shadows = Shadows(("least-loaded",), PolicySettings(), seed=1)
    acted = Kv().decide(request(100), fleet(2, device=[4, 0], shared=[0, 4], active_requests=[1, 0]), rng())
    acted.prompt_tokens = 100
    shadows.saw(request(100), acted)
    assert (acted.worker, shadows.counts["least-loaded"].chosen) == ("w0", {"w1": 1})
    assert shadows.counts["least-loaded"].cached_difference == 0
