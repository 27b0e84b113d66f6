"""KV120, KV121, KV123, KV124."""

from __future__ import annotations

from typing import Any

import pytest

from checks.model import Reason, Stack, Status
from checks.snapshot import Expectations, Member, Resources, Snapshot
from tests.checks.build import findings, only, router, snapshot, statuses, worker

KVAWARE = ("--routing-logic", "kvaware")


def resource(name: str = "m", *, strategy: str = "", enabled: bool = True, **more: Any) -> dict[str, Any]:
    routing: dict[str, Any] = {"enabled": enabled} | ({"routingStrategy": strategy} if strategy else {})
    metadata = {"name": name, "namespace": "prod", "generation": more.pop("generation", 1)}
    status = {"observedGeneration": more.pop("observed", 1)}
    spec = {"intelligentRoutingSpec": routing, **more}
    return {"kind": "InferenceEndpointConfig", "metadata": metadata, "spec": spec, "status": status}


def hyperpod(*members: Member, resources: tuple[dict[str, Any], ...] = (), **more: Any) -> Snapshot:
    listed = Resources({"inferenceendpointconfigs": resources})
    return snapshot(*members, stack=Stack.HYPERPOD, resources=listed, **more)


def logic(name: str) -> str:
    return f"[2026-08-01 10:00:01,120] INFO: Initializing {name} routing logic (routing_logic.py:1:vllm_router.routers)"


# KV120


def test_the_expected_strategy_passes() -> None:
    of = snapshot(router(args=KVAWARE), expectations=Expectations("kv-aware"))
    assert only("KV120", of).status is Status.PASS


def test_another_strategy_than_the_expected_one_fails() -> None:
    of = snapshot(router(args=("--routing-logic", "session")), expectations=Expectations("kvaware"))
    assert only("KV120", of).status is Status.FAIL


def test_an_expected_strategy_without_any_routing_fails() -> None:
    of = hyperpod(worker(), resources=(resource(enabled=False),), expectations=Expectations("prefixaware"))
    assert only("KV120", of).status is Status.FAIL


def test_without_an_expectation_the_strategy_is_named() -> None:
    found = only("KV120", hyperpod(resources=(resource(),)))
    assert (found.status, found.message) == (Status.PASS, "the strategy is prefixaware")


def test_routing_that_is_off_without_an_expectation_is_disabled() -> None:
    assert only("KV120", hyperpod(resources=(resource(enabled=False),))).reason is Reason.DISABLED


# KV121


def test_arguments_and_log_that_agree_pass() -> None:
    assert only("KV121", snapshot(router(args=KVAWARE, log=logic("kvaware")))).status is Status.PASS


@pytest.mark.parametrize(
    ("argument", "printed"),
    [("prefixaware", "prefix-aware"), ("session", "session-based"), ("roundrobin", "round-robin")],
)
def test_spellings_of_one_strategy_agree(argument: str, printed: str) -> None:
    assert only("KV121", snapshot(router(args=("--routing-logic", argument), log=logic(printed)))).status is Status.PASS


def test_a_router_that_runs_another_strategy_than_its_arguments_fails() -> None:
    assert only("KV121", snapshot(router(args=KVAWARE, log=logic("session-based")))).status is Status.FAIL


def test_a_dynamic_configuration_may_explain_it() -> None:
    args = (*KVAWARE, "--dynamic-config-yaml", "/c.yaml")
    assert only("KV121", snapshot(router(args=args, log=logic("session-based")))).status is Status.WARN


def test_a_router_that_runs_another_strategy_than_the_resource_fails() -> None:
    of = hyperpod(router(args=("--routing-logic", "session")), resources=(resource(strategy="kvaware"),))
    assert statuses("KV121", of)["router-0"] is Status.FAIL


def test_the_resources_default_is_prefixaware() -> None:
    of = hyperpod(router(args=("--routing-logic", "prefixaware")), resources=(resource(),))
    assert only("KV121", of).status is Status.PASS


