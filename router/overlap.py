"""What each tier adds to a prompt's cached prefix, one value a row: array arithmetic, no state.

A tier counts from where the nearer ones stop, so that no block is credited twice.
"""

from __future__ import annotations

import numpy as np

from router.fleet.view import FleetView
from router.model import Degraded, IntArray, RouteRequest
from router.prefix.index import Overlap
from router.shared.blocks import SharedBlocks, shared_model


def behind(device: IntArray, found: Overlap, slots: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Host, disk and external blocks behind `device`, which may reach further than the events of `found` say (what
    runs there counts as held before its event has come)."""
    end = found.device[slots]
    covered = np.maximum(device, end)
    tiers = []
    for tier in (found.host, found.disk, found.external):
        end = end + tier[slots]
        tiers.append(np.maximum(end - covered, 0))
        covered = np.maximum(covered, end)
    return tiers[0], tiers[1], tiers[2]


def shared_beyond(request: RouteRequest, view: FleetView, shared: SharedBlocks, held: IntArray) -> IntArray:
    """Blocks of the fleet's shared store behind the `held` ones of each row.

    What Redis said of this prompt counts; where it was not asked or did not answer, what events have told.
    """
    beyond: IntArray = view.zeros
    unsure = Degraded.SHARED_CACHE_UNREACHABLE in request.degraded
    for size, keys in request.keys.items():
        depth = request.shared.get(size, 0)
        if unsure or size not in request.shared:
            depth = max(depth, shared.depth(shared_model(view, request.model), keys))
        own = np.maximum(depth - held, 0)
        beyond = own if len(request.keys) == 1 else np.where(view.block_size == size, own, beyond)
    return beyond
