"""Small replays, and the published trace where it is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

TRACE = Path(__file__).parents[4] / "shared/data/traces/mooncake_conversation.jsonl"


@pytest.fixture
def conversation() -> Path:
    if not TRACE.exists():
        pytest.skip("the published conversation trace is not beside the project")
    return TRACE
