"""Circuit breaker: keeps requests away from workers that fail while the others do not (outlier ejection).

Pure: told how legs ended and what time it is, it moves each worker's circuit between closed, open and half-open and
says so to one callback. Nothing here runs while a request is placed on a closed circuit, and a leg that ends well
costs one addition; what is computed over the fleet is computed at a failure.

Three things open a circuit: failures of the transport in a row, 5xx answers in a row, or a share of either in the
window. Each counts only against a fleet that does better: where the rest fails as much, the cause lies elsewhere, and
taking workers out would make it worse. An open circuit becomes half-open after a time that doubles with each repeat;
then a few requests are let through, and as many good answers close it.

Source of the rules: outlier detection as in Envoy and Finagle; the floor against amplification is vime PR#371's lesson.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from router.fleet.worker import Circuit, Health, Worker
from router.proxy.interface import Outcome

_BUCKETS = 10


class Cause(StrEnum):
    """What opened a circuit. Closed: also the label of a metric."""

    TRANSPORT = "consecutive_failures"
    ERRORS = "consecutive_5xx"
    TRANSPORT_RATE = "failure_rate"
    ERROR_RATE = "5xx_rate"
    PROBE = "probe_failed"


_OK, _CLOSED = Outcome.OK, Circuit.CLOSED
TRANSPORT_FAILURES = frozenset(
    (
        Outcome.CONNECT_FAILED,
        Outcome.CONNECT_TIMEOUT,
        Outcome.RESET,
        Outcome.FIRST_BYTE_TIMEOUT,
        Outcome.IDLE_TIMEOUT,
        Outcome.CUT,
        Outcome.BAD_RESPONSE,
    )
)


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """Times in seconds, shares 0..1.

    `failures`, `errors`: so many in a row open the circuit. `rate`: so large a share of the last `window` does, once
    there were `least` ended legs in it. `ejection` doubles with each repeat up to `ejection_max`; one repeat is
    forgotten after four times what it took in good health. `probes`: requests a half-open circuit lets through at a
    time, and good ones that close it. `max_ejected`: share of a model's workers that may be out; one always stays in.
    """

    failures: int = 5
    errors: int = 10
    rate: float = 0.5
    least: int = 20
    window: float = 10.0
    ejection: float = 5.0
    ejection_max: float = 300.0
    probes: int = 3
    max_ejected: float = 0.5


@dataclass(slots=True, eq=False)
class Record:
    """What the breaker knows of one worker. The lists are counts of the window's parts, the newest last."""

    worker: Worker
    in_a_row: int = 0
    errors_in_a_row: int = 0
    ended: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    failed: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    errors: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    repeats: int = 0
    until: float = 0.0
    since: float = 0.0
    probing: int = 0
    good: int = 0
    ejections: dict[str, int] = field(default_factory=dict)
    spared: int = 0
    """Times it would have been taken out, had the others not been out already."""

    def forget_counts(self) -> None:
        self.in_a_row = self.errors_in_a_row = 0
        for counts in (self.ended, self.failed, self.errors):
            counts[:] = [0] * _BUCKETS


