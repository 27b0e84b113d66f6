"""Waits of the probe take no time here: what is waited for has happened, or is scripted by number of looks."""

from __future__ import annotations

import ssl
import time

import pytest

from checks.sources.deadline import Deadline

_NO_TLS_HERE = ssl.create_default_context()


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deadline, "sleep", lambda self, seconds: time.sleep(0.001))
    monkeypatch.setattr(ssl, "create_default_context", lambda *_, **__: _NO_TLS_HERE)
