"""What a decision had to do without, as far as its rows tell. Pure."""

from __future__ import annotations

from router.fleet.view import FleetView
from router.model import Candidates, Degraded, Policy, RouteRequest


def missing(request: RouteRequest, policy: Policy, candidates: Candidates, view: FleetView) -> tuple[Degraded, ...]:
    """What a policy that looks at blocks had to do without; nothing for the others."""
    if "blocks" not in policy.needs:
        return ()
    if view.whole and candidates.trust is None:
        return request.degraded
    found = list(request.degraded)
    rows = candidates.eligible
    if candidates.trust is not None and (candidates.trust[rows] < 1.0).any():
        found.append(Degraded.INDEX_DISTRUSTED)
    if (view.no_events[rows] > 0).any():
        found.append(Degraded.NO_KV_EVENTS)
    if (view.lost_events[rows] > 0).any():
        found.append(Degraded.KV_EVENTS_LOST)
    if (view.block_size[rows] == 0).any():
        found.append(Degraded.BLOCK_SIZE_UNKNOWN)
    if (view.differs[rows] > 0).any():
        found.append(Degraded.BLOCK_SIZE_DIFFERS)
    return tuple(found)
