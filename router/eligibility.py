"""Who may serve a request, and the one rule that removed each worker that may not.

One predicate for every mode, for pins and for retries. The rules are asked in the order of `WhyNot`; the first that
bites is the row's reason. Vectorised over the rows; what does not depend on the request is computed once a fleet
version by `FleetView`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from router.model import (
    NO_HINTS,
    AllBusy,
    BadRequest,
    FloatArray,
    IntArray,
    NoWorkers,
    RouteRequest,
    RoutingError,
    WhyNot,
)

if TYPE_CHECKING:
    from router.fleet.view import FleetView


@dataclass(frozen=True, slots=True)
class BusyThresholds:
    """A worker past a threshold takes no request; None is no threshold. Strictly greater is busy.

    `decode_blocks` is a share (0..1) of the worker's capacity in blocks, `prefill_tokens` a number of tokens,
    `prefill_share` a multiple of the worker's `max_num_batched_tokens` (only where that is known).
    """

    decode_blocks: float | None = None
    prefill_tokens: int | None = None
    prefill_share: float | None = None

    @property
    def any(self) -> bool:
        return self.decode_blocks is not None or self.prefill_tokens is not None or self.prefill_share is not None


def why_not(
    request: RouteRequest,
    view: FleetView,
    thresholds: BusyThresholds,
    prefill_tokens: IntArray,
    decode_blocks: IntArray,
    base: IntArray | None = None,
) -> IntArray:
    """`WhyNot` of each row, shape (n,); 0 is eligible.

    A worker is busy only if each of its ranks is past a threshold. `base`: to start from other codes than the view's.
    """
    codes = view.base_why_not(request.model) if base is None else base
    hints = request.hints
    plain = request.pin_worker is None and request.pin_rank is None and not request.tried and hints is NO_HINTS
    if plain and not thresholds.any:
        return codes
    codes = codes.copy()
    allowed = hints.allowed
    if allowed is not None:
        codes[_rows(view, lambda row: view.workers[row] not in allowed)] = WhyNot.NOT_ALLOWED
    if hints.required_taints:
        _mark(codes, _rows(view, lambda row: not hints.required_taints <= view.taints[row]), WhyNot.TAINT)
    if request.pin_rank is not None:
        _mark(codes, view.rank_array != request.pin_rank, WhyNot.RANK_OUT_OF_RANGE)
    if thresholds.any:
        _mark(codes, _busy(view, thresholds, prefill_tokens, decode_blocks), WhyNot.BUSY)
    if request.tried:
        _mark(codes, _rows(view, lambda row: view.workers[row] in request.tried), WhyNot.ALREADY_TRIED)
    if request.pin_worker is not None:
        codes[_rows(view, lambda row: view.workers[row] != request.pin_worker)] = WhyNot.NOT_PINNED
    return codes


def last_resort(
    request: RouteRequest,
    view: FleetView,
    codes: IntArray,
    thresholds: BusyThresholds,
    loads: tuple[IntArray, IntArray],
) -> IntArray | None:
    """Where nobody is eligible, the codes with every circuit closed, if those let somebody in: a circuit breaker may
    steer a request, but never refuse it. None while somebody is only busy: that is worth waiting for.

    `loads`: prefill tokens and decode blocks of each row.
    """
    base = None if (codes == WhyNot.BUSY).any() else view.without_circuits(request.model)
    if base is None:
        return None
    again = why_not(request, view, thresholds, *loads, base=base)
    return again if (again == 0).any() else None


def slow_start(codes: IntArray, view: FleetView, active: IntArray, shares: FloatArray) -> IntArray:
    """The codes with SLOW_START where a new worker has its share of what the others have in flight, on average.

    `active`: requests in flight of each row; `shares` (0..1): one a row of `view.warming`. One request at a time is
    always allowed, and the rule is void while every eligible row is new.
    """
    full = codes == 0
    full[list(view.warming)] = False
    if not full.any():
        return codes
    codes = codes.copy()
    mean = float(active[full].mean())
    for row, share in zip(view.warming, shares, strict=True):
        if codes[row] == 0 and active[row] >= max(1.0, share * mean):
            codes[row] = WhyNot.SLOW_START
    return codes


def _rows(view: FleetView, bites: Callable[[int], bool]) -> np.ndarray:
    """Boolean array (n,): the rows for which a rule that cannot be vectorised bites."""
    return np.fromiter((bites(row) for row in range(len(view.workers))), np.bool_, len(view.workers))


def _mark(codes: IntArray, bites: np.ndarray, rule: WhyNot) -> None:
    codes[bites & (codes == 0)] = rule


def _busy(view: FleetView, thresholds: BusyThresholds, prefill_tokens: IntArray, decode_blocks: IntArray) -> np.ndarray:
    busy = np.zeros(len(view.workers), np.bool_)
    if thresholds.prefill_tokens is not None:
        busy |= prefill_tokens > thresholds.prefill_tokens
    if thresholds.prefill_share is not None:
        known = view.batch_tokens > 0
        busy |= known & (prefill_tokens > thresholds.prefill_share * view.batch_tokens)
    if thresholds.decode_blocks is not None:
        known = view.capacity_blocks > 0
        busy |= known & (decode_blocks > thresholds.decode_blocks * view.capacity_blocks)
    idle_ranks = np.bincount(view.worker_number, weights=~busy, minlength=view.worker_count)
    all_busy: np.ndarray = busy & (idle_ranks[view.worker_number] == 0)
    return all_busy


def _limits(
    view: FleetView,
    codes: IntArray,
    thresholds: BusyThresholds,
    prefill_tokens: IntArray,
    decode_blocks: IntArray,
) -> str:
    """Each threshold that is set, and how far the busy rows are past it."""
    busy = codes == WhyNot.BUSY
    parts = []
    if thresholds.prefill_tokens is not None and busy.any():
        now = prefill_tokens[busy]
        parts.append(f"prefill_tokens: limit {thresholds.prefill_tokens}, now {_span(now.min(), now.max())}")
    batched = busy & (view.batch_tokens > 0)
    if thresholds.prefill_share is not None and batched.any():
        shares = np.round(prefill_tokens[batched] / view.batch_tokens[batched], 4)
        parts.append(f"prefill_share: limit {thresholds.prefill_share:g}, now {_span(shares.min(), shares.max())}")
    known = busy & (view.capacity_blocks > 0)
    if thresholds.decode_blocks is not None and known.any():
        shares = np.round(decode_blocks[known] / view.capacity_blocks[known], 4)
        parts.append(f"decode_blocks: limit {thresholds.decode_blocks:g}, now {_span(shares.min(), shares.max())}")
    return "; ".join(parts)


def _span(least: float, most: float) -> str:
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


def refusal(
    request: RouteRequest,
    view: FleetView,
    codes: IntArray,
    thresholds: BusyThresholds,
    prefill_tokens: IntArray,
    decode_blocks: IntArray,
) -> RoutingError:
    """The error to raise when no row is eligible: it says which rule removed whom, and where that is a limit, its
    value and the current one.

    Priority: a pin that names nobody, then busy, then unavailable.
    """
    removed: dict[str, str] = {}
    for worker, code in zip(view.workers, codes.tolist(), strict=True):
        removed.setdefault(worker, WhyNot(code).name.lower())
    if not removed:
        return NoWorkers(
            "no workers are registered: start the router with --worker URL, --workers-file FILE or --sim N, or POST "
            "/workers on the admin port"
        )
    limits = _limits(view, codes, thresholds, prefill_tokens, decode_blocks)
    if request.pin_worker is not None:
        if request.pin_worker not in removed:
            return BadRequest(
                f"{request.pin_param} names '{request.pin_worker[:200]}', which is not registered; the workers are "
                f"{', '.join(sorted(removed)[:32])}",
                param=request.pin_param,
            )
        rule = removed[request.pin_worker]
        if rule == "rank_out_of_range":
            return BadRequest(
                f"worker '{request.pin_worker}' has no dp rank {request.pin_rank}", param=request.rank_param
            )
        if rule == "not_allowed":
            return BadRequest(
                f"the pinned worker '{request.pin_worker}' is not among the workers that x-kvctl-workers allows",
                param=request.pin_param,
            )
        text = f"the pinned worker '{request.pin_worker}' cannot serve the request: {rule}"
        return AllBusy(f"{text} ({limits})") if rule == "busy" else NoWorkers(text)
    listing = ", ".join(f"{worker}: {rule}" for worker, rule in sorted(removed.items())[:32])
    if "busy" in removed.values():
        return AllBusy(f"all workers that could serve the request are busy ({listing}); {limits}")
    if all(rule == "rank_out_of_range" for rule in removed.values()):
        return BadRequest(f"no worker has dp rank {request.pin_rank}", param=request.rank_param)
    return NoWorkers(f"no worker can serve the request ({listing})")
