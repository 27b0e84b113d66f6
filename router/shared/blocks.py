"""What the engines' KV events tell of the store that all of them share: EXTERNAL blocks, by model. Pure.

One worker tells, all may load: so these blocks are kept beside the index of the workers, in one place a model. A store
gives blocks up without any engine knowing, so this is what was there once; a Redis that answers (`lookup.py`) is
believed before it. Cost: as the index (`router.prefix.index`), one walk a request.
"""

from __future__ import annotations

from router.events.cache_events import BlockRemoved, BlockStored, Event, Tier
from router.fleet.view import FleetView
from router.fleet.worker import Worker
from router.prefix.hashing import Keys
from router.prefix.index import PrefixIndex

MOST_MODELS = 64


class SharedBlocks:
    """
    Args:
        seed: of the block keys; the same as for the requests' keys.
        limit_bytes: memory of the index; least recently used blocks go first.
    """

    def __init__(self, seed: int, limit_bytes: int) -> None:
        self.index = PrefixIndex(seed, limit_bytes, slots=1, count_copies=False)
        self.not_kept = 0
        """Events of models past the first 64."""
        self._slots: dict[str, int] = {}

    @staticmethod
    def tells(event: Event) -> bool:
        """Whether an event is about the shared store."""
        return isinstance(event, (BlockStored, BlockRemoved)) and event.tier is Tier.EXTERNAL

    def apply(self, worker: Worker, event: Event) -> None:
        """A worker's event about the shared store.

        Raises:
            ValueError: the event contradicts itself.
        """
        slot = self._slot(base_model(worker))
        if isinstance(event, BlockStored):
            self.index.store(
                slot,
                Tier.DEVICE,
                event.parent,
                event.hashes,
                event.tokens,
                event.block_size,
                event.lora_name,
                event.extra_keys,
                event.cache_salt,
            )
        elif isinstance(event, BlockRemoved):
            self.index.remove(slot, Tier.DEVICE, event.hashes)

    def depth(self, model: str, keys: Keys) -> int:
        """Blocks of a prompt, from its first on, that the store of a model has been told to hold."""
        slot = self._slots.get(model)
        return 0 if slot is None else int(self.index.match(keys).device[slot])

    def clear(self) -> None:
        for slot in self._slots.values():
            self.index.clear(slot)

    def _slot(self, model: str) -> int:
        slot = self._slots.get(model)
        if slot is None:
            if len(self._slots) >= MOST_MODELS:
                self.not_kept += 1
                return self._slots[next(iter(self._slots))]
            slot = self._slots[model] = len(self._slots)
            self.index.ensure_slots(slot + 1)
        return slot


def base_model(worker: Worker) -> str:
    """The model that a worker's adapters are of: the first that is no adapter; "" where it told none."""
    return next((model for model in worker.models if model not in worker.adapters), "")


def shared_model(view: FleetView, model: str) -> str:
    """Whose blocks a request for `model` shares: the base of an adapter, the fleet's only model where none is named."""
    if model in view.adapters:
        return next((base_model(worker) for worker in view.members if model in worker.adapters), model)
    if model:
        return model
    bases = {base_model(worker) for worker in view.members}
    return bases.pop() if len(bases) == 1 else ""
