"""device-aware-weighted: CPU workers get their share of a mixed fleet, then the least loaded of the class. O(n).

    allowed_cpu = (in flight on the others * CPU workers) // (ratio * other workers)
    the class is CPU if fewer than allowed_cpu are in flight there, else the others; an empty class is never chosen

Source: the rule of Dynamo's device-aware-weighted mode. A worker of unknown device counts as no CPU; an idle fleet
starts on the others.
"""

from __future__ import annotations

import random

import numpy as np

from router.model import Candidates, Decision, DeviceClass, Need, Reason, RouteRequest
from router.policies.choice import by_active_requests, eligible_rows, lowest


class DeviceAwareWeighted:
    name = "device-aware-weighted"
    needs = frozenset({Need.LOAD})

    def __init__(self, ratio: int = 8) -> None:
        self.ratio = ratio

    def decide(self, request: RouteRequest, candidates: Candidates, rng: random.Random) -> Decision:
        rows = eligible_rows(candidates.eligible)
        on_cpu = candidates.device_class[rows] == DeviceClass.CPU
        winner, _tied = lowest(candidates.active_requests, self._class(candidates, rows, on_cpu), rng)
        return by_active_requests(self.name, winner, Reason.LEAST_LOADED, candidates)

    def _class(self, candidates: Candidates, rows: np.ndarray, on_cpu: np.ndarray) -> np.ndarray:
        cpus, others = rows[on_cpu], rows[~on_cpu]
        if not len(cpus) or not len(others):
            return rows
        active = candidates.active_requests
        allowed = int(active[others].sum()) * len(cpus) // (self.ratio * len(others))
        chosen: np.ndarray = cpus if int(active[cpus].sum()) < allowed else others
        return chosen
