"""KV001-KV003, KV005, KV006."""

from __future__ import annotations

from typing import Any

import pytest

from checks.model import Reason, Stack, Status
from checks.snapshot import Access, Expectations, Member, Resources, Snapshot, Unread
from tests.checks.build import STARTED, find_check, findings, only, router, snapshot, statuses, worker

KVAWARE = ("--routing-logic", "kvaware")
CONNECTOR = ("--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}')


def allowed(verb: str, resource: str, yes: bool, required: bool = True) -> Access:
    return Access(verb, resource, "prod", yes, required, "something")


def with_resources(*members: Member, **by_plural: Any) -> Snapshot:
    return snapshot(*members, resources=Resources({name: tuple(rows) for name, rows in by_plural.items()}))


def endpoint(**spec: Any) -> dict[str, Any]:
    return {"kind": "InferenceEndpointConfig", "metadata": {"name": "m", "namespace": "prod"}, "spec": spec}


# KV001


def test_all_required_permissions_pass() -> None:
    of = snapshot(access=(allowed("list", "pods", True), allowed("get", "pods/log", True)))
    assert only("KV001", of).status is Status.PASS


def test_a_denied_required_permission_is_an_error_of_rbac_that_names_it() -> None:
    found = only("KV001", snapshot(access=(allowed("list", "pods", True), allowed("get", "pods/log", False))))
    assert (found.status, found.reason) == (Status.ERROR, Reason.RBAC)
    assert found.message == "may not get pods/log in prod (needed for something)"


def test_each_denied_required_permission_is_named() -> None:
    of = snapshot(access=(allowed("list", "pods", False), allowed("get", "pods/log", False)))
    assert [one.reason for one in findings("KV001", of)] == [Reason.RBAC, Reason.RBAC]


def test_a_denied_optional_permission_passes_and_is_named() -> None:
    of = snapshot(access=(allowed("list", "pods", True), allowed("get", "configmaps", False, required=False)))
    found = only("KV001", of)
    assert found.status is Status.PASS
    assert "get configmaps" in found.message


@pytest.mark.parametrize("reason", [Reason.UNREACHABLE, Reason.TIMEOUT, Reason.RBAC, Reason.PARSE])
def test_a_list_that_could_not_be_read_is_an_error(reason: Reason) -> None:
    of = snapshot(access=(allowed("list", "pods", True),), unread=(Unread("services of prod", reason, "no"),))
    assert [one.reason for one in findings("KV001", of) if one.status is Status.ERROR] == [reason]


def test_a_list_that_an_optional_permission_is_needed_for_is_no_error() -> None:
    optional = allowed("list", "horizontalpodautoscalers.autoscaling", False, required=False)
    unread = Unread("horizontalpodautoscalers in prod", Reason.RBAC, "forbidden")
    of = snapshot(access=(allowed("list", "pods", True), optional), unread=(unread,))
    assert only("KV001", of).status is Status.PASS


def test_prometheus_is_no_matter_of_access_to_the_api() -> None:
    unread = Unread("2 of 9 Prometheus queries", Reason.UNREACHABLE, "refused")
    assert only("KV001", snapshot(access=(allowed("list", "pods", True),), unread=(unread,))).status is Status.PASS


def test_what_was_merely_not_there_is_no_error_of_access() -> None:
    of = snapshot(access=(allowed("list", "pods", True),), unread=(Unread("log of w-0", Reason.GONE, "gone"),))
    assert only("KV001", of).status is Status.PASS


def test_without_an_answer_about_permissions_access_is_not_judged() -> None:
    assert only("KV001", snapshot()).reason is Reason.NO_DATA


def test_without_a_cluster_access_is_not_judged() -> None:
    assert only("KV001", snapshot(cluster=False)).reason is Reason.NOT_APPLICABLE


def test_explaining_kv001_prints_the_role() -> None:
    rule = find_check("KV001").rule
    assert "kind: Role" in rule
    assert "pods/log" in rule


# KV002


def test_a_ready_router_passes() -> None:
    assert only("KV002", snapshot(router())).status is Status.PASS


def test_routers_of_which_none_is_ready_fail() -> None:
    assert only("KV002", snapshot(router(ready=False))).status is Status.FAIL


def test_no_router_where_the_stack_routes_fails() -> None:
    assert only("KV002", snapshot(worker())).status is Status.FAIL


def test_no_router_where_a_resource_asks_for_routing_fails() -> None:
    resources = Resources({"inferenceendpointconfigs": (endpoint(intelligentRoutingSpec={"enabled": True}),)})
    assert only("KV002", snapshot(worker(), stack=Stack.HYPERPOD, resources=resources)).status is Status.FAIL


def test_no_router_where_the_user_expects_a_strategy_fails() -> None:
    of = snapshot(worker(), stack=Stack.UNKNOWN, expectations=Expectations("kvaware"))
    assert only("KV002", of).status is Status.FAIL


def test_no_router_where_nothing_asks_for_routing_is_not_judged() -> None:
    resources = Resources({"inferenceendpointconfigs": (endpoint(modelName="m"),)})
    of = snapshot(worker(), stack=Stack.HYPERPOD, resources=resources)
    assert only("KV002", of).reason is Reason.NOT_APPLICABLE


@pytest.mark.parametrize("check", ["KV002", "KV003"])
def test_pods_that_may_not_be_listed_are_an_error_and_no_failure(check: str) -> None:
    of = snapshot(access=(allowed("list", "pods", False),))
    assert (only(check, of).status, only(check, of).reason) == (Status.ERROR, Reason.RBAC)


@pytest.mark.parametrize("check", ["KV002", "KV003"])
def test_pods_that_could_not_be_listed_in_time_are_an_error(check: str) -> None:
    of = snapshot(unread=(Unread("pods of prod", Reason.TIMEOUT, "10 s"),))
    assert only(check, of).reason is Reason.TIMEOUT


# KV003


def test_two_ready_workers_of_a_model_pass() -> None:
    assert only("KV003", snapshot(worker(), worker("w-1", ip="10.0.0.2"))).status is Status.PASS


def test_one_ready_worker_warns() -> None:
    assert only("KV003", snapshot(worker(), worker("w-1", ready=False))).status is Status.WARN


def test_one_worker_that_was_named_by_hand_is_not_judged() -> None:
    assert only("KV003", snapshot(worker(), cluster=False)).reason is Reason.NO_DATA


def test_no_ready_worker_fails() -> None:
    assert only("KV003", snapshot(worker(ready=False))).status is Status.FAIL


def test_no_worker_at_all_fails() -> None:
    assert only("KV003", snapshot(router())).status is Status.FAIL


def test_each_model_is_counted_by_itself() -> None:
    of = snapshot(worker("a-0", model="a"), worker("a-1", model="a"), worker("b-0", model="b"))
    assert [one.status for one in findings("KV003", of)] == [Status.PASS, Status.WARN]


# KV005


def routers(count: int, strategy: str, **more: Any) -> list[Member]:
    args = ("--routing-logic", strategy)
    return [router(f"r-{at}", args=args, owner="Deployment/router", ip=f"10.0.1.{at}", **more) for at in range(count)]


def test_one_kvaware_router_passes() -> None:
    assert only("KV005", snapshot(*routers(1, "kvaware"))).status is Status.PASS


def test_two_kvaware_routers_fail() -> None:
    assert only("KV005", snapshot(*routers(2, "kvaware"))).status is Status.FAIL


def test_a_second_router_that_is_not_ready_does_not_count() -> None:
    one, two = routers(1, "kvaware")[0], router("r-9", owner="Deployment/router", ready=False)
    assert only("KV005", snapshot(one, two)).status is Status.PASS


def test_two_prefixaware_routers_warn() -> None:
    assert only("KV005", snapshot(*routers(2, "prefixaware"))).status is Status.WARN


def test_routers_of_different_deployments_are_counted_apart() -> None:
    other = router("x-0", args=KVAWARE, owner="Deployment/other")
    assert set(statuses("KV005", snapshot(*routers(1, "kvaware"), other)).values()) == {Status.PASS}


def test_an_autoscaler_that_may_add_routers_warns() -> None:
    scaler = {
        "metadata": {"name": "h", "namespace": "prod"},
        "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "router"}},
    }
    of = with_resources(*routers(1, "kvaware"), horizontalpodautoscalers=[scaler])
    assert only("KV005", of).status is Status.WARN


def test_an_autoscaler_of_something_else_passes() -> None:
    scaler = {
        "metadata": {"name": "h", "namespace": "prod"},
        "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "engine"}},
    }
    of = with_resources(*routers(1, "kvaware"), horizontalpodautoscalers=[scaler])
    assert only("KV005", of).status is Status.PASS


def test_a_deployment_that_wants_two_routers_warns_before_the_second_is_ready() -> None:
    deployment = {"metadata": {"name": "router", "namespace": "prod"}, "spec": {"replicas": 2}}
    of = with_resources(*routers(1, "prefixaware"), deployments=[deployment])
    assert only("KV005", of).status is Status.WARN


def test_dynamo_with_two_routers_warns() -> None:
    assert only("KV005", snapshot(*routers(2, "kv"), stack=Stack.DYNAMO)).status is Status.WARN


@pytest.mark.parametrize("strategy", ["roundrobin", "session"])
def test_strategies_without_state_are_not_judged(strategy: str) -> None:
    assert only("KV005", snapshot(*routers(2, strategy))).reason is Reason.NOT_APPLICABLE


def test_without_routers_replicas_are_not_judged() -> None:
    assert only("KV005", snapshot(worker())).reason is Reason.NO_DATA


# KV006


def restarted(router_log: str = "", **more: Any) -> Snapshot:
    """The router started ten minutes after the worker."""
    late = router(args=KVAWARE, started_at=STARTED + 600, log=router_log)
    return snapshot(late, worker(args=CONNECTOR, **more))


HEARTBEAT = {"LMCACHE_LMCACHE_WORKER_HEARTBEAT_TIME": "10"}


def test_workers_that_started_after_the_router_pass() -> None:
    of = snapshot(router(args=KVAWARE), worker(args=CONNECTOR, started_at=STARTED + 1))
    assert only("KV006", of).status is Status.PASS


@pytest.mark.parametrize(("before", "status"), [(60, Status.PASS), (61, Status.FAIL)])
def test_clocks_of_nodes_may_differ_by_a_minute(before: int, status: Status) -> None:
    late = router(args=KVAWARE, started_at=STARTED + before)
    assert only("KV006", snapshot(late, worker(args=CONNECTOR, version_line="0.4.3"))).status is status


def test_an_older_worker_without_heartbeats_fails_on_a_version_that_registers_by_request() -> None:
    assert statuses("KV006", restarted(version_line="0.3.12")) == {"w-0": Status.FAIL}


@pytest.mark.parametrize("version", ["0.3.9.post2", "0.3.11", None])
def test_an_older_worker_without_heartbeats_warns_on_older_or_unknown_versions(version: str | None) -> None:
    assert statuses("KV006", restarted(version_line=version)) == {"w-0": Status.WARN}


def test_an_older_worker_that_sends_heartbeats_passes() -> None:
    assert statuses("KV006", restarted(version_line="0.4.3", env=HEARTBEAT)) == {"w-0": Status.PASS}


def test_heartbeats_without_an_address_to_send_them_to_fail() -> None:
    refused = (
        "[2026-08-01 10:00:02,000] LMCache INFO: No dedicated heartbeat_url provided by controller (w.py:1:lmcache)"
    )
    assert statuses("KV006", restarted(version_line="0.4.3", env=HEARTBEAT, log=refused))["w-0"] is Status.FAIL


def test_an_older_worker_that_registered_with_the_new_router_passes() -> None:
    line = (
        "[2026-08-01 10:10:40,000] LMCache INFO: Registered instance-worker ('i', 0) with URL 10.0.0.1:8001 "
        "(registration_controller.py:1:lmcache)"
    )
    assert statuses("KV006", restarted(line, version_line="0.4.3")) == {"fleet": Status.PASS}


def test_heartbeats_that_are_set_from_a_secret_are_not_judged() -> None:
    of = restarted(env={"LMCACHE_LMCACHE_WORKER_HEARTBEAT_TIME": "<from:secret/x>"})
    assert findings("KV006", of)[0].reason is Reason.NO_DATA


def test_other_strategies_do_not_register() -> None:
    of = snapshot(router(args=("--routing-logic", "session"), started_at=STARTED + 600), worker(args=CONNECTOR))
    assert only("KV006", of).reason is Reason.NOT_APPLICABLE


def test_without_a_start_time_of_the_router_it_is_not_judged() -> None:
    assert only("KV006", snapshot(router(args=KVAWARE, started_at=None), worker())).reason is Reason.NO_DATA


def test_workers_without_lmcache_say_nothing_of_registration() -> None:
    of = snapshot(router(args=KVAWARE, started_at=STARTED + 600), worker())
    assert only("KV006", of).reason is Reason.NO_DATA


def test_heartbeats_to_a_router_that_listens_to_none_fail() -> None:
    deaf = (
        "[2026-08-01 10:10:00,000] LMCache WARNING: Heartbeat socket is None, heartbeat handler not started! (a.py:1:b)"
    )
    assert statuses("KV006", restarted(deaf, version_line="0.4.3", env=HEARTBEAT)) == {"w-0": Status.FAIL}
