"""Whole runs against routers of any make: how they are made cold, what they are told, which versions are kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from bench import run
from bench.arms import ArmError
from bench.settings import Settings
from tests.bench.fakes import FakeEngine, plain
from tests.bench.test_run import QUIET, routers


@dataclass
class Posted(FakeEngine):
    """A router that takes POST /flush and tells its version."""

    flushed: list[str] = field(default_factory=list)

    def _control(self, method: str, path: str) -> bytes:
        if path == "/flush":
            self.flushed.append(method)
            return plain(200, {})
        if path == "/version":
            return plain(200, {"version": "7.1"})
        return super()._control(method, path)


def settings(urls: list[str], **how: Any) -> Settings:
    return Settings(urls=tuple(urls), **({"requests": 12, "blocks": 1, "aa": 0, "rate": 150.0} | how))


def design(outcome: run.Outcome) -> dict[str, Any]:
    found = outcome.data["design"]
    assert isinstance(found, dict)
    return found


def provenance(outcome: run.Outcome) -> dict[str, Any]:
    found = outcome.data["provenance"]
    assert isinstance(found, dict)
    return found


def test_engines_that_are_named_are_reset_and_proven_cold() -> None:
    one, two = FakeEngine(), FakeEngine()
    with routers(one, two) as urls:
        outcome = run.bench(settings([f"{n}={url},engines={url}" for n, url in zip("ab", urls, strict=True)]), QUIET)
    assert design(outcome)["cold_start"] == "reset"
    assert all(block["cold"]["proven"] for block in design(outcome)["blocks"])


def test_a_reset_that_drops_nothing_gives_no_proof() -> None:
    with routers(FakeEngine(resets="lying"), FakeEngine()) as urls:
        outcome = run.bench(settings([f"{n}={url},engines={url}" for n, url in zip("ab", urls, strict=True)]), QUIET)
    assert outcome.verdict.exit_code == 4
    assert any(
        "survived its reset" in reason for block in design(outcome)["blocks"] for reason in block["cold"]["reasons"]
    )


def test_only_the_engines_of_the_arm_that_follows_are_reset() -> None:
    one, two = FakeEngine(), FakeEngine()
    with routers(one, two) as urls:
        named = [f"{n}={url},engines={url}" for n, url in zip("ab", urls, strict=True)]
        run.bench(settings(named, blocks=2), QUIET)
    # One to find out that it can be reset, then two for each of its two blocks.
    assert (one.reset_count, two.reset_count) == (5, 5)


def test_reset_none_leaves_the_engines_alone_and_takes_nonces_of_their_block_size() -> None:
    one, two = FakeEngine(), FakeEngine()
    with routers(one, two) as urls:
        outcome = run.bench(
            settings([f"a={urls[0]},engines={urls[0]},reset=none", f"b={urls[1]},engines={urls[1]}"]), QUIET
        )
    assert design(outcome)["cold_start"] == "nonce"
    assert (one.reset_count, two.reset_count) == (0, 0)
    heads = {tuple(body["prompt"][:64]) for body in one.seen if len(body["prompt"]) > 64}  # type: ignore[arg-type,index]
    assert len(heads) == 1


def test_one_arm_with_unknown_engines_makes_all_arms_take_nonces() -> None:
    one, two = FakeEngine(), FakeEngine()
    with routers(one, two) as urls:
        outcome = run.bench(settings([f"a={urls[0]},engines={urls[0]}", f"b={urls[1]}"]), QUIET)
    assert design(outcome)["cold_start"] == "nonce"
    assert one.reset_count == 0


@pytest.mark.parametrize("engines", [True, False])
def test_the_address_named_with_reset_is_posted_to_before_each_block(engines: bool) -> None:
    one, two = Posted(), Posted()
    with routers(one, two) as urls:
        named = [f"{n}={url},reset={url}/flush" for n, url in zip("ab", urls, strict=True)]
        if engines:
            named = [f"{text},engines={url}" for text, url in zip(named, urls, strict=True)]
        run.bench(settings(named, blocks=2), QUIET)
    assert one.flushed == two.flushed == ["POST", "POST"]


def test_an_address_named_with_reset_that_refuses_is_an_error() -> None:
    with routers(FakeEngine(), FakeEngine()) as urls, pytest.raises(ArmError, match="/nothing: HTTP 404"):
        run.bench(settings([f"{n}={url},reset={url}/nothing" for n, url in zip("ab", urls, strict=True)]), QUIET)


def test_versions_are_given_or_asked_for_and_say_where_they_come_from() -> None:
    with routers(FakeEngine(), Posted(), FakeEngine()) as urls:
        named = [f"a={urls[0]},version=smg 1.13.0", f"b={urls[1]},engines={urls[1]}", f"c={urls[2]}"]
        outcome = run.bench(settings(named), QUIET)
    assert provenance(outcome)["versions"] == {"a": "smg 1.13.0", "b": "7.1", "c": None}
    assert provenance(outcome)["version_sources"] == {
        "a": {"from": "given", "engines": []},
        "b": {"from": "/version", "engines": ["7.1"]},
        "c": {"from": None, "engines": []},
    }
