"""KV150 to KV154."""

from __future__ import annotations

from typing import Any

import pytest

from checks.model import Reason, Stack, Status
from checks.snapshot import Member, Resources, Snapshot
from tests.checks.build import findings, only, router, snapshot, statuses, version_text, worker

KVAWARE = ("--routing-logic", "kvaware")
LMCACHE = ("--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}')
REGISTRY = "557690614651.dkr.ecr.us-east-1.amazonaws.com/hyperpod-inference-operator"


def operator(tag: str = "v3.1.3", *, labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "hyperpod-inference-operator-controller-manager",
            "namespace": "hyperpod-inference-system",
            "labels": labels or {},
        },
        "spec": {"template": {"spec": {"containers": [{"name": "manager", "image": f"{REGISTRY}:{tag}"}]}}},
    }


def hyperpod(*members: Member, deployments: tuple[dict[str, Any], ...] = (), strategy: str = "kvaware") -> Snapshot:
    routing = router(args=("--routing-logic", strategy))
    return snapshot(routing, *members, stack=Stack.HYPERPOD, resources=Resources({"deployments": deployments}))


def engine(version: str | None = None, name: str = "w-0", **more: Any) -> Member:
    more.setdefault("args", LMCACHE)
    return worker(name, version_line=version, **more)


# KV150


@pytest.mark.parametrize(
    ("tag", "versions"),
    [
        ("v3.1.3", "0.4.3/0.19.1"),
        ("v3.2", "0.4.7/0.33.0"),
        ("v3.0", "0.3.9post2/0.11.1"),
        ("v2.0.1", "0.3.9.post2/0.11.1"),
    ],
)
def test_versions_of_one_row_pass(tag: str, versions: str) -> None:
    assert only("KV150", hyperpod(engine(versions), deployments=(operator(tag),))).status is Status.PASS


@pytest.mark.parametrize(
    ("tag", "versions"),
    [
        ("v3.1.3", "0.3.9.post2/0.11.1"),
        ("v3.1.3", "0.4.3/0.19.0"),
        ("v3.0", "0.4.3/0.19.1"),
        ("v3.0", "0.3.9.post2/0.11.2"),
        ("v3.1", "0.3.7/0.9.2"),
    ],
)
def test_versions_of_no_row_fail(tag: str, versions: str) -> None:
    assert only("KV150", hyperpod(engine(versions), deployments=(operator(tag),))).status is Status.FAIL


def test_a_failure_names_what_goes_with_the_operator() -> None:
    found = only("KV150", hyperpod(engine("0.3.9.post2/0.11.1"), deployments=(operator("v3.1.3"),)))
    assert "LMCache >=0.4.3 and vLLM >=0.19.1" in found.message


def test_the_add_on_is_enough_where_the_operator_is_not_known() -> None:
    labelled = operator("latest", labels={"helm.sh/chart": "hyperpod-inference-1.2.1-eksbuild.1"})
    assert only("KV150", hyperpod(engine("0.4.3/0.19.1"), deployments=(labelled,))).status is Status.PASS


def test_an_old_add_on_with_new_engines_fails() -> None:
    labelled = operator("latest", labels={"helm.sh/chart": "hyperpod-inference-1.1.0-eksbuild.3"})
    assert only("KV150", hyperpod(engine("0.4.3/0.19.1"), deployments=(labelled,))).status is Status.FAIL


def test_an_unknown_operator_warns() -> None:
    found = only("KV150", hyperpod(engine("0.4.3/0.19.1")))
    assert found.status is Status.WARN
    assert "(operator)" in found.message


def test_an_operator_known_too_roughly_warns() -> None:
    assert only("KV150", hyperpod(engine("0.4.3/0.19.1"), deployments=(operator("v3.1"),))).status is Status.WARN


def test_an_unknown_engine_version_warns_and_is_named() -> None:
    member = engine(image="lmcache/vllm-openai:v0.4.7")
    found = only("KV150", hyperpod(member, deployments=(operator("v3.1.3"),)))
    assert found.status is Status.WARN
    assert "(vLLM)" in found.message