class Breaker:
    """`workers` is the fleet as it is now; `changed` is told each time a circuit opens, lets through or closes."""

    def __init__(
        self,
        settings: BreakerSettings,
        workers: Callable[[], Iterable[Worker]],
        changed: Callable[[Worker, Circuit, str], None],
    ) -> None:
        self.settings = settings
        self.records: dict[str, Record] = {}
        self._workers = workers
        self._changed = changed
        self._turned = 0.0

    # -- the life of a request ---------------------------------------------------------------------------------

    def placed(self, worker: Worker) -> None:
        """A request was placed on a worker whose circuit is not closed."""
        record = self._record(worker)
        if worker.circuit is Circuit.HALF_OPEN:
            record.probing += 1
            if record.probing >= self.settings.probes:
                self._set(worker, Circuit.PROBING, f"{record.probing} requests try it")

    def ended(self, worker: Worker, outcome: Outcome, placed: float, now: float) -> None:
        """A leg that was placed at `placed` has ended. CLIENT_GONE says nothing of the worker."""
        record = self._record(worker)
        if worker.circuit is _CLOSED:
            if outcome is _OK:
                record.ended[-1] += 1
                record.in_a_row = record.errors_in_a_row = 0
            elif outcome is Outcome.ENGINE_ERROR or outcome in TRANSPORT_FAILURES:
                self._failed(record, outcome, now)
        elif worker.circuit is not Circuit.OPEN and placed >= record.since:
            self._probed(record, outcome, now)

    # -- time and the fleet ------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Moves the window on and lets requests to circuits whose time is over. Call about once a second."""
        step = self.settings.window / _BUCKETS
        parts = min(int((now - self._turned) / step), _BUCKETS)
        if parts > 0:
            self._turned = now if parts == _BUCKETS else self._turned + parts * step
        for record in tuple(self.records.values()):
            for counts in (record.ended, record.failed, record.errors):
                counts[:] = counts[parts:] + [0] * parts
            worker = record.worker
            if worker.circuit is Circuit.OPEN and now >= record.until:
                self._half_open(record, now, "its time is over")
            elif worker.circuit is Circuit.CLOSED and record.repeats and now - record.since > self._calm(record):
                record.repeats -= 1
                record.since = now

    def came_up(self, worker: Worker, now: float) -> None:
        """The health checks reach it again, maybe another process: what the old one did counts no longer."""
        record = self.records.get(worker.id)
        if record is None:
            return
        record.forget_counts()
        if worker.circuit is not Circuit.CLOSED:
            self._half_open(record, now, "it came back up")

    def removed(self, worker_id: str) -> None:
        self.records.pop(worker_id, None)

    def shown(self, worker: Worker, now: float) -> dict[str, object]:
        """The circuit as `GET /workers` answers it; `retry_in_s` is None unless it is open."""
        record = self._record(worker)
        return {
            "state": str(Circuit.HALF_OPEN if worker.circuit is Circuit.PROBING else worker.circuit),
            "retry_in_s": round(max(record.until - now, 0.0), 3) if worker.circuit is Circuit.OPEN else None,
            "failures_in_a_row": record.in_a_row,
            "errors_in_a_row": record.errors_in_a_row,
            "ended": sum(record.ended),
            "failed": sum(record.failed),
            "errors": sum(record.errors),
            "ejections": dict(record.ejections),
            "spared": record.spared,
        }

    # -- steps -------------------------------------------------------------------------------------------------

    def _record(self, worker: Worker) -> Record:
        record = self.records.get(worker.id)
        if record is None or record.worker is not worker:
            record = self.records[worker.id] = Record(worker)
        return record

    def _failed(self, record: Record, outcome: Outcome, now: float) -> None:
        settings = self.settings
        record.ended[-1] += 1
        transport = outcome is not Outcome.ENGINE_ERROR
        if transport:
            record.in_a_row += 1
            record.failed[-1] += 1
        else:
            record.errors_in_a_row += 1
            record.errors[-1] += 1
        ended = sum(record.ended)
        bad = sum(record.failed) if transport else sum(record.errors)
        row, most = (record.in_a_row, settings.failures) if transport else (record.errors_in_a_row, settings.errors)
        many = ended >= settings.least and bad >= settings.rate * ended
        if row < most and not many:
            return
        others, rest_bad, rest_ended = self._rest(record, transport)
        share = 1.0 if row >= most else bad / ended
        if rest_bad > 0.5 * share * rest_ended:
            return  # the others fail more than half as often: no outlier
        if self._may_eject(others):
            by_row = Cause.TRANSPORT if transport else Cause.ERRORS
            by_rate = Cause.TRANSPORT_RATE if transport else Cause.ERROR_RATE
            why = f"{row} in a row, the last was {outcome}" if row >= most else f"{bad} of {ended} failed"
            self._open(record, by_row if row >= most else by_rate, why, now)
        else:
            record.spared += 1

    def _rest(self, record: Record, transport: bool) -> tuple[list[Worker], int, int]:
        """Who could serve in its place, and how many legs of those in service failed and ended in the window."""
        mine = record.worker
        others = [worker for worker in self._workers() if worker is not mine and _alike(mine, worker)]
        bad = ended = 0
        for worker in others:
            its = self.records.get(worker.id)
            if its is not None and _in_service(worker):
                bad += sum(its.failed if transport else its.errors)
                ended += sum(its.ended)
        return others, bad, ended

    def _may_eject(self, others: list[Worker]) -> bool:
        """Whether one more may go: somebody healthy stays, and no more than the share is out."""
        out = sum(worker.circuit is not Circuit.CLOSED for worker in others)
        return any(map(_in_service, others)) and out + 1 <= max(self.settings.max_ejected * (len(others) + 1), 1)

    def _probed(self, record: Record, outcome: Outcome, now: float) -> None:
        record.probing = max(record.probing - 1, 0)
        if outcome is Outcome.ENGINE_ERROR or outcome in TRANSPORT_FAILURES:
            self._open(record, Cause.PROBE, f"a request that tried it ended in {outcome}", now)
            return
        if outcome is Outcome.OK:
            record.good += 1
            if record.good >= self.settings.probes:
                record.forget_counts()
                record.since = now
                self._set(record.worker, Circuit.CLOSED, f"{record.good} requests went well")
                return
        if record.worker.circuit is Circuit.PROBING:
            self._set(record.worker, Circuit.HALF_OPEN, "the next may try it")

    def _open(self, record: Record, cause: Cause, why: str, now: float) -> None:
        seconds = self._seconds(record.repeats)
        record.repeats += 1
        record.until, record.since = now + seconds, now
        record.ejections[cause] = record.ejections.get(cause, 0) + 1
        record.forget_counts()
        self._set(record.worker, Circuit.OPEN, f"{why}; out for {seconds:g} s")

    def _half_open(self, record: Record, now: float, why: str) -> None:
        record.since, record.probing, record.good = now, 0, 0
        self._set(record.worker, Circuit.HALF_OPEN, why)

    def _seconds(self, repeats: int) -> float:
        return float(min(self.settings.ejection * 2 ** min(repeats, 30), self.settings.ejection_max))

    def _calm(self, record: Record) -> float:
        """Seconds of good behaviour that take one repeat off: four times what the last ejection took."""
        return 4 * self._seconds(record.repeats - 1)

    def _set(self, worker: Worker, circuit: Circuit, why: str) -> None:
        worker.circuit = circuit
        self._changed(worker, circuit, why)


def _in_service(worker: Worker) -> bool:
    return worker.circuit is Circuit.CLOSED and worker.health is Health.UP and not worker.draining


def _alike(one: Worker, other: Worker) -> bool:
    """Whether a request for a model of the one could go to the other."""
    return not one.models or not other.models or not set(one.models).isdisjoint(other.models)
