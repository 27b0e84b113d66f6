"""Twenty engines that are killed, hung, drained and started again, event frames that get lost, clients that leave:
no request fails that need not, and nothing is left behind.

Half a minute by default; KVCTL_CHAOS_SECONDS says how long (CI: 120).
"""

from __future__ import annotations

import os
import sys

import pytest

from bench.soak.faults import FaultSettings
from bench.soak.run import SoakReport, SoakSettings, soak, wrong_of
from bench.soak.traffic import TrafficSettings

SECONDS = float(os.environ.get("KVCTL_CHAOS_SECONDS", "20"))

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and stops processes"),
    pytest.mark.timeout(SECONDS + 200),
]


@pytest.fixture(scope="module")
def report() -> SoakReport:
    return soak(
        SoakSettings(
            seconds=SECONDS,
            traffic=TrafficSettings(rate=20, tokens=30, seed=int(SECONDS)),
            faults=FaultSettings(every=1.0, most=0.4, seed=int(SECONDS)),
            every=2.0,
        )
    )


def test_engines_were_killed_and_hung_and_came_back(report: SoakReport) -> None:
    assert report.deeds["kill"] and report.deeds["hang"] and report.deeds["restart"]


def test_all_kinds_of_requests_were_answered(report: SoakReport) -> None:
    for end in ("stream ok", "whole ok", "chat ok", "abort aborted", "bad ok", "plain ok"):
        assert report.ends.get(end), report.ends


def test_no_request_failed_that_had_not_begun_and_had_another_place(report: SoakReport) -> None:
    assert wrong_of(report) == 0, report.wrong


def test_the_router_met_no_internal_error(report: SoakReport) -> None:
    assert report.wrong == []


def test_no_load_booking_memory_or_descriptor_is_left(report: SoakReport) -> None:
    assert report.leaks == []
