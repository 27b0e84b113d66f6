"""Which stacks' checks apply, and whether LMCache's controller takes part in routing."""

from __future__ import annotations

from checks.model import Stack
from checks.sharing import kvaware
from checks.snapshot import Snapshot
from tests.checks.build import router, snapshot, worker

CONTROLLER = "LMCache INFO: Starting pull request handler on 0.0.0.0:9000 (a.py:1:b)"
OWN_HIT = "2026-08-01 10:00:00,000 INFO  Routing request to w-0 found by kvaware router"


def own(log: str) -> Snapshot:
    answers = {"/config": {"dispatch": {"mode": "kvaware"}}}
    return snapshot(router(answers=answers, log=log), worker(), stack=Stack.KVCTL)


def test_a_stack_stands_for_itself() -> None:
    assert snapshot(router(log=CONTROLLER), worker(), stack=Stack.HYPERPOD).stacks == {Stack.HYPERPOD}


def test_kvctl_alone_is_no_controllers_stack() -> None:
    assert own(OWN_HIT).stacks == {Stack.KVCTL}


def test_a_controller_that_logs_beside_kvctls_router_is_judged_too() -> None:
    assert own(CONTROLLER).stacks == {Stack.KVCTL, Stack.UNKNOWN}


def test_kvctls_mode_of_the_name_kvaware_asks_no_controller() -> None:
    assert not kvaware(own(OWN_HIT))


def test_kvaware_beside_a_controller_asks_it() -> None:
    assert kvaware(own(CONTROLLER))
