"""Which registered worker an instance is of."""

from __future__ import annotations

from router.lmcache.binding import Bound, Candidate, How, bind


def at(worker: str, host: str, *instances: str) -> Candidate:
    return Candidate(worker, host, instances)


def test_the_spec_names_the_instance() -> None:
    found = bind({"x": "10.0.0.9"}, [at("w", "10.0.0.1", "x")], {"x": "other"})
    assert found == {"x": Bound(How.SPEC, "w")}


def test_several_instances_of_a_spec_are_one_a_rank() -> None:
    found = bind({"x": "1", "y": "1"}, [at("w", "h", "x", "y")], {})
    assert found == {"x": Bound(How.SPEC, "w", 0), "y": Bound(How.SPEC, "w", 1)}


def test_an_instance_id_that_is_a_workers_id_is_that_worker() -> None:
    assert bind({"w": "10.0.0.9"}, [at("w", "10.0.0.1"), at("v", "10.0.0.9")], {}) == {"w": Bound(How.ID, "w")}


def test_one_instance_and_one_worker_at_an_address_belong_together() -> None:
    found = bind({"x": "10.0.0.1", "y": "10.0.0.2"}, [at("w", "10.0.0.1"), at("v", "10.0.0.2")], {})
    assert found == {"x": Bound(How.IP, "w"), "y": Bound(How.IP, "v")}


def test_two_instances_at_one_address_are_not_guessed() -> None:
    workers = [at("w", "10.0.0.1"), at("v", "10.0.0.1")]
    found = bind({"x": "10.0.0.1", "y": "10.0.0.1"}, workers, {})
    assert {bound.how for bound in found.values()} == {How.AMBIGUOUS}
    assert bind({"x": "10.0.0.1", "y": "10.0.0.1"}, workers[:1], {})["y"] == Bound(How.AMBIGUOUS)
    assert bind({"x": "10.0.0.1"}, workers, {})["x"] == Bound(How.AMBIGUOUS)


def test_what_is_left_at_an_address_after_a_spec_is_no_guess() -> None:
    found = bind({"x": "10.0.0.1", "y": "10.0.0.1"}, [at("w", "10.0.0.1", "x"), at("v", "10.0.0.1")], {})
    assert found["y"] == Bound(How.IP, "v")


def test_prompts_decide_where_addresses_do_not() -> None:
    workers = [at("w", "10.0.0.1"), at("v", "10.0.0.1")]
    assert bind({"x": "10.0.0.1"}, workers, {"x": "v"}) == {"x": Bound(How.PROMPTS, "v")}


def test_prompts_of_a_worker_that_has_left_decide_nothing() -> None:
    assert bind({"x": "10.0.0.7"}, [at("w", "10.0.0.1")], {"x": "gone"}) == {"x": Bound(How.UNKNOWN)}
