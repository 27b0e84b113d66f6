"""Waits of the probe take no time here: what is waited for has happened, or is scripted by number of looks."""

from __future__ import annotations

import time

import pytest

from checks.sources.deadline import Deadline


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deadline, "sleep", lambda self, seconds: time.sleep(0.001))