def test_a_router_is_compared_with_the_resource_that_its_name_holds() -> None:
    resources = (resource("llama", strategy="kvaware"), resource("qwen", strategy="session"))
    routers = (
        router("llama-router-0", args=("--routing-logic", "session")),
        router("qwen-router-0", args=("--routing-logic", "session")),
    )
    assert statuses("KV121", hyperpod(*routers, resources=resources)) == {
        "llama-router-0": Status.FAIL,
        "qwen-router-0": Status.PASS,
    }


def test_a_resource_with_an_unknown_strategy_fails() -> None:
    of = hyperpod(router(args=KVAWARE), resources=(resource(strategy="fastest"),))
    assert statuses("KV121", of)["m"] is Status.FAIL


def test_an_edit_that_the_operator_has_not_processed_warns() -> None:
    of = hyperpod(router(args=KVAWARE), resources=(resource(strategy="kvaware", generation=4, observed=3),))
    assert statuses("KV121", of) == {"m": Status.WARN, "router-0": Status.PASS}


def test_a_processed_edit_passes() -> None:
    of = hyperpod(router(args=KVAWARE), resources=(resource(strategy="kvaware", generation=4, observed=4),))
    assert statuses("KV121", of) == {"router-0": Status.PASS}


def test_what_kvctls_router_answers_is_compared_with_its_arguments() -> None:
    answers = {"/config": {"dispatch": {"mode": "round_robin"}}}
    same = router(args=("--router-mode", "round-robin"), answers=answers)
    other = router(args=("--router-mode", "kv"), answers=answers)
    assert only("KV121", snapshot(router(answers=answers), stack=Stack.KVCTL)).status is Status.PASS
    assert only("KV121", snapshot(same, stack=Stack.KVCTL)).status is Status.PASS
    assert only("KV121", snapshot(other, stack=Stack.KVCTL)).status is Status.FAIL


def test_a_router_that_tells_no_strategy_is_not_judged() -> None:
    assert only("KV121", snapshot(router())).reason is Reason.NO_DATA


def test_without_a_router_the_strategy_is_not_judged() -> None:
    assert only("KV121", snapshot(worker())).reason is Reason.NO_DATA


# KV123


@pytest.mark.parametrize(
    "args",
    [
        ("--service-discovery", "k8s"),
        ("--service-discovery", "k8s", "--k8s-service-discovery-type", "pod-ip"),
        ("--service-discovery", "static", "--static-backends", "http://10.0.0.1:8000,http://10.0.0.2:8000"),
    ],
)
def test_workers_found_by_ip_pass(args: tuple[str, ...]) -> None:
    assert only("KV123", snapshot(router(args=(*KVAWARE, *args)))).status is Status.PASS


@pytest.mark.parametrize(
    "args",
    [
        ("--service-discovery", "k8s", "--k8s-service-discovery-type", "service-name"),
        ("--service-discovery=static", "--static-backends=http://10.0.0.1:8000,http://w-1.prod.svc:8000"),
        ("--service-discovery", "static", "--static-backends", "http://[fd00::1]:8000"),
    ],
)
def test_workers_found_by_name_or_ipv6_fail(args: tuple[str, ...]) -> None:
    assert only("KV123", snapshot(router(args=(*KVAWARE, *args)))).status is Status.FAIL


def test_a_router_whose_arguments_are_not_known_is_not_judged() -> None:
    of = hyperpod(router(), resources=(resource(strategy="kvaware"),))
    assert only("KV123", of).reason is Reason.NO_DATA


NEED_KVAWARE = ("KV123", "KV124", "KV125", "KV126")


@pytest.mark.parametrize("check", NEED_KVAWARE)
def test_other_strategies_do_not_need_it(check: str) -> None:
    of = snapshot(router(args=("--routing-logic", "session")), worker())
    assert only(check, of).reason is Reason.NOT_APPLICABLE


@pytest.mark.parametrize("check", [*NEED_KVAWARE, "KV122"])
def test_kvctls_own_router_has_no_lmcache_controller(check: str) -> None:
    assert findings(check, snapshot(router(args=("--router-mode", "kvaware")), stack=Stack.KVCTL)) == []


