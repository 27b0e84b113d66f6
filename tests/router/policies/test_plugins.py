"""A user's own policy by entry point: the example of the docs, and plugins that misbehave."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from router.core import CoreSettings, RoutingCore
from router.fleet.worker import Health
from router.model import Degraded, Reason, Term, WorkerSpec
from router.policies import plugins
from router.policies.registry import UnknownMode, make_policy, mode_name
from router.policies.settings import PolicySettings
from tests.router.policies.build import fleet, request, rng

EXAMPLE = Path(__file__).parents[3] / "docs" / "policies.md"

BAD = """
class Raises:
    name, needs = "raises", frozenset()
    def __init__(self, settings): pass
    def decide(self, request, candidates, rng): raise RuntimeError("no idea")

class Forbidden(Raises):
    def decide(self, request, candidates, rng):
        from router.policies.choice import blind
        from router.model import Reason
        return blind("x", 0, Reason.RANDOM, candidates)

class Answers(Raises):
    def decide(self, request, candidates, rng):
        from router.policies.choice import blind
        from router.model import Reason
        decision = blind("x", 0, Reason.RANDOM, candidates)
        for name, value in changes.items():
            setattr(decision, name, value)
        return decision if changes else None

changes = {}

class Writes(Raises):
    def decide(self, request, candidates, rng):
        candidates.capacity_blocks[:] = 7

class NoPolicy:
    def __init__(self, settings): pass

def broken(settings): raise OSError("no licence")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed distribution `mypolicies` with the modules that a test writes."""
    info = tmp_path / "mypolicies-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypolicies\nVersion: 1\n")
    names = ["raises = bad:Raises", "forbidden = bad:Forbidden", "nopolicy = bad:NoPolicy", "broken = bad:broken"]
    names += ["writes = bad:Writes"]
    names += ["absent = nowhere:X", "answers = bad:Answers", "cheapest-queue = cheapest_queue:CheapestQueue"]
    (info / "entry_points.txt").write_text("[kvctl.policies]\n" + "\n".join(names) + "\n")
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "cheapest_queue.py").write_text(example())
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    plugins.installed.cache_clear()
    yield tmp_path
    for name in ("bad", "cheapest_queue"):
        sys.modules.pop(name, None)
    plugins.installed.cache_clear()


def example() -> str:
    found = re.search(r"```python\n(.*?class CheapestQueue.*?)```", EXAMPLE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, "docs/policies.md has lost its example"
    return found[1]


def test_the_example_of_the_docs_is_about_thirty_lines() -> None:
    assert len(example().splitlines()) <= 32


def test_the_example_of_the_docs_routes(package: Path) -> None:
    policy = make_policy("cheapest-queue", PolicySettings())
    decision = policy.decide(request(100), fleet(3, prefill_tokens=[500, 90, 400], device=[5, 0, 0]), rng())
    assert (decision.worker, decision.mode) == ("w1", "cheapest-queue")


def test_an_installed_policy_is_named_among_the_modes(package: Path) -> None:
    with pytest.raises(UnknownMode, match=r"kvaware, .*cheapest-queue"):
        mode_name("nonsense")


@pytest.mark.parametrize(("mode", "why"), [("raises", "no idea"), ("forbidden", "which may not serve")])
def test_a_policy_that_fails_costs_the_request_its_policy_only(
    package: Path, caplog: pytest.LogCaptureFixture, mode: str, why: str
) -> None:
    rows = fleet(3, eligible=[0, 1, 1], active_requests=[0, 2, 1])
    decision = make_policy(mode, PolicySettings()).decide(request(), rows, rng())
    assert (decision.worker, decision.reason, decision.mode) == ("w2", Reason.LEAST_LOADED, mode)
    assert decision.degraded == (Degraded.POLICY_FAILED,)
    assert why in caplog.text


def test_a_failing_policy_is_logged_once_a_minute(package: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = make_policy("raises", PolicySettings())
    for now in (0.0, 1.0, 59.0, 61.0):
        policy.decide(request(now=now), fleet(2), rng())
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 2


@pytest.mark.parametrize(
    ("mode", "why"),
    [("broken", "no licence"), ("absent", "No module named 'nowhere'"), ("nopolicy", "it has to have needs")],
)
def test_an_entry_point_that_is_no_policy_is_refused_by_name(package: Path, mode: str, why: str) -> None:
    with pytest.raises(plugins.PluginError, match=re.escape(mode)) as refused:
        make_policy(mode, PolicySettings())
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "NoneType, not a Decision"),
        ({"winner": -1}, "row -1"),
        ({"winner": 3}, "row 3"),
        ({"winner": 1.0}, "'float' object cannot be interpreted"),
        ({"winner": True}, "not a truth value"),
        ({"winner": "w1"}, "'str' object cannot be interpreted"),
        ({"cost": [0.0, float("nan"), 1.0]}, "costs is one that is no number"),
        ({"cost": [0.0]}, "costs of the shape (1,) for 3 rows"),
        ({"cost": ["a", "b", "c"]}, "could not convert string"),
        ({"terms": (Term("t", "u", np.zeros(2)),)}, "term 't' of the shape (2,)"),
        ({"terms": 5}, "not iterable"),
        ({"reason": "because"}, "'because' is not a valid Reason"),
        ({"degraded": ("x",)}, "'x' is not a valid Degraded"),
        ({"candidates": None}, "other candidates"),
    ],
)
def test_an_answer_that_is_no_decision_is_not_taken(
    package: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, object], why: str
) -> None:
    policy = make_policy("answers", PolicySettings())
    sys.modules["bad"].changes = changes  # type: ignore[attr-defined]
    decision = policy.decide(request(), fleet(3, active_requests=[1, 0, 1]), rng())
    assert (decision.worker, decision.degraded) == ("w1", (Degraded.POLICY_FAILED,))
    assert why in caplog.text


def test_a_winner_that_is_a_number_of_numpy_becomes_a_plain_one(package: Path) -> None:
    policy = make_policy("answers", PolicySettings())
    sys.modules["bad"].changes = {"winner": np.int64(1)}  # type: ignore[attr-defined]
    decision = policy.decide(request(), fleet(3), rng())
    assert (type(decision.winner), decision.winner, decision.degraded) == (int, 1, ())


def test_a_policy_cannot_write_into_what_all_requests_share(package: Path, caplog: pytest.LogCaptureFixture) -> None:
    core = RoutingCore(CoreSettings(seed=1))
    core.fleet.add(WorkerSpec(url="http://a:1", id="a")).health = Health.UP
    core.add_slots()
    make_policy("writes", PolicySettings()).decide(request(), core.candidates(request(), 0.0), rng())
    assert "read-only" in caplog.text