def test_the_matrix_is_for_kvaware_only() -> None:
    assert only("KV150", hyperpod(engine("0.3.7/0.9.2"), strategy="prefixaware")).reason is Reason.NOT_APPLICABLE


def test_the_matrix_needs_workers() -> None:
    assert only("KV150", hyperpod()).reason is Reason.NO_DATA


@pytest.mark.parametrize("check", ["KV150", "KV151"])
def test_other_stacks_have_no_operator(check: str) -> None:
    assert findings(check, snapshot(router(args=KVAWARE), engine("0.3.7/0.9.2"))) == []


# KV151


@pytest.mark.parametrize(("tag", "status"), [("v3.1.3", Status.PASS), ("v3.2", Status.PASS), ("v3.1.2", Status.WARN)])
def test_the_recommended_operator(tag: str, status: Status) -> None:
    assert only("KV151", hyperpod(deployments=(operator(tag),))).status is status


def test_the_version_label_is_finer_than_a_rough_tag() -> None:
    labelled = operator("v3.1", labels={"app.kubernetes.io/version": "3.1.4"})
    assert only("KV151", hyperpod(deployments=(labelled,))).status is Status.PASS


def test_the_add_on_tells_too() -> None:
    old = operator("latest", labels={"helm.sh/chart": "x-1.1.0-eksbuild.1"})
    assert only("KV151", hyperpod(deployments=(old,))).status is Status.WARN


@pytest.mark.parametrize("deployments", [(), (operator("latest"),), (operator("v3.1"),)])
def test_an_operator_of_unknown_version_is_not_judged(deployments: tuple[dict[str, Any], ...]) -> None:
    assert only("KV151", hyperpod(deployments=deployments)).reason is Reason.VERSION_UNKNOWN


def test_other_deployments_are_not_the_operator() -> None:
    other = operator("v1.0")
    other["metadata"]["name"] = "router"
    assert only("KV151", hyperpod(deployments=(other,))).reason is Reason.VERSION_UNKNOWN


# KV152


def pair(router_image: str, version: str | None, **more: Any) -> Snapshot:
    return snapshot(router(args=KVAWARE, image=router_image, **more), engine(version))


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("lmcache/lmstack-router:v0.1.11", "0.3.10"),
        ("lmcache/lmstack-router:v0.1.8", "0.3.7"),
        ("lmcache/vllm-openai:v0.4.7", "0.5.6"),
    ],
)
def test_one_wire_epoch_passes(image: str, version: str) -> None:
    assert only("KV152", pair(image, version)).status is Status.PASS


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("lmcache/lmstack-router:v0.1.11", "0.4.3"),
        ("lmcache/lmstack-router:v0.1.11", "0.3.9.post2"),
        ("lmcache/vllm-openai:v0.4.7", "0.3.11"),
    ],
)
def test_different_wire_epochs_fail(image: str, version: str) -> None:
    assert only("KV152", pair(image, version)).status is Status.FAIL


HEALTH = "[2026-08-01 10:00:01,400] LMCache INFO: Start health check thread, interval: 5 (a.py:1:lmcache.v1)"
REPLY = "[2026-08-01 10:00:01,401] LMCache INFO: Starting reply request handler on 0.0.0.0:9001 (a.py:1:lmcache.v1)"


def test_a_lower_bound_that_excludes_the_other_epoch_fails() -> None:
    assert only("KV152", pair("mine:latest", "0.3.9.post2", log=HEALTH)).status is Status.FAIL
    assert only("KV152", pair("mine:latest", "0.3.11", log=REPLY)).status is Status.FAIL


def test_a_lower_bound_that_leaves_one_epoch_passes() -> None:
    assert only("KV152", pair("mine:latest", "0.4.3", log=REPLY)).status is Status.PASS


def test_a_lower_bound_that_leaves_two_epochs_is_not_judged() -> None:
    assert only("KV152", pair("mine:latest", "0.4.3", log=HEALTH)).reason is Reason.VERSION_UNKNOWN