# KV124


def addresses(*members: Member, log: str = "") -> Snapshot:
    return snapshot(router(args=KVAWARE, log=log), *members)


def registered(ip: str) -> str:
    return (
        f"[2026-08-01 10:00:40,000] LMCache INFO: Registered instance-worker ('i', 0) with URL {ip}:8001 "
        "(registration_controller.py:1:lmcache.v1)"
    )


def test_one_ipv4_address_a_worker_passes() -> None:
    of = addresses(worker(), worker("w-1", ip="10.0.0.2"), log=registered("10.0.0.1"))
    assert statuses("KV124", of) == {"w-0": Status.PASS, "w-1": Status.PASS}


def test_a_worker_with_ipv6_only_fails() -> None:
    assert only("KV124", addresses(worker(ip="fd00::1"))).status is Status.FAIL


def test_dual_stack_passes() -> None:
    assert only("KV124", addresses(worker(ips=("fd00::1", "10.0.0.1")))).status is Status.PASS


def test_engines_that_share_an_address_fail() -> None:
    of = addresses(worker(host_network=True), worker("w-1", host_network=True))
    assert statuses("KV124", of) == {"w-0": Status.FAIL, "w-1": Status.FAIL}


def test_a_worker_that_lmcache_found_no_address_for_warns() -> None:
    line = "[2026-08-01 10:00:01,499] LMCache WARNING: Failed to get local IP address. (rpc_utils.py:108:lmcache.v1)"
    assert only("KV124", addresses(worker(log=line))).status is Status.WARN


def test_a_registration_under_an_address_of_no_pod_warns() -> None:
    assert statuses("KV124", addresses(worker(), log=registered("127.0.0.1"))) == {
        "w-0": Status.PASS,
        "router-0": Status.WARN,
    }


def test_a_registration_of_a_worker_that_left_passes() -> None:
    left = (
        registered("10.0.0.77")
        + "\n"
        + (
            "[2026-08-01 10:20:00,000] LMCache INFO: Deregistered instance-worker ('i', 0) "
            "(registration_controller.py:1:lmcache)"
        )
    )
    assert statuses("KV124", addresses(worker(), log=left)) == {"w-0": Status.PASS}


def test_workers_without_a_known_address_are_not_judged() -> None:
    assert only("KV124", addresses(worker(ip=""))).reason is Reason.NO_DATA


@pytest.mark.parametrize("check", ["KV123", "KV125", "KV126"])
def test_without_a_router_it_is_not_judged(check: str) -> None:
    of = hyperpod(worker(), resources=(resource(strategy="kvaware"),))
    assert only(check, of).reason is Reason.NO_DATA


CONTROLLER = {"LMCACHE_ENABLE_CONTROLLER": "True"}


def test_workers_that_register_with_a_controller_which_nobody_asks_warn() -> None:
    of = snapshot(router(args=("--routing-logic", "session")), worker(env=CONTROLLER))
    assert statuses("KV121", of) == {"router-0": Status.PASS, "fleet": Status.WARN}


@pytest.mark.parametrize("enabled", ["True", "False"])
def test_workers_may_register_where_kvaware_asks_and_need_not_elsewhere(enabled: str) -> None:
    strategy = "kvaware" if enabled == "True" else "session"
    of = snapshot(router(args=("--routing-logic", strategy)), worker(env={"LMCACHE_ENABLE_CONTROLLER": enabled}))
    assert statuses("KV121", of) == {"router-0": Status.PASS}


@pytest.mark.parametrize(("asked", "status"), [("kvaware", Status.FAIL), ("session", Status.PASS)])
def test_what_the_operator_was_told_is_compared_with_what_runs(asked: str, status: Status) -> None:
    custom = {"metadata": {"name": "r", "namespace": "prod"}, "spec": {"routingLogic": asked}}
    runs = router(args=("--routing-logic", "session"), labels={"app": "r"})
    of = snapshot(runs, resources=Resources({"vllmrouters": (custom,)}))
    assert statuses("KV121", of) == {"router-0": status}
