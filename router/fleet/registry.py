"""The registry of workers: who is registered, which slots they own, and the current `FleetView`.

No I/O. `changed()` must be called after a worker's fields were written; the next `view` is then made anew. Slots of
a removed worker are given out again only after `free_slots`, which the caller calls once nothing refers to them.
"""

from __future__ import annotations

import heapq
import logging

from router.fleet.view import FleetView
from router.fleet.worker import Worker, endpoint_of
from router.model import WorkerSpec

log = logging.getLogger("kvctl.fleet")

MAX_ROWS = 8192


class FleetFull(ValueError):
    """More (worker, rank) rows than the index is built for."""


class Fleet:
    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self._free: list[int] = []
        self._next_slot = 0
        self._view: FleetView | None = None

    @property
    def view(self) -> FleetView:
        if self._view is None:
            self._view = FleetView(tuple(self.workers.values()))
        return self._view

    @property
    def slot_count(self) -> int:
        """One more than the highest slot ever given out."""
        return self._next_slot

    def changed(self) -> None:
        self._view = None

    def circuits_changed(self) -> None:
        """Requests are let through to a worker, or no longer: who may serve is asked anew, all else stays."""
        if self._view is not None:
            self._view.forget_rules()

    def add(self, spec: WorkerSpec) -> Worker:
        """Registers a worker; its id must be new."""
        if spec.id in self.workers:
            raise ValueError(f"a worker with the id '{spec.id}' is registered already")
        ranks = spec.ranks or 1
        if len(self._free) + MAX_ROWS - self._next_slot < ranks:
            raise FleetFull(f"no room for '{spec.id}': the fleet holds {MAX_ROWS} (worker, rank) pairs at most")
        slots = tuple(self._take_slot() for _ in range(ranks))
        worker = Worker(spec, slots, endpoint_of(spec.url))
        if spec.model:
            worker.models = (spec.model,)
        if spec.block_size:
            worker.block_size, worker.block_size_from = spec.block_size, "the worker's spec"
        self.workers[spec.id] = worker
        self.changed()
        log.info("Worker registered: %s", spec.id)
        return worker

    def remove(self, worker_id: str) -> Worker | None:
        worker = self.workers.pop(worker_id, None)
        if worker is not None:
            worker.removed = True
            self.changed()
            log.info("Worker removed: %s", worker_id)
        return worker

    def free_slots(self, slots: tuple[int, ...]) -> None:
        for slot in slots:
            heapq.heappush(self._free, slot)

    def check_block_sizes(self) -> None:
        """Names each worker whose block size differs from that of most workers of its model."""
        for model in {model for worker in self.workers.values() for model in worker.models}:
            sizes: dict[int, list[Worker]] = {}
            for worker in self.workers.values():
                if model in worker.models and worker.block_size:
                    sizes.setdefault(worker.block_size, []).append(worker)
            if not sizes:
                continue
            usual = max(sizes, key=lambda size: (len(sizes[size]), -size))
            for size, workers in sizes.items():
                for worker in workers:
                    self._mark_block_size(worker, model, size, usual)
        self.changed()

    def _mark_block_size(self, worker: Worker, model: str, size: int, usual: int) -> None:
        if size == usual:
            worker.warnings.pop("block_size", None)
            return
        text = f"block size {size} differs from {usual}, which the other workers of '{model}' have"
        if worker.warnings.get("block_size") != text:
            log.warning(
                "Worker %s: %s. Its cache is matched in its own block size; start all workers of a model with the "
                "same --block-size",
                worker.id,
                text,
            )
        worker.warnings["block_size"] = text

    def _take_slot(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._next_slot += 1
        return self._next_slot - 1