def test_unknown_versions_are_not_judged() -> None:
    assert only("KV152", pair("mine:latest", "0.4.3")).reason is Reason.VERSION_UNKNOWN
    assert only("KV152", pair("lmcache/lmstack-router:v0.1.11", None)).reason is Reason.VERSION_UNKNOWN


def test_the_line_that_told_the_version_is_evidence() -> None:
    texts = [one.text for one in only("KV152", pair("mine:latest", "0.3.9.post2", log=HEALTH)).evidence]
    assert any("Start health check thread" in text for text in texts)


def test_each_worker_is_compared() -> None:
    of = snapshot(
        router(args=KVAWARE, image="lmcache/vllm-openai:v0.4.7"),
        engine("0.4.3"),
        engine("0.3.11", "w-1"),
    )
    assert statuses("KV152", of) == {"w-0": Status.PASS, "w-1": Status.FAIL}


def test_other_strategies_need_no_protocol() -> None:
    of = snapshot(router(args=("--routing-logic", "session")), engine("0.4.3"))
    assert only("KV152", of).reason is Reason.NOT_APPLICABLE


def test_workers_without_lmcache_speak_no_protocol() -> None:
    assert only("KV152", snapshot(router(args=KVAWARE), worker())).reason is Reason.NOT_APPLICABLE


def test_without_a_router_the_protocol_is_not_judged() -> None:
    spec = {"intelligentRoutingSpec": {"enabled": True, "routingStrategy": "kvaware"}}
    custom = {"metadata": {"name": "m", "namespace": "prod"}, "spec": spec}
    of = snapshot(engine("0.4.3"), resources=Resources({"inferenceendpointconfigs": (custom,)}))
    assert only("KV152", of).reason is Reason.NO_DATA


# KV153

NO_MODULE = "ModuleNotFoundError: No module named 'lmcache'"
SYMBOL = "ImportError: /opt/lmcache/c_ops.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN3c105ErrorC2E"
OTHER_SYMBOL = "ImportError: /opt/flash_attn.so: undefined symbol: _ZN3c105ErrorC2E"
C_OPS = "ImportError: libcudart.so.12: cannot open shared object file, needed by lmcache/c_ops.cpython-312.so"


@pytest.mark.parametrize("line", [NO_MODULE, SYMBOL, C_OPS])
def test_a_library_that_does_not_load_fails(line: str) -> None:
    assert only("KV153", snapshot(engine(log=line))).status is Status.FAIL


def test_the_previous_instances_log_counts_too() -> None:
    assert only("KV153", snapshot(engine("0.4.3", previous=C_OPS))).status is Status.FAIL


def test_a_symbol_of_another_library_warns() -> None:
    assert only("KV153", snapshot(engine(log=OTHER_SYMBOL))).status is Status.WARN


def test_a_missing_lmcache_that_nobody_asks_for_warns() -> None:
    assert only("KV153", snapshot(worker(log=NO_MODULE))).status is Status.WARN


def test_a_kvaware_router_without_lmcache_fails() -> None:
    of = snapshot(router(args=KVAWARE, log=NO_MODULE), engine("0.4.3"))
    assert statuses("KV153", of) == {"router-0": Status.FAIL, "w-0": Status.PASS}


def test_routers_of_other_strategies_need_no_lmcache() -> None:
    of = snapshot(router(args=("--routing-logic", "session"), log=NO_MODULE), engine("0.4.3"))
    assert statuses("KV153", of) == {"w-0": Status.PASS}


def test_a_loaded_lmcache_passes_even_without_the_logs_beginning() -> None:
    assert only("KV153", snapshot(engine("0.4.3", head_complete=False))).status is Status.PASS


def test_a_log_without_beginning_and_lmcache_is_not_judged() -> None:
    of = snapshot(engine(log="INFO something", head_complete=False))
    assert only("KV153", of).reason is Reason.LOG_TRUNCATED


def test_a_complete_log_without_a_sign_passes() -> None:
    assert only("KV153", snapshot(engine(log="INFO something"))).status is Status.PASS


def test_a_log_that_was_not_read_is_not_judged() -> None:
    assert only("KV153", snapshot(engine(log=None, log_missing=Reason.RBAC))).reason is Reason.RBAC


