"""Keys of cached blocks or chunks in least-recently-used order: what a tier holds. Pure; some 100 ns a key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class KeyStore:
    """At most `capacity` keys."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._keys: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def prefix(self, keys: Sequence[int]) -> int:
        """How many of the first `keys` are here, up to the first that is not; those count as used."""
        found = 0
        for key in keys:
            if key not in self._keys:
                break
            self._keys.move_to_end(key)
            found += 1
        return found

    def add(self, key: int) -> bool:
        """Keep a key; True if another one had to go for it."""
        if key in self._keys:
            self._keys.move_to_end(key)
            return False
        full = len(self._keys) >= self.capacity
        if full:
            self._keys.popitem(last=False)
        self._keys[key] = None
        return full
