"""Prompts that never come again must not fill the router's memory."""

from __future__ import annotations

import pytest

from tests.torture.system import all_good, system, text

MIB = 1 << 20


@pytest.mark.parametrize("engines", [{}, {"no_kv_events": True}], ids=["with KV events", "without"])
def test_memory_stays_within_bounds_while_every_prompt_is_new(engines: dict[str, bool]) -> None:
    """About 1.2 million tokens that nobody asks for again. A tree that keeps all as objects needs far more."""
    with system(2, speedup=100, num_blocks=2000, **engines) as found:
        all_good(found.ask_all([text(1500) for _ in range(40)], at_once=8, max_tokens=1))
        start = found.resident_bytes()
        all_good(found.ask_all([text(1500) for _ in range(800)], at_once=8, max_tokens=1))
        assert found.resident_bytes() - start < 96 * MIB
