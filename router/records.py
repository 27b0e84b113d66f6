"""Decisions kept for later questions, and the shape in which they are shown.

The log holds the newest decisions up to a number and an estimate of their bytes; a decision keeps its candidates'
arrays, so 1,000 workers cost about 100 KB each. The record is built only when somebody asks for it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from router.model import Decision, WhyNot
from router.policies.kv import KvWeights
from router.reuse import potential_loads
from router.shadow import ShadowCounts
from router.truth import IndexTrust

_BYTES_PER_ROW = 118
_BYTES_PER_DECISION = 2500


class DecisionLog:
    """The newest decisions by id, bounded in number and bytes; the oldest go first."""

    def __init__(self, most: int = 10_000, limit_bytes: int = 64 << 20) -> None:
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

    def get(self, decision_id: str) -> Decision | None:
        """By decision id, or by the request id of its newest decision."""
        found = self._kept.get(decision_id)
        if found is not None:
            return found
        return next((kept for kept in reversed(self._kept.values()) if kept.request_id == decision_id), None)

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
