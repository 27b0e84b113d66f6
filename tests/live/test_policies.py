"""A policy of a user's own, and what a reset forgets, live over HTTP."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

from tests.live.conftest import running_router

DOCS = Path(__file__).parents[2] / "docs" / "policies.md"
NAN = """
from router.policies.choice import blind
from router.model import Reason

class Nan:
    name, needs = "nan", frozenset()
    def __init__(self, settings): pass
    def decide(self, request, candidates, rng):
        decision = blind("nan", 0, Reason.RANDOM, candidates)
        decision.cost = [float("nan")] * len(candidates)
        return decision
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the docs, and a policy that answers nonsense, installed for the router's process."""
    found = re.search(r"```python\n(.*?class CheapestQueue.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    info = tmp_path / "mypolicies-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypolicies\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[kvctl.policies]\ncheapest-queue = cheapest_queue:CheapestQueue\nnan = nan_policy:Nan\n"
    )
    (tmp_path / "cheapest_queue.py").write_text(found[1])
    (tmp_path / "nan_policy.py").write_text(NAN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_the_policy_of_the_docs_routes_and_one_that_fails_costs_no_request(
    package: None, worker_options: list[str]
) -> None:
    options = ("--router-mode", "cheapest-queue", "--allow-mode-override", "--shadow", "nan")
    with running_router(*options, *worker_options) as router:
        decision = router.decision(router.ask("hello"))
        assert (decision["mode"], decision["candidates"][0]["terms"][0]["name"]) == ("cheapest-queue", "queue")
        failed = router.decision(router.ask("hello", headers={"x-kvctl-mode": "nan"}))
        assert (failed["degraded"], failed["reason"]) == (["policy_failed"], "least_loaded")
        assert 'kvctl_degraded_decisions_total{what="policy_failed"} 1.0' in router.control.get("/metrics").text
        shadow = router.get("/shadow")["shadows"]["nan"]
        assert (shadow["failed"], shadow["decisions"]) == (2, 0)
        assert "is no number" in router.log()


def test_a_reset_forgets_what_prefixaware_and_its_shadow_remember(worker_options: list[str]) -> None:
    options = ("--router-mode", "prefixaware", "--shadow", "prefixaware", "--seed", "5", *worker_options)
    with running_router(*options) as router:
        prompt = f"{uuid.uuid4()} " + "some text that fills several blocks " * 20

        def known() -> list[float]:
            rows = router.decision(router.ask(prompt))["candidates"]
            return [next(term["value"] for term in row["terms"] if term["name"] == "known_prefix") for row in rows]

        assert not any(known())
        assert sum(value > 0 for value in known()) == 1
        assert router.control.post("/reset").json() == {"reset": ["index", "predictions", "shared", "policies"]}
        assert not any(known())


def test_bound_sessions_are_counted(worker_options: list[str]) -> None:
    with running_router("--session-affinity-ttl", "60", *worker_options) as router:
        for session in ("a", "b", "a"):
            router.ask("hello", headers={"x-session-id": session})
        assert "kvctl_bound_sessions 2.0" in router.control.get("/metrics").text
