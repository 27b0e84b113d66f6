"""The fleet as arrays, one row a (worker, dp rank); made anew whenever a worker comes, goes or changes.

A view is immutable: decisions keep references to its tuples. Making one costs O(rows), a request costs nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from router.fleet.worker import Circuit, Health, KvState, Worker
from router.model import BoolArray, IntArray, WhyNot

_MOST_MODELS = 256


class FleetView:
    """Arrays of equal length n, int64: `slots`, `rank_array`, `worker_number`, `capacity_blocks`, `block_size`,
    `device_class`, `batch_tokens` (0 where unknown); tuples `workers` (ids), `ranks` and `taints`."""

    def __init__(self, members: Sequence[Worker]) -> None:
        rows = [(worker, rank) for worker in members for rank in range(worker.ranks)]
        self.members = tuple(worker for worker, _rank in rows)
        self.workers = tuple(worker.id for worker in self.members)
        self.ranks = tuple(rank for _worker, rank in rows)
        self.worker_count = len(members)
        numbers = {worker.id: number for number, worker in enumerate(members)}
        self.worker_number: IntArray = _ints(numbers[name] for name in self.workers)
        self.rank_array: IntArray = _ints(self.ranks)
        self.slots: IntArray = _ints(worker.slots[rank] for worker, rank in rows)
        self.capacity_blocks: IntArray = _ints(worker.capacity_blocks for worker in self.members)
        self.block_size: IntArray = _ints(worker.block_size for worker in self.members)
        self.device_class: IntArray = _ints(worker.device_class for worker in self.members)
        self.batch_tokens: IntArray = _ints(worker.spec.batch_tokens or 0 for worker in self.members)
        self.taints = tuple(frozenset(worker.spec.taints) for worker in self.members)
        self.models = tuple(dict.fromkeys(model for worker in members for model in worker.models))
        self.zeros: IntArray = _ints(0 for _row in rows)
        self.scoring_block_size = np.maximum(self.block_size, 1)
        self.block_sizes = tuple(sorted({worker.block_size for worker in members if worker.block_size}))
        self.no_events: IntArray = _ints(not worker.tells for worker in self.members)
        self.blind = bool(self.no_events.any())
        """Some row is routed in approximate mode."""
        self.lost_events: IntArray = _ints(worker.kv is KvState.LOST for worker in self.members)
        self.differs: IntArray = _ints("block_size" in worker.warnings for worker in self.members)
        self.whole = bool(
            len(rows) and self.block_size.all() and not (self.no_events + self.lost_events + self.differs).any()
        )
        """Every row has live events and the block size of its model: nothing here can degrade a decision."""
        self.warming = tuple(row for row, worker in enumerate(self.members) if worker.warm_since is not None)
        """Rows of workers in their slow start."""
        self.adapters = frozenset(name for worker in members for name in worker.adapters)
        self._unique = tuple(members)
        self._base: dict[str, IntArray] = {}
        self._eligible: dict[int, tuple[IntArray, BoolArray]] = {}
        self._contexts: dict[str, int | None] = {}

    def base_why_not(self, model: str) -> IntArray:
        """The rules that depend on the model alone; `model` "" is any. Shared: callers copy before they write."""
        codes = self._base.get(model)
        if codes is None:
            codes = _ints(self._rule(worker, model) for worker in self.members)
            if len(self._base) < _MOST_MODELS:
                self._base[model] = codes
                eligible = codes == 0
                eligible.flags.writeable = False
                self._eligible[id(codes)] = codes, eligible
        return codes

    def eligible(self, codes: IntArray) -> BoolArray:
        """`codes == 0`, not to be written to; looked up for the arrays of `base_why_not`, which are kept here."""
        known = self._eligible.get(id(codes))
        if known is not None and known[0] is codes:
            return known[1]
        eligible: BoolArray = codes == 0
        return eligible

    def forget_rules(self) -> None:
        """A circuit has opened or closed since."""
        self._base.clear()

    def without_circuits(self, model: str) -> IntArray | None:
        """The same as if every circuit were closed; None if there is no difference."""
        codes = self.base_why_not(model)
        if not (codes == WhyNot.CIRCUIT_OPEN).any():
            return None
        return _ints(code if code != WhyNot.CIRCUIT_OPEN else WhyNot.OK for code in codes.tolist())

    def longest_context(self, model: str) -> int | None:
        """Tokens that the reachable workers of `model` take at most, prompt and answer; None if one did not tell."""
        if model not in self._contexts:
            lengths = [
                worker.max_model_len for worker in self._unique if worker.health is Health.UP and worker.serves(model)
            ]
            known = [length for length in lengths if length is not None]
            if len(self._contexts) >= _MOST_MODELS:
                self._contexts.clear()
            self._contexts[model] = max(known) if known and len(known) == len(lengths) else None
        return self._contexts[model]

    @staticmethod
    def _rule(worker: Worker, model: str) -> WhyNot:
        if not worker.serves(model):
            return WhyNot.WRONG_MODEL
        if worker.health is not Health.UP:
            return WhyNot.UNHEALTHY
        if worker.draining:
            return WhyNot.DRAINING
        if worker.circuit in (Circuit.OPEN, Circuit.PROBING):
            return WhyNot.CIRCUIT_OPEN
        return WhyNot.OK


def _ints(values) -> IntArray:  # type: ignore[no-untyped-def]
    array = np.array([int(value) for value in values], np.int64)
    array.flags.writeable = False
    return array
