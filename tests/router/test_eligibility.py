"""The one predicate: each rule, their order, and what a refusal says."""

from __future__ import annotations

import numpy as np

from router.eligibility import BusyThresholds, last_resort, refusal, slow_start, why_not
from router.fleet.registry import Fleet
from router.fleet.worker import Circuit, Health
from router.model import AllBusy, BadRequest, Hints, NoWorkers, RouteRequest, WhyNot, WorkerSpec

NONE = BusyThresholds()


def fleet(*names: str, ranks: int = 1, capacity: int = 100) -> Fleet:
    made = Fleet()
    for name in names:
        worker = made.add(WorkerSpec(url=f"http://{name}:1", id=name, ranks=ranks))
        worker.health, worker.models, worker.capacity_blocks = Health.UP, ("m",), capacity
    made.changed()
    return made


def codes(made: Fleet, request: RouteRequest, thresholds: BusyThresholds = NONE, **load: list[int]) -> list[WhyNot]:
    view = made.view
    prefill = np.array(load.get("prefill", [0] * len(view.workers)), np.int64)
    decode = np.array(load.get("decode", [0] * len(view.workers)), np.int64)
    return [WhyNot(code) for code in why_not(request, view, thresholds, prefill, decode).tolist()]


def asked(**fields: object) -> RouteRequest:
    return RouteRequest(id="r", model="m", **fields)  # type: ignore[arg-type]


def test_healthy_workers_of_the_model_are_eligible() -> None:
    assert codes(fleet("a", "b"), asked()) == [WhyNot.OK, WhyNot.OK]


def test_a_worker_of_another_model_is_not() -> None:
    made = fleet("a", "b")
    made.workers["b"].models = ("other",)
    made.changed()
    assert codes(made, asked()) == [WhyNot.OK, WhyNot.WRONG_MODEL]


def test_a_worker_that_told_no_models_serves_any() -> None:
    made = fleet("a")
    made.workers["a"].models = ()
    made.changed()
    assert codes(made, asked()) == [WhyNot.OK]


def test_down_starting_and_draining_workers_are_not() -> None:
    made = fleet("a", "b", "c")
    made.workers["a"].health = Health.DOWN
    made.workers["b"].health = Health.STARTING
    made.workers["c"].draining = True
    made.changed()
    assert codes(made, asked()) == [WhyNot.UNHEALTHY, WhyNot.UNHEALTHY, WhyNot.DRAINING]


def test_a_pin_removes_all_others() -> None:
    assert codes(fleet("a", "b"), asked(pin_worker="b")) == [WhyNot.NOT_PINNED, WhyNot.OK]


def test_a_rank_pin_keeps_that_rank_of_each_worker() -> None:
    assert codes(fleet("a", ranks=2), asked(pin_rank=1)) == [WhyNot.RANK_OUT_OF_RANGE, WhyNot.OK]


def test_a_worker_already_tried_is_not_tried_again() -> None:
    assert codes(fleet("a", "b"), asked(tried=frozenset({"a"}))) == [WhyNot.ALREADY_TRIED, WhyNot.OK]


def test_busy_is_strictly_above_a_threshold() -> None:
    made = fleet("a", "b")
    thresholds = BusyThresholds(decode_blocks=0.5, prefill_tokens=1000)
    assert codes(made, asked(), thresholds, decode=[50, 51], prefill=[1000, 0]) == [WhyNot.OK, WhyNot.BUSY]
    assert codes(made, asked(), thresholds, decode=[0, 0], prefill=[1000, 1001]) == [WhyNot.OK, WhyNot.BUSY]


def test_a_worker_is_busy_only_if_all_its_ranks_are() -> None:
    made = fleet("a", "b", ranks=2)
    found = codes(made, asked(), BusyThresholds(prefill_tokens=10), prefill=[11, 0, 11, 11])
    assert found == [WhyNot.OK, WhyNot.OK, WhyNot.BUSY, WhyNot.BUSY]


