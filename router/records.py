"""Decisions kept for later questions, and the shape in which they are shown.

The log holds the newest decisions up to a number and an estimate of their bytes; a decision keeps its candidates'
arrays, so 1,000 workers cost about 100 KB each. The record is built only when somebody asks for it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice
from typing import Any

from router.model import Decision, RoutingError, WhyNot
from router.policies.kv import KvWeights
from router.reuse import potential_loads
from router.shadow import ShadowCounts
from router.truth import IndexTrust

_BYTES_PER_ROW = 118
_BYTES_PER_DECISION = 2500


@dataclass(slots=True)
class Refusal:
    """A request that was not placed: `error` says why, with the limit and its value where it was one, and whom it
    could have gone to."""

    id: str
    request_id: str
    mode: str
    model: str
    at: float
    error: RoutingError
    prompt_tokens: int = 0
    waited_s: float = 0.0


class DecisionLog:
    """The newest decisions by id, bounded in number and bytes; the oldest go first. Refusals are kept apart, so that a
    flood of them drives no decision out."""

    def __init__(self, most: int = 10_000, limit_bytes: int = 64 << 20, most_refusals: int = 1000) -> None:
        self.most_refusals = most_refusals
        self._refused: OrderedDict[str, Refusal] = OrderedDict()
        self.most = most
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self._kept: OrderedDict[str, Decision] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, decision: Decision) -> None:
        self._kept[decision.id] = decision
        self.bytes += _size(decision)
        while len(self._kept) > self.most or (self.bytes > self.limit_bytes and len(self._kept) > 1):
            _id, old = self._kept.popitem(last=False)
            self.bytes -= _size(old)

    def refuse(self, refusal: Refusal) -> None:
        error = refusal.error
        error.__traceback__ = error.__context__ = error.__cause__ = error.request = None  # these hold the whole request
        self._refused[refusal.id] = refusal
        rows = 0 if error.candidates is None else len(error.candidates)
        most = min(self.most_refusals, max(self.limit_bytes // 4 // (_BYTES_PER_DECISION + _BYTES_PER_ROW * rows), 1))
        while len(self._refused) > most:
            self._refused.popitem(last=False)

    def get(self, wanted: str) -> Decision | Refusal | None:
        """By decision id, or by request id: the newest decision, else the newest refusal."""
        found = self._kept.get(wanted) or self._refused.get(wanted)
        if found is not None:
            return found
        placed = next((kept for kept in reversed(self._kept.values()) if kept.request_id == wanted), None)
        if placed is not None:
            return placed
        return next((kept for kept in reversed(self._refused.values()) if kept.request_id == wanted), None)

    def refusals(self, count: int) -> list[Refusal]:
        """Newest first."""
        return list(islice(reversed(self._refused.values()), count))

    def newest(self, count: int) -> list[Decision]:
        """Newest first."""
        found: list[Decision] = []
        for decision in reversed(self._kept.values()):
            if len(found) >= count:
                break
            found.append(decision)
        return found


def _size(decision: Decision) -> int:
    return _BYTES_PER_DECISION + _BYTES_PER_ROW * len(decision.candidates)


def record(decision: Decision, weights: KvWeights) -> dict[str, Any]:
    """The decision as `/decisions/{id}` and `/explain` answer it; loads are potential ones."""
    rows = decision.candidates
    prefill, decode = potential_loads(rows, decision.prompt_tokens, weights)
    return {
        **summary(decision),
        "candidates": [
            {
                "worker": rows.workers[row],
                "dp_rank": rows.ranks[row],
                "eligible": bool(rows.eligible[row]),
                "why_not": None if rows.eligible[row] else WhyNot(int(rows.why_not[row])).name.lower(),
                "overlap": {
                    "device": int(rows.device[row]),
                    "host": int(rows.host[row]),
                    "disk": int(rows.disk[row]),
                    "shared": int(rows.shared[row]),
                },
                "load": {
                    "prefill_tokens": int(prefill[row]),
                    "decode_blocks": int(decode[row]),
                    "active_requests": int(rows.active_requests[row]),
                    "own_prefill_tokens": int(rows.own_prefill_tokens[row]),
                },
                "index_confidence": 1.0 if rows.trust is None else float(rows.trust[row]),
                "terms": [
                    {"name": term.name, "value": float(term.values[row]), "unit": term.unit} for term in decision.terms
                ],
                "cost": float(decision.cost[row]),
            }
            for row in range(len(rows))
        ],
        "predicted_cached_tokens": decision.predicted_cached_tokens,
        "engine_cached_tokens": decision.engine_cached_tokens,
    }


def summary(decision: Decision) -> dict[str, Any]:
    """The decision without its candidates."""
    return {
        "id": decision.id,
        "request_id": decision.request_id,
        "mode": decision.mode,
        "model": decision.model,
        "at": decision.at,
        "winner": {"worker": decision.worker, "dp_rank": decision.rank},
        "reason": str(decision.reason),
        "degraded": [str(flag) for flag in decision.degraded],
        "prompt_tokens": decision.prompt_tokens,
        "block_size": decision.block_size,
        "decide_us": decision.decide_us,
        "predicted_cached_tokens": decision.predicted_cached_tokens,
        "engine_cached_tokens": decision.engine_cached_tokens,
        "waited_ms": round(decision.waited_s * 1e3, 3),
        "migration": _migration(decision),
    }


def _migration(decision: Decision) -> dict[str, Any] | None:
    """Where the stream came from, and where it went on, if it broke."""
    came, went_on = decision.migration, decision.went_on or None
    if came is None and went_on is None:
        return None
    found: dict[str, Any] = {"went_on": went_on}
    if came is None:
        return found
    return {"from": came.worker, "decision": came.decision, "cause": came.cause, "carried_tokens": came.tokens} | found


def refusal_summary(refusal: Refusal) -> dict[str, Any]:
    """A refusal as `/decisions` lists it."""
    error = refusal.error
    return {
        "id": refusal.id,
        "request_id": refusal.request_id,
        "mode": refusal.mode,
        "model": refusal.model,
        "at": refusal.at,
        "winner": None,
        "reason": "refused",
        "refused": {"status": error.status, "code": error.code, "message": str(error), "param": error.param}
        | dict(error.extra or {}),
        "prompt_tokens": refusal.prompt_tokens,
        "waited_ms": round(refusal.waited_s * 1e3, 3),
    }


def refusal_record(refusal: Refusal) -> dict[str, Any]:
    """The same with everybody it could have gone to, and the rule that removed each."""
    rows = refusal.error.candidates
    candidates = [] if rows is None else range(len(rows))
    return {
        **refusal_summary(refusal),
        "candidates": [
            {
                "worker": rows.workers[row],
                "dp_rank": rows.ranks[row],
                "eligible": False,
                "why_not": WhyNot(int(rows.why_not[row])).name.lower(),
                "load": {
                    "prefill_tokens": int(rows.prefill_tokens[row]),
                    "decode_blocks": int(rows.decode_blocks[row]),
                    "active_requests": int(rows.active_requests[row]),
                },
            }
            for row in candidates
            if rows is not None
        ],
    }


def shown_shadow(counts: ShadowCounts) -> dict[str, Any]:
    """A shadow's counts as `GET /shadow` answers them: totals, and means a decision."""
    decisions = max(counts.decisions, 1)
    return {
        "decisions": counts.decisions,
        "failed": counts.failed,
        "agreed": counts.agreed,
        "agreement": counts.agreed / decisions,
        "mean_cost_difference_blocks": counts.cost_difference / decisions,
        "mean_cached_tokens_difference": counts.cached_difference / decisions,
        "chosen": dict(sorted(counts.chosen.items())),
    }


def shown_trust(trust: IndexTrust) -> dict[str, Any]:
    """How far a worker's index is believed, as `GET /workers` answers it."""
    return {
        "confidence": round(trust.confidence, 4),
        "distrusted": trust.distrusted,
        "answers": trust.answers,
        "shortfalls": trust.shortfalls,
        "resyncs": trust.resyncs,
    }
