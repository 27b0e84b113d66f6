"""KV160 to KV163."""

from __future__ import annotations

from typing import Any

import pytest

from checks.model import Reason, Stack, Status
from checks.snapshot import Member, Resources, Snapshot, Unread
from tests.checks.build import findings, only, router, snapshot, statuses, worker

KVAWARE = ("--routing-logic", "kvaware")
LMCACHE = ("--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}')
URLS = {"LMCACHE_CONTROLLER_PULL_URL": "r-svc:9000", "LMCACHE_CONTROLLER_REPLY_URL": "r-svc:9001"}
COMPLETE = {"LMCACHE_ENABLE_CONTROLLER": "True", "LMCACHE_LMCACHE_WORKER_PORTS": "8001", **URLS}
ALL = ("KV160", "KV162", "KV163")


def engine(version: str | None = "0.4.3", *, env: dict[str, str] | None = None, **more: Any) -> Member:
    more.setdefault("args", LMCACHE)
    return worker(version_line=version, env=URLS if env is None else env, **more)


def service(*ports: int, name: str = "r-svc", **spec: Any) -> dict[str, Any]:
    listed = [{"port": port, "targetPort": port} for port in ports]
    return {"metadata": {"name": name, "namespace": "prod"}, "spec": {"ports": listed, **spec}}


def cluster(*members: Member, strategy: str = "kvaware", routers: Any = None, unread: Any = (), **of: Any) -> Snapshot:
    routing = [router(args=("--routing-logic", strategy), labels={"app": "router"})] if routers is None else routers
    by_plural = {name: tuple(rows) for name, rows in of.items()}
    return snapshot(*routing, *members, resources=Resources(by_plural), unread=tuple(unread))


@pytest.mark.parametrize("check", ALL)
def test_other_strategies_have_no_controller(check: str) -> None:
    assert only(check, cluster(engine(), strategy="session")).reason is Reason.NOT_APPLICABLE


@pytest.mark.parametrize("check", ALL)
def test_workers_without_lmcache_have_no_controller(check: str) -> None:
    assert only(check, cluster(worker())).reason is Reason.NOT_APPLICABLE


@pytest.mark.parametrize("check", ALL)
def test_kvctls_own_router_has_no_controller(check: str) -> None:
    assert findings(check, snapshot(router(args=("--router-mode", "kvaware")), engine(), stack=Stack.KVCTL)) == []


@pytest.mark.parametrize("check", ["KV160", "KV161"])
def test_without_a_cluster_there_is_no_network_to_judge(check: str) -> None:
    assert only(check, snapshot(router(args=KVAWARE), engine(), cluster=False)).reason is Reason.NOT_APPLICABLE


# KV160


def ports_status(*ports: int, version: str | None = "0.4.3", **more: Any) -> set[Status]:
    return {one.status for one in findings("KV160", cluster(engine(version, **more), services=[service(*ports)]))}


def test_a_service_with_both_ports_passes() -> None:
    assert ports_status(80, 9000, 9001) == {Status.PASS}


def test_a_service_without_the_pull_port_fails() -> None:
    of = cluster(engine("0.3.11"), services=[service(80, 9001)])
    assert statuses("KV160", of) == {"w-0": Status.FAIL}


def test_a_service_without_the_reply_port_fails_from_0_3_12_on() -> None:
    assert ports_status(80, 9000, version="0.3.12") == {Status.PASS, Status.FAIL}


@pytest.mark.parametrize("version", ["0.3.11", None])
def test_a_service_without_the_reply_port_warns_before_or_without_a_version(version: str | None) -> None:
    assert ports_status(80, 9000, version=version) == {Status.PASS, Status.WARN}


def test_a_headless_service_needs_no_ports() -> None:
    of = cluster(engine(), services=[service(clusterIP="None")])
    assert {one.status for one in findings("KV160", of)} == {Status.PASS}


def test_a_service_that_does_not_exist_fails() -> None:
    of = cluster(engine(), services=[service(9000, 9001, name="other")])
    assert {one.status for one in findings("KV160", of)} == {Status.FAIL}


def test_the_full_name_of_a_service_is_understood() -> None:
    env = {"LMCACHE_CONTROLLER_PULL_URL": "tcp://r-svc.prod.svc.cluster.local:9000"}
    assert ports_status(9000, env=env) == {Status.PASS}


def test_a_service_of_a_namespace_that_was_not_listed_is_not_judged() -> None:
    env = {"LMCACHE_CONTROLLER_PULL_URL": "r-svc.elsewhere:9000"}
    assert only("KV160", cluster(engine(env=env), services=[service(9000)])).reason is Reason.NO_DATA


def test_services_that_may_not_be_listed_are_an_error() -> None:
    of = cluster(engine(), unread=[Unread("services of prod", Reason.RBAC, "forbidden")])
    assert {one.reason for one in findings("KV160", of)} == {Reason.RBAC}


def test_a_port_that_leads_past_the_router_fails() -> None:
    listening = router(args=(*KVAWARE, "--lmcache-controller-port", "9100"))
    env = {"LMCACHE_CONTROLLER_PULL_URL": "r-svc:9000"}
    assert only("KV160", cluster(engine(env=env), routers=[listening], services=[service(9000)])).status is Status.FAIL


PORTS_LINE = (
    "[2026-08-01 10:00:01,121] INFO: Initializing KvawareRouter with port: 9000, reply port: {0}, heartbeat port: 9002 "
    "(routing_logic.py:2:vllm_router.routers.routing_logic)"
)


def test_what_the_router_printed_beats_its_arguments() -> None:
    listening = router(args=(*KVAWARE, "--lmcache-controller-reply-port", "9009"), log=PORTS_LINE.format(9001))
    of = cluster(engine(), routers=[listening], services=[service(9000, 9001)])
    assert {one.status for one in findings("KV160", of)} == {Status.PASS}


def test_a_router_without_a_reply_port_fails_where_workers_need_it() -> None:
    silent = router(args=KVAWARE, log=PORTS_LINE.format("None"))
    new = cluster(engine("0.4.3"), routers=[silent], services=[service(9000, 9001)])
    old = cluster(engine("0.3.11"), routers=[silent], services=[service(9000, 9001)])
    assert {one.status for one in findings("KV160", new)} == {Status.PASS, Status.FAIL}
    assert {one.status for one in findings("KV160", old)} == {Status.PASS}


def test_a_named_target_port_is_looked_up_at_the_router() -> None:
    listed = [{"port": 9000, "targetPort": "lmcache-port"}]
    made = {"metadata": {"name": "r-svc", "namespace": "prod"}, "spec": {"ports": listed}}
    env = {"LMCACHE_CONTROLLER_PULL_URL": "r-svc:9000"}
    good = router(args=KVAWARE, ports={"lmcache-port": 9000})
    bad = router(args=KVAWARE, ports={"lmcache-port": 8000})
    assert only("KV160", cluster(engine(env=env), routers=[good], services=[made])).status is Status.PASS
    assert only("KV160", cluster(engine(env=env), routers=[bad], services=[made])).status is Status.FAIL


def test_the_address_of_the_router_itself_passes() -> None:
    env = {"LMCACHE_CONTROLLER_PULL_URL": "10.0.0.9:9000"}
    assert only("KV160", cluster(engine(env=env))).status is Status.PASS


@pytest.mark.parametrize("host", ["10.9.9.9", "router.example.com.invalid"])
def test_an_address_outside_the_cluster_is_not_judged(host: str) -> None:
    env = {"LMCACHE_CONTROLLER_PULL_URL": f"{host}:9000"}
    assert only("KV160", cluster(engine(env=env), services=[service(9000)])).reason is Reason.NO_DATA


def test_a_url_without_a_port_fails() -> None:
    assert only("KV160", cluster(engine(env={"LMCACHE_CONTROLLER_PULL_URL": "r-svc"}))).status is Status.FAIL


def test_urls_that_were_not_read_are_not_judged() -> None:
    env = {"LMCACHE_CONTROLLER_PULL_URL": "<from:secret/x>"}
    assert only("KV160", cluster(engine(env=env))).reason is Reason.NO_DATA


def test_urls_that_are_not_set_are_left_to_kv163() -> None:
    assert only("KV160", cluster(engine(env={}))).reason is Reason.NOT_APPLICABLE


# KV161


def policy(*rules: dict[str, Any], selector: dict[str, Any] | None = None, name: str = "deny") -> dict[str, Any]:
    spec = {"podSelector": selector or {}, "policyTypes": ["Ingress"], "ingress": list(rules)}
    return {"metadata": {"name": name, "namespace": "prod"}, "spec": spec}


ROUTER_ONLY = {"matchLabels": {"app": "router"}}


def policies(
    *listed: dict[str, Any], strategy: str = "kvaware", env: dict[str, str] | None = None
) -> dict[str, Status]:
    member = engine(env=COMPLETE if env is None else env, labels={"app": "engine"})
    return statuses("KV161", cluster(member, strategy=strategy, networkpolicies=listed))


def test_no_policies_pass() -> None:
    assert policies() == {"fleet": Status.PASS}


def test_a_policy_that_denies_all_warns_for_router_and_workers() -> None:
    assert policies(policy()) == {"router-0": Status.WARN, "w-0": Status.WARN}


def test_a_policy_that_selects_other_pods_passes() -> None:
    assert policies(policy(selector={"matchLabels": {"app": "else"}})) == {"fleet": Status.PASS}


def test_a_policy_for_egress_only_passes() -> None:
    egress = policy()
    egress["spec"]["policyTypes"] = ["Egress"]
    assert policies(egress) == {"fleet": Status.PASS}


def test_rules_that_open_all_needed_ports_pass() -> None:
    opened = [{"port": port} for port in (8000, 8001, 9000, 9001, 9002)]
    assert policies(policy({"ports": opened})) == {"fleet": Status.PASS}


def test_a_range_of_ports_opens_what_lies_in_it() -> None:
    assert policies(policy({"ports": [{"port": 8000, "endPort": 9002}]})) == {"fleet": Status.PASS}


def test_a_rule_for_another_protocol_opens_nothing() -> None:
    assert "router-0" in policies(policy({"ports": [{"port": 8000, "endPort": 9002, "protocol": "UDP"}]}))


def test_the_heartbeat_port_alone_missing_warns_and_is_named() -> None:
    opened = [{"port": port} for port in (9000, 9001)]
    of = cluster(engine(env=COMPLETE), networkpolicies=[policy({"ports": opened}, selector=ROUTER_ONLY)])
    found = only("KV161", of)
    assert found.status is Status.WARN
    assert "port 9002" in found.message


@pytest.mark.parametrize(
    ("peer", "status"),
    [
        ({"podSelector": {"matchLabels": {"app": "engine"}}}, Status.PASS),
        ({"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["engine"]}]}}, Status.PASS),
        ({"podSelector": {"matchLabels": {"app": "other"}}}, Status.WARN),
        ({"ipBlock": {"cidr": "10.0.0.0/8"}}, Status.PASS),
        ({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.1/32"]}}, Status.WARN),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "prod"}}}, Status.PASS),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "web"}}}, Status.WARN),
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, Status.PASS),
    ],
)
def test_who_may_come_in(peer: dict[str, Any], status: Status) -> None:
    found = policies(policy({"from": [peer]}, selector=ROUTER_ONLY))
    assert set(found.values()) == {status}


def test_policies_add_up() -> None:
    one = policy({"ports": [{"port": 9000}, {"port": 9001}]}, selector=ROUTER_ONLY)
    two = policy({"ports": [{"port": 9002}]}, selector=ROUTER_ONLY, name="heartbeat")
    assert policies(one, two) == {"fleet": Status.PASS}


def test_other_strategies_need_the_serving_port_only() -> None:
    assert policies(policy({"ports": [{"port": 8000}]}), strategy="session") == {"fleet": Status.PASS}


def test_the_serving_port_is_the_one_of_the_workers_url() -> None:
    member = engine(url="http://10.0.0.1:8080", labels={"app": "engine"})
    of = cluster(member, strategy="session", networkpolicies=[policy({"ports": [{"port": 8000}]})])
    assert only("KV161", of).status is Status.WARN


def test_policies_that_may_not_be_listed_are_an_error() -> None:
    of = cluster(engine(), unread=[Unread("networkpolicies.networking.k8s.io", Reason.RBAC, "forbidden")])
    assert only("KV161", of).reason is Reason.RBAC


def test_policies_need_routers_and_workers() -> None:
    assert only("KV161", cluster()).reason is Reason.NO_DATA


# KV162


def given_ports(ports: str | None, *args: str, **more: Any) -> Snapshot:
    env = {} if ports is None else {"LMCACHE_LMCACHE_WORKER_PORTS": ports}
    return cluster(engine(env={**env, **more.pop("env", {})}, args=(*LMCACHE, *args), **more))


@pytest.mark.parametrize(
    ("ports", "args"),
    [
        ("8001", ()),
        ("8001,8002", ("--tensor-parallel-size", "2")),
        ("[8001, 8002, 8003, 8004]", ("-tp", "2", "--pipeline-parallel-size=2")),
    ],
)
def test_a_port_for_each_rank_passes(ports: str, args: tuple[str, ...]) -> None:
    assert only("KV162", given_ports(ports, *args)).status is Status.PASS


@pytest.mark.parametrize(
    ("ports", "args"), [("8001", ("--tensor-parallel-size", "2")), ("8001,8002", ("-tp", "2", "-pp", "2"))]
)
def test_fewer_ports_than_ranks_fail(ports: str, args: tuple[str, ...]) -> None:
    assert only("KV162", given_ports(ports, *args)).status is Status.FAIL


def test_only_the_ranks_that_register_need_a_port() -> None:
    of = given_ports("8001", "--tensor-parallel-size", "8", env={"LMCACHE_LMCACHE_WORKER_IDS": "[0]"})
    assert only("KV162", of).status is Status.PASS


def test_ports_that_are_no_port_numbers_fail() -> None:
    assert only("KV162", given_ports("8001,http", "-tp", "2")).status is Status.FAIL
    assert only("KV162", given_ports("80010")).status is Status.FAIL


def test_lmcaches_own_complaint_fails() -> None:
    line = "ValueError: lmcache_worker_ports must have at least 2 port(s) (world_size), got 1"
    assert only("KV162", given_ports("8001", log=line)).status is Status.FAIL


def test_ports_from_a_secret_are_not_judged() -> None:
    assert only("KV162", given_ports("<from:secret/x>")).reason is Reason.NO_DATA


def test_ports_that_are_not_set_are_left_to_kv163() -> None:
    assert only("KV162", given_ports(None)).reason is Reason.NOT_APPLICABLE


# KV163


def environment(version: str | None = "0.4.3", *, without: str = "", **env: str) -> Snapshot:
    kept = {name: value for name, value in COMPLETE.items() if name != without}
    return cluster(engine(version, env={**kept, **env}))


def test_a_complete_environment_passes() -> None:
    assert only("KV163", environment()).status is Status.PASS


def test_a_controller_that_is_not_enabled_fails() -> None:
    assert only("KV163", environment(without="LMCACHE_ENABLE_CONTROLLER")).status is Status.FAIL
    assert only("KV163", environment(LMCACHE_ENABLE_CONTROLLER="False")).status is Status.FAIL


@pytest.mark.parametrize(
    "name", ["LMCACHE_CONTROLLER_PULL_URL", "LMCACHE_CONTROLLER_REPLY_URL", "LMCACHE_LMCACHE_WORKER_PORTS"]
)
def test_each_missing_variable_fails_and_is_named(name: str) -> None:
    found = only("KV163", environment(without=name))
    assert found.status is Status.FAIL
    assert name in found.message


@pytest.mark.parametrize("version", ["0.3.11", None])
def test_a_missing_reply_url_warns_before_0_3_12_or_without_a_version(version: str | None) -> None:
    assert only("KV163", environment(version, without="LMCACHE_CONTROLLER_REPLY_URL")).status is Status.WARN


@pytest.mark.parametrize(
    ("version", "status"), [("0.3.11", Status.PASS), ("0.3.12", Status.FAIL), ("0.4.2", Status.FAIL)]
)
def test_the_instance_id_is_needed_where_it_has_no_default(version: str, status: Status) -> None:
    assert only("KV163", environment(version)).status is status
    assert only("KV163", environment(version, LMCACHE_LMCACHE_INSTANCE_ID="w-0")).status is Status.PASS


def test_the_pull_urls_old_name_counts() -> None:
    of = environment("0.3.7", without="LMCACHE_CONTROLLER_PULL_URL", LMCACHE_CONTROLLER_URL="r-svc:9000")
    assert only("KV163", of).status is Status.PASS


def test_a_value_from_a_secret_counts_as_set() -> None:
    assert only("KV163", environment(LMCACHE_CONTROLLER_REPLY_URL="<from:secret/x>")).status is Status.PASS


def test_a_configuration_file_that_was_not_read_is_not_judged() -> None:
    of = cluster(engine(env={"LMCACHE_CONFIG_FILE": "/etc/lmcache.yaml"}))
    assert only("KV163", of).reason is Reason.NO_DATA


def test_what_lmcache_printed_counts() -> None:
    config = (
        "{'enable_controller': True, 'controller_pull_url': 'r-svc:9000', 'controller_reply_url': 'r-svc:9001', "
        "'lmcache_worker_ports': [8001]}"
    )
    line = f"[2026-08-01 10:00:01,000] LMCache INFO: LMCache Configuration: {config} (config.py:1:lmcache.v1.config)"
    assert only("KV163", cluster(engine(env={}, log=line))).status is Status.PASS


def test_without_workers_nothing_is_judged() -> None:
    assert only("KV163", cluster()).reason is Reason.NO_DATA


def test_kv160_knows_the_ports_that_the_controller_says_it_listens_on() -> None:
    log = "[2026-08-01 10:00:01,401] LMCache INFO: Starting reply request handler on 0.0.0.0:9101 (a.py:1:b)\n"
    routers = [router(args=KVAWARE, log=log, labels={"app": "router"})]
    found = findings("KV160", cluster(engine(), routers=routers, services=[service(9000, 9001)]))
    messages = [one.message for one in found if one.status is Status.FAIL]
    assert messages == ["port 9001 is reached as reply port, the router listens on 9101"]