def refused(made: Fleet, request: RouteRequest, thresholds: BusyThresholds = NONE, **load: list[int]) -> Exception:
    found = np.array(codes(made, request, thresholds, **load), np.int64)
    assert (found != 0).all()
    rows = len(made.view.workers)
    prefill, decode = (np.array(load.get(name, [0] * rows), np.int64) for name in ("prefill", "decode"))
    return refusal(request, made.view, found, thresholds, prefill, decode)


def test_no_workers_at_all_says_how_to_add_one() -> None:
    error = refused(Fleet(), asked())
    assert isinstance(error, NoWorkers)
    assert "--worker" in str(error)


def test_all_busy_names_workers_limit_and_current_value_and_is_529() -> None:
    error = refused(fleet("a"), asked(), BusyThresholds(prefill_tokens=5), prefill=[6])
    assert isinstance(error, AllBusy)
    assert error.status == 529
    assert "a: busy" in str(error)
    assert "prefill_tokens: limit 5, now 6" in str(error)
    assert "None" not in str(error)


def test_all_busy_tells_the_range_of_each_limit_that_is_set() -> None:
    limits = BusyThresholds(decode_blocks=0.5, prefill_tokens=5)
    error = refused(fleet("a", "b"), asked(), limits, prefill=[6, 0], decode=[20, 75])
    assert "prefill_tokens: limit 5, now 0 to 6" in str(error)
    assert "decode_blocks: limit 0.5, now 0.2 to 0.75" in str(error)


def test_nobody_healthy_is_503_and_names_each_worker() -> None:
    made = fleet("a", "b")
    for worker in made.workers.values():
        worker.health = Health.DOWN
    made.changed()
    error = refused(made, asked())
    assert isinstance(error, NoWorkers)
    assert error.status == 503
    assert "a: unhealthy, b: unhealthy" in str(error)


def test_a_pin_that_names_nobody_is_the_callers_mistake() -> None:
    error = refused(fleet("a"), asked(pin_worker="zzz"))
    assert isinstance(error, BadRequest)
    assert "'zzz'" in str(error)


def test_a_busy_pin_is_named_and_not_rerouted() -> None:
    error = refused(fleet("a", "b"), asked(pin_worker="a"), BusyThresholds(prefill_tokens=5), prefill=[6, 0])
    assert isinstance(error, AllBusy)
    assert "pinned worker 'a'" in str(error)
    assert "prefill_tokens: limit 5, now 6" in str(error)


def test_a_rank_that_no_worker_has_is_the_callers_mistake() -> None:
    assert isinstance(refused(fleet("a"), asked(pin_rank=7)), BadRequest)


def tainted(**taints: tuple[str, ...]) -> Fleet:
    made = Fleet()
    for name, marks in taints.items():
        worker = made.add(WorkerSpec(url=f"http://{name}:1", id=name, taints=marks))
        worker.health, worker.models = Health.UP, ("m",)
    made.changed()
    return made


def test_a_worker_must_have_every_required_taint() -> None:
    made = tainted(a=("zone-a", "spot"), b=("zone-a",), c=())
    hints = Hints(required_taints=frozenset({"zone-a", "spot"}))
    assert codes(made, asked(hints=hints)) == [WhyNot.OK, WhyNot.TAINT, WhyNot.TAINT]


def test_only_workers_of_the_allow_list_are_eligible() -> None:
    hints = Hints(allowed=frozenset({"b"}))
    assert codes(fleet("a", "b"), asked(hints=hints)) == [WhyNot.NOT_ALLOWED, WhyNot.OK]


def test_a_pin_outside_the_allow_list_is_the_callers_mistake() -> None:
    made = fleet("a", "b")
    request = asked(hints=Hints(allowed=frozenset({"b"})), pin_worker="a")
    found = np.array(codes(made, request), np.int64)
    error = refusal(request, made.view, found, NONE, np.zeros(2, np.int64), np.zeros(2, np.int64))
    assert isinstance(error, BadRequest)
    assert "not among the workers that x-kvctl-workers allows" in str(error)