def test_a_worker_without_lmcache_needs_no_libraries() -> None:
    assert only("KV153", snapshot(worker(log="INFO something"))).reason is Reason.NOT_APPLICABLE


FOREIGN = "ModuleNotFoundError: No module named 'vllm.utils.torch_utils'"
OLD_NAME = "ImportError: cannot import name 'LMCacheConnectorV1Impl' from 'lmcache.integration.vllm.vllm_v1_adapter'"


def test_a_name_that_lmcache_has_not_fails() -> None:
    assert only("KV153", snapshot(engine(log=OLD_NAME))).status is Status.FAIL


def test_a_module_that_this_vllm_has_not_fails_where_it_ended_the_engine() -> None:
    assert only("KV153", snapshot(engine("0.3.8/0.11.0", previous=FOREIGN))).status is Status.FAIL


def test_a_module_that_this_vllm_has_not_warns_where_the_engine_serves_on() -> None:
    assert only("KV153", snapshot(engine(log=FOREIGN))).status is Status.WARN


@pytest.mark.parametrize(
    ("lmcache", "vllm", "status"),
    [
        ("0.3.8", "0.15.0", Status.FAIL),
        ("0.3.9.post2", "0.15.0", Status.PASS),
        ("0.3.8", "0.14.1", Status.PASS),
    ],
)
def test_an_lmcache_older_than_this_vllm_needs_fails(lmcache: str, vllm: str, status: Status) -> None:
    assert only("KV153", snapshot(engine(f"{lmcache}/{vllm}"))).status is status


# KV154


def mixed(*versions: str, env: dict[str, str] | None = None) -> Status:
    workers = [engine(version, f"w-{at}", env=env) for at, version in enumerate(versions)]
    return only("KV154", snapshot(*workers)).status


def test_one_version_passes() -> None:
    assert mixed("0.4.3", "0.4.3") is Status.PASS


def test_spellings_of_one_version_pass() -> None:
    assert mixed("0.3.9.post2", "v0.3.9post2") is Status.PASS


@pytest.mark.parametrize("versions", [("0.4.3", "0.4.5"), ("0.4.3/0.19.1", "0.4.3/0.19.2"), ("0.3.9.post2", "0.3.15")])
def test_different_versions_of_one_hash_epoch_warn(versions: tuple[str, str]) -> None:
    assert mixed(*versions) is Status.WARN


@pytest.mark.parametrize("versions", [("0.3.15", "0.4.1"), ("0.3.7", "0.3.9")])
def test_different_hash_epochs_fail(versions: tuple[str, str]) -> None:
    assert mixed(*versions) is Status.FAIL


def test_from_0_4_6_on_only_other_algorithms_than_builtin_change() -> None:
    assert mixed("0.4.5", "0.4.6") is Status.WARN
    assert mixed("0.4.5", "0.4.6", env={"LMCACHE_PRE_CACHING_HASH_ALGORITHM": "sha256_cbor"}) is Status.FAIL


def test_different_models_may_run_different_versions() -> None:
    of = snapshot(engine("0.4.3", model="a"), engine("0.3.15", "w-1", model="b"))
    assert [one.status for one in findings("KV154", of)] == [Status.PASS, Status.PASS]


def test_a_worker_whose_vllm_is_unknown_is_not_another_version() -> None:
    of = snapshot(engine("0.4.7/0.19.1"), engine(name="w-1", image="lmcache/vllm-openai:v0.4.7"))
    assert only("KV154", of).status is Status.PASS


def test_unknown_versions_say_nothing_of_a_rollout() -> None:
    assert only("KV154", snapshot(engine(), engine(name="w-1"))).reason is Reason.VERSION_UNKNOWN


def test_without_workers_there_is_no_rollout() -> None:
    assert only("KV154", snapshot()).reason is Reason.NO_DATA


def test_the_line_names_both_versions() -> None:
    of = snapshot(worker(log=version_text("0.4.3", "0.19.1")))
    assert "LMCache 0.4.3 on 1; vLLM 0.19.1 on 1" in only("KV154", of).message
