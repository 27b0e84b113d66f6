"""Preferred taints: how much they change the cost of each row. Pure."""

from __future__ import annotations

import numpy as np

from router.fleet.view import FleetView
from router.model import FloatArray, RouteRequest


def taint_factor(request: RouteRequest, view: FleetView) -> FloatArray:
    """exp(-tanh(sum of the weights of the preferred taints a worker has)) per row, in [0.368, 2.718].

    Source: Dynamo's cost (docs, how it decides).
    """
    preferred = request.hints.preferred_taints
    sums = [sum(weight for taint, weight in preferred if taint in taints) for taints in view.taints]
    factor: FloatArray = np.exp(-np.tanh(np.array(sums, np.float64)))
    return factor