def test_a_worker_past_its_share_of_batched_tokens_is_busy() -> None:
    made = Fleet()
    for name, batch in (("a", 1000), ("b", 1000), ("c", None)):
        worker = made.add(WorkerSpec(url=f"http://{name}:1", id=name, batch_tokens=batch))
        worker.health, worker.models = Health.UP, ("m",)
    made.changed()
    limits = BusyThresholds(prefill_share=2.0)
    assert codes(made, asked(), limits, prefill=[2001, 2000, 9999]) == [WhyNot.BUSY, WhyNot.OK, WhyNot.OK]


def test_an_open_circuit_removes_its_worker_and_a_half_open_one_does_not() -> None:
    made = fleet("a", "b", "c", "d")
    circuits = (Circuit.CLOSED, Circuit.OPEN, Circuit.HALF_OPEN, Circuit.PROBING)
    for worker, circuit in zip(made.workers.values(), circuits, strict=True):
        worker.circuit = circuit
    made.changed()
    assert codes(made, asked()) == [WhyNot.OK, WhyNot.CIRCUIT_OPEN, WhyNot.OK, WhyNot.CIRCUIT_OPEN]


def test_a_circuit_that_opens_is_seen_in_the_same_view() -> None:
    made = fleet("a", "b")
    view = made.view
    assert codes(made, asked()) == [WhyNot.OK, WhyNot.OK]
    made.workers["a"].circuit = Circuit.OPEN
    made.circuits_changed()
    assert made.view is view
    assert codes(made, asked()) == [WhyNot.CIRCUIT_OPEN, WhyNot.OK]


def resort(made: Fleet, request: RouteRequest, thresholds: BusyThresholds = NONE, **load: list[int]) -> object:
    view = made.view
    loads = (
        np.array(load.get("prefill", [0] * len(view.workers)), np.int64),
        np.array(load.get("decode", [0] * len(view.workers)), np.int64),
    )
    found = last_resort(request, view, why_not(request, view, thresholds, *loads), thresholds, loads)
    return None if found is None else [WhyNot(code) for code in found.tolist()]


def half_out() -> Fleet:
    made = fleet("out", "in")
    made.workers["out"].circuit = Circuit.OPEN
    made.changed()
    return made


def test_an_open_circuit_is_a_last_resort_when_the_others_were_tried() -> None:
    assert resort(half_out(), asked(tried=frozenset({"in"}))) == [WhyNot.OK, WhyNot.ALREADY_TRIED]


def test_an_open_circuit_is_no_resort_for_whom_it_has_refused_already() -> None:
    assert resort(half_out(), asked(tried=frozenset({"in", "out"}))) is None


def test_a_pin_on_an_open_circuit_is_honoured() -> None:
    assert resort(half_out(), asked(pin_worker="out")) == [WhyNot.OK, WhyNot.NOT_PINNED]


def test_a_busy_worker_is_waited_for_rather_than_an_open_circuit_tried() -> None:
    assert resort(half_out(), asked(), BusyThresholds(prefill_tokens=10), prefill=[0, 11]) is None


def warm(active: list[int], share: float) -> list[WhyNot]:
    made = fleet("old", "older", "new")
    made.workers["new"].warm_since = 0.0
    made.changed()
    start = why_not(asked(), made.view, NONE, np.zeros(3, np.int64), np.zeros(3, np.int64))
    return [WhyNot(code) for code in slow_start(start, made.view, np.array(active), np.array([share])).tolist()]


def test_a_new_worker_gets_its_share_of_the_others_mean_load() -> None:
    assert warm([10, 30, 9], 0.5)[2] is WhyNot.OK
    assert warm([10, 30, 10], 0.5)[2] is WhyNot.SLOW_START


def test_a_new_worker_always_gets_one_request() -> None:
    assert warm([0, 0, 0], 0.1)[2] is WhyNot.OK
    assert warm([0, 0, 1], 0.1)[2] is WhyNot.SLOW_START


def test_new_workers_alone_take_everything() -> None:
    made = fleet("one", "two")
    for worker in made.workers.values():
        worker.warm_since = 0.0
    made.changed()
    start = why_not(asked(), made.view, NONE, np.zeros(2, np.int64), np.zeros(2, np.int64))
    assert slow_start(start, made.view, np.array([9, 9]), np.array([0.1, 0.1])).tolist() == [0, 0]
