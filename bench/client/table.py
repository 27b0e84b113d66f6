"""Finished requests, column by column: about 200 bytes each and 4 a gap between chunks, however long the answers.

A row is written when its request ends and read back as a `Timing` (without parser, body and text). Metrics read whole
columns. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from bench.client.timing import Events, Timing

Floats = npt.NDArray[np.float64]

_UNKNOWN = -1
LATENCIES = ("ttft", "ttft_send", "sched_lag", "itl", "e2e", "drain", "stall")


class Table(Sequence[Timing]):
    """`size` rows, empty until put. Times are seconds of the client's clock; unknown counts are -1.

    `times`: float64, shape (size, 7): t_sched, t_send, t_hdr, t_first, t_last, t_end, t_over. `counts`: int32, shape
    (size, 6): status, prompt, cached and output tokens, tokens of the first chunk, coalesced. `events`: int32, shape
    (size, 8), in the order of the fields of `Events`. `failed`, `aborted`, `resent`: bool.
    """

    def __init__(self, size: int) -> None:
        self.times: Floats = np.full((size, 7), np.nan)
        self.counts: npt.NDArray[np.int32] = np.full((size, 6), _UNKNOWN, np.int32)
        self.events: npt.NDArray[np.int32] = np.zeros((size, 8), np.int32)
        self.failed: npt.NDArray[np.bool_] = np.zeros(size, np.bool_)
        self.aborted: npt.NDArray[np.bool_] = np.zeros(size, np.bool_)
        self.resent: npt.NDArray[np.bool_] = np.zeros(size, np.bool_)
        self.workers: list[str | None] = [None] * size
        self.decisions: list[str | None] = [None] * size
        self._names: dict[str, str] = {}
        self._sources: list[str] = ["none"] * size
        self._errors: dict[int, tuple[str, str]] = {}
        self._retry_after: dict[int, float] = {}
        self._stalls: Floats = np.full(size, np.nan)
        self._gaps = array("f")
        self._where: npt.NDArray[np.int64] = np.zeros((size, 2), np.int64)

    @classmethod
    def of(cls, timings: Sequence[Timing]) -> Table:
        """A table of finished requests in their order."""
        table = cls(len(timings))
        for index, timing in enumerate(timings):
            table.put(index, timing)
        return table

    def put(self, index: int, timing: Timing) -> None:
        """Writes a row; once each."""
        self.times[index] = (
            timing.t_sched, timing.t_send, timing.t_hdr, timing.t_first, timing.t_last, timing.t_end, timing.t_over,
        )  # fmt: skip
        self.counts[index] = (
            timing.status, _known(timing.prompt_tokens), _known(timing.cached_tokens), _known(timing.n_out),
            timing.n_first, timing.coalesced,
        )  # fmt: skip
        seen = timing.events
        self.events[index] = (
            seen.content, seen.role, seen.empty, seen.finish, seen.usage, seen.comment, seen.done, seen.frame,
        )  # fmt: skip
        self.aborted[index] = timing.aborted
        self.resent[index] = timing.retried
        if timing.worker is not None:
            self.workers[index] = self._names.setdefault(timing.worker, timing.worker)
        self.decisions[index] = timing.decision
        self._sources[index] = self._names.setdefault(timing.n_out_source, timing.n_out_source)
        if timing.error is not None:
            self.failed[index] = True
            kind = self._names.setdefault(timing.error, timing.error)
            self._errors[index] = (kind, self._names.setdefault(timing.detail, timing.detail))
        if timing.retry_after is not None:
            self._retry_after[index] = timing.retry_after
        if timing.gaps:
            self._where[index] = len(self._gaps), len(timing.gaps)
            self._gaps.extend(timing.gaps)
            self._stalls[index] = max(timing.gaps)

    def __len__(self) -> int:
        return len(self.workers)

    @overload
    def __getitem__(self, index: int) -> Timing: ...
    @overload
    def __getitem__(self, index: slice) -> list[Timing]: ...
    def __getitem__(self, index: int | slice) -> Timing | list[Timing]:
        if isinstance(index, slice):
            return [self._row(i) for i in range(*index.indices(len(self)))]
        return self._row(range(len(self))[index])

    def __iter__(self) -> Iterator[Timing]:
        return map(self._row, range(len(self)))

    def _row(self, index: int) -> Timing:
        sched, send, hdr, first, last, end, over = self.times[index].tolist()
        status, prompt, cached, n_out, n_first, coalesced = self.counts[index].tolist()
        error, detail = self._errors.get(index, (None, ""))
        start, length = self._where[index].tolist()
        return Timing(
            sched, send, hdr, first, last, end, status,
            worker=self.workers[index],
            decision=self.decisions[index],
            prompt_tokens=_or_none(prompt),
            cached_tokens=_or_none(cached),
            n_out=_or_none(n_out),
            n_out_source=self._sources[index],
            n_first=n_first,
            coalesced=coalesced,
            retried=bool(self.resent[index]),
            events=Events(*self.events[index].tolist()),
            gaps=self._gaps[start : start + length].tolist(),
            error=error,
            detail=detail,
            aborted=bool(self.aborted[index]),
            retry_after=self._retry_after.get(index),
            t_over=over,
        )  # fmt: skip

    @property
    def ok(self) -> npt.NDArray[np.bool_]:
        """As `Timing.ok`, shape (size,)."""
        return ~self.failed & ~np.isnan(self.times[:, 5])

    def errors(self) -> dict[str, int]:
        """Failures by kind."""
        found: dict[str, int] = {}
        for kind, _ in self._errors.values():
            found[kind] = found.get(kind, 0) + 1
        return found

    def sources(self) -> dict[str, int]:
        """Good answers by where their token count comes from."""
        found: dict[str, int] = {}
        for index in np.flatnonzero(self.ok & ~self.aborted).tolist():
            found[self._sources[index]] = found.get(self._sources[index], 0) + 1
        return found

    def latency(self, name: str) -> Floats:
        """One of LATENCIES for each row, in seconds: +inf if it failed, NaN where it does not exist."""
        sched, send, _, first, last, end, _ = self.times.T
        found: Floats
        if name == "sched_lag":
            found = send - sched
            return found
        if name == "ttft":
            found = first - sched
        elif name == "ttft_send":
            found = first - send
        else:
            found = np.where(self.aborted, np.nan, self._whole(name, sched, first, last, end))
        found = np.where(self.ok, found, np.inf)
        return found

    def _whole(self, name: str, sched: Floats, first: Floats, last: Floats, end: Floats) -> Floats:
        found = np.full(len(self), np.nan)
        if name == "e2e":
            found = last - sched
        elif name == "drain":
            found = end - last
        elif name == "stall":
            found = self._stalls
        elif name == "itl":
            rest = self.counts[:, 3] - self.counts[:, 4]
            np.divide(last - first, rest, out=found, where=rest > 0)
        else:
            raise ValueError(f"no latency {name!r}: one of {', '.join(LATENCIES)}")
        return found

    def gaps(self) -> npt.NDArray[np.float32]:
        """Seconds between content chunks of all whole answers, pooled."""
        pool = np.frombuffer(self._gaps, np.float32) if self._gaps else np.empty(0, np.float32)
        good = self.ok & ~self.aborted
        if good.all():
            return pool.copy()
        keep = np.zeros(len(pool) + 1, np.int32)
        starts, lengths = self._where[good & (self._where[:, 1] > 0)].T
        np.add.at(keep, starts, 1)
        np.add.at(keep, starts + lengths, -1)
        return pool[np.cumsum(keep[:-1]) > 0]


def _known(value: int | None) -> int:
    return _UNKNOWN if value is None else value


def _or_none(value: int) -> int | None:
    return None if value == _UNKNOWN else value
