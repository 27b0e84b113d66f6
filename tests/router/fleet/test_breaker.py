"""The circuit breaker: what opens a circuit, what does not, how it closes again, and who always stays in."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.fleet.breaker import Breaker, BreakerSettings, Cause
from router.fleet.registry import Fleet
from router.fleet.worker import Circuit, Health, Worker
from router.model import WorkerSpec
from router.proxy.interface import Outcome


class Scene:
    """A fleet with a breaker, and a clock that is set by hand."""

    def __init__(self, count: int, models: tuple[str, ...] = ("m",), **fields: object) -> None:
        self.fleet = Fleet()
        self.said: list[tuple[str, Circuit]] = []
        self.settings = BreakerSettings(**fields)  # type: ignore[arg-type]
        self.breaker = Breaker(
            self.settings,
            lambda: self.fleet.workers.values(),
            lambda worker, circuit, _why: self.said.append((worker.id, circuit)),
        )
        for number in range(count):
            self.add(f"w{number}", models)

    def add(self, name: str, models: tuple[str, ...]) -> Worker:
        worker = self.fleet.add(WorkerSpec(url=f"http://{name}:1", id=name))
        worker.health, worker.models = Health.UP, models
        return worker

    def __getitem__(self, number: int) -> Worker:
        return self.fleet.workers[f"w{number}"]

    def end(self, number: int, outcome: Outcome, times: int = 1, now: float = 0.0) -> None:
        for _ in range(times):
            self.breaker.ended(self[number], outcome, now, now)

    def attempt(self, number: int, outcome: Outcome, now: float) -> None:
        """A request that is placed and ends at once."""
        self.breaker.placed(self[number])
        self.breaker.ended(self[number], outcome, now, now)

    def out(self) -> set[str]:
        return {worker.id for worker in self.fleet.workers.values() if worker.circuit is Circuit.OPEN}


def test_failures_in_a_row_open_the_circuit() -> None:
    scene = Scene(3)
    scene.end(0, Outcome.RESET, 4)
    assert scene.out() == set()
    scene.end(0, Outcome.BAD_RESPONSE)
    assert scene.out() == {"w0"}
    assert scene.breaker.records["w0"].ejections == {Cause.TRANSPORT: 1}


def test_a_good_answer_between_failures_begins_the_row_anew() -> None:
    scene = Scene(3)
    scene.end(0, Outcome.RESET, 4)
    scene.end(0, Outcome.OK)
    scene.end(0, Outcome.RESET, 4)
    assert scene.out() == set()


def test_5xx_answers_are_counted_apart_from_failures_of_the_transport() -> None:
    scene = Scene(3)
    scene.end(0, Outcome.ENGINE_ERROR, 9)
    scene.end(0, Outcome.RESET, 4)
    assert scene.out() == set()
    scene.end(0, Outcome.ENGINE_ERROR)
    assert scene.breaker.records["w0"].ejections == {Cause.ERRORS: 1}


def test_clients_that_leave_say_nothing_of_the_worker() -> None:
    scene = Scene(3)
    scene.end(0, Outcome.CLIENT_GONE, 100)
    assert scene.out() == set()


def test_a_large_share_of_failures_in_the_window_opens_the_circuit() -> None:
    scene = Scene(3)
    for _ in range(10):
        scene.end(0, Outcome.OK)
        scene.end(0, Outcome.CUT)
    assert scene.breaker.records["w0"].ejections == {Cause.TRANSPORT_RATE: 1}


def test_failures_that_left_the_window_do_not_count() -> None:
    scene = Scene(3)
    for second in range(40):
        scene.breaker.tick(float(second) * 5)
        scene.end(0, Outcome.CUT, 1, float(second) * 5)
        scene.end(0, Outcome.OK, 1, float(second) * 5)
    assert scene.out() == set()


def test_where_the_others_fail_as_much_nobody_is_taken_out() -> None:
    scene = Scene(4)
    for _ in range(60):
        for number in range(4):
            scene.end(number, Outcome.ENGINE_ERROR)
    assert scene.out() == set()


def test_half_of_the_fleet_stays_in_whatever_happens() -> None:
    scene = Scene(6)
    for number in range(6):
        scene.end(5, Outcome.OK, 1000)
        scene.end(number, Outcome.RESET, 5)
    assert scene.out() == {"w0", "w1", "w2"}
    assert scene.breaker.records["w3"].spared == 1


def test_the_only_worker_is_never_taken_out() -> None:
    scene = Scene(1)
    scene.end(0, Outcome.RESET, 50)
    assert scene.out() == set()


def test_the_only_worker_of_a_model_is_never_taken_out() -> None:
    scene = Scene(4)
    lonely = scene.add("lonely", ("other",))
    for _ in range(50):
        scene.breaker.ended(lonely, Outcome.RESET, 0.0, 0.0)
    assert lonely.circuit is Circuit.CLOSED


def test_a_worker_is_not_taken_out_when_the_others_are_down_or_draining() -> None:
    scene = Scene(3)
    scene[1].health = Health.DOWN
    scene[2].draining = True
    scene.end(0, Outcome.RESET, 50)
    assert scene.out() == set()


def opened(**fields: object) -> Scene:
    scene = Scene(4, **fields)  # type: ignore[arg-type]
    scene.end(0, Outcome.RESET, 5)
    assert scene.out() == {"w0"}
    return scene


def test_an_open_circuit_lets_requests_through_when_its_time_is_over() -> None:
    scene = opened(ejection=5.0)
    scene.breaker.tick(4.9)
    assert scene[0].circuit is Circuit.OPEN
    scene.breaker.tick(5.0)
    assert scene[0].circuit is Circuit.HALF_OPEN


def test_a_half_open_circuit_lets_through_no_more_than_its_probes_at_a_time() -> None:
    scene = opened(probes=2)
    scene.breaker.tick(5.0)
    scene.breaker.placed(scene[0])
    assert scene[0].circuit is Circuit.HALF_OPEN
    scene.breaker.placed(scene[0])
    assert scene[0].circuit is Circuit.PROBING
    scene.breaker.ended(scene[0], Outcome.CLIENT_GONE, 5.0, 6.0)
    assert scene[0].circuit is Circuit.HALF_OPEN


def test_good_answers_close_a_half_open_circuit() -> None:
    scene = opened(probes=2)
    scene.breaker.tick(5.0)
    scene.attempt(0, Outcome.OK, 5.0)
    assert scene[0].circuit is Circuit.HALF_OPEN
    scene.attempt(0, Outcome.OK, 5.1)
    assert scene[0].circuit is Circuit.CLOSED


def test_one_failed_probe_opens_the_circuit_again_for_twice_as_long() -> None:
    scene = opened(ejection=5.0)
    scene.breaker.tick(5.0)
    scene.attempt(0, Outcome.RESET, 5.0)
    scene.breaker.tick(14.9)
    assert scene[0].circuit is Circuit.OPEN
    scene.breaker.tick(15.0)
    assert scene[0].circuit is Circuit.HALF_OPEN
    assert scene.breaker.records["w0"].ejections == {Cause.TRANSPORT: 1, Cause.PROBE: 1}


def test_the_ejection_time_has_a_maximum() -> None:
    scene = opened(ejection=5.0, ejection_max=20.0)
    now = 0.0
    for _ in range(40):
        now += 20.0
        scene.breaker.tick(now)
        assert scene[0].circuit is Circuit.HALF_OPEN
        scene.attempt(0, Outcome.RESET, now)


def test_good_health_makes_the_next_ejection_short_again() -> None:
    scene = opened(ejection=5.0, probes=1)
    scene.breaker.tick(5.0)
    scene.attempt(0, Outcome.OK, 5.0)
    scene.breaker.tick(26.0)
    scene.end(0, Outcome.RESET, 5, now=26.0)
    scene.breaker.tick(31.0)
    assert scene[0].circuit is Circuit.HALF_OPEN


def test_a_request_from_before_the_ejection_is_no_probe() -> None:
    scene = opened(probes=1)
    scene.breaker.tick(5.0)
    scene.breaker.ended(scene[0], Outcome.RESET, 0.0, 6.0)
    assert scene[0].circuit is Circuit.HALF_OPEN


def test_a_worker_that_comes_back_up_is_tried_at_once() -> None:
    scene = opened(ejection=60.0)
    scene.breaker.came_up(scene[0], 1.0)
    assert scene[0].circuit is Circuit.HALF_OPEN


def test_a_worker_with_the_id_of_a_removed_one_starts_with_nothing() -> None:
    scene = Scene(3)
    scene.end(0, Outcome.RESET, 4)
    scene.fleet.remove("w0")
    scene.breaker.removed("w0")
    scene.add("w0", ("m",))
    scene.end(0, Outcome.RESET, 1)
    assert scene.out() == set()


_ENDS = st.sampled_from([Outcome.OK, Outcome.RESET, Outcome.ENGINE_ERROR, Outcome.CLIENT_GONE, Outcome.CUT])


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 7),
    st.lists(st.tuples(st.integers(0, 6), _ENDS, st.integers(1, 12), st.floats(0, 8)), max_size=40),
)
def test_somebody_always_stays_in_and_no_more_than_the_share_is_out(
    count: int, course: list[tuple[int, Outcome, int, float]]
) -> None:
    scene = Scene(count)
    now = 0.0
    for number, outcome, times, wait in course:
        now += wait
        scene.breaker.tick(now)
        for _ in range(times):
            worker = scene[number % count]
            if worker.circuit is not Circuit.CLOSED:
                scene.breaker.placed(worker)
            scene.breaker.ended(worker, outcome, now, now)
            not_closed = [w for w in scene.fleet.workers.values() if w.circuit is not Circuit.CLOSED]
            assert len(not_closed) < count
            assert len(not_closed) <= max(count // 2, 1)
