"""A router whose engines tell nothing of their caches says so, and still keeps conversations together."""

from __future__ import annotations

from collections import Counter

from tests.torture.system import system, text


def test_without_kv_events_a_conversation_still_stays_together() -> None:
    with system(4, speedup=50, no_kv_events=True) as found:
        stayed = turns = 0
        for _ in range(6):
            history = text(200)
            homes: Counter[int] = Counter()
            for _turn in range(5):
                served = found.served()
                assert found.ask(history, max_tokens=1).status_code == 200
                homes[[late - early for early, late in zip(served, found.served(), strict=True)].index(1)] += 1
                history += " " + text(20)
            stayed += homes.most_common(1)[0][1]
            turns += 5
        assert stayed / turns >= 0.9


def test_without_kv_events_the_decision_says_so() -> None:
    with system(2, speedup=50, no_kv_events=True) as found:
        assert "no_kv_events" in found.decision(found.ask(text(100)))["degraded"]
