"""Compile or load every kernel before the first request: none may compile while one waits."""

from __future__ import annotations


def warm() -> None:
    """Import the modules that hold kernels; they have explicit signatures, so importing compiles or loads them."""
    import numpy as np

    from router.prefix.active import ActiveBlocks
    from router.prefix.index import PrefixIndex
    from router.prefix.predict import Predictions

    keys = np.arange(1, 5, dtype=np.uint64)
    index = PrefixIndex(seed=1, limit_bytes=1 << 20)
    index.store(0, 0, None, keys, np.arange(64, dtype=np.uint32), 16)
    index.match(keys)
    index.remove(0, 0, keys)
    index.clear(0)
    active = ActiveBlocks()
    active.acquire(0, keys)
    active.shared_depth(keys)
    active.release(0, keys)
    predictions = Predictions(1.0)
    predictions.add(0, keys, 0.0)
    predictions.match(keys, 0.5)
    predictions.drop(0)


if __name__ == "__main__":
    warm()
