"""Sessions of a file, dealt over the slices of an experiment. Pure."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from bench.workload.model import WorkloadError, deal_sessions


def dealt(names: Sequence[str], slices: int, rng: random.Random) -> dict[str, int]:
    """The slice of each session. `names`: the session of each request.

    Raises:
        WorkloadError: fewer sessions than slices.
    """
    sizes = Counter(names)
    if len(sizes) < slices:
        raise WorkloadError(
            f"the trace holds {len(sizes)} sessions, too few for {slices} blocks: give fewer --blocks, more --requests "
            "or --whole-trace"
        )
    keys = list(sizes)
    order = list(range(len(keys)))
    rng.shuffle(order)
    return dict(zip(keys, deal_sessions([sizes[key] for key in keys], slices, order), strict=True))
