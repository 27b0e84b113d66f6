"""A HyperPod manifest as the configuration of `kvctl serve`. The samples are AWS's shapes, shortened."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from kvctl.errors import Problem
from kvctl.hyperpod_config import is_manifest, options_of
from kvctl.options import env, load_config

ROUTING: dict[str, Any] = {
    "apiVersion": "inference.sagemaker.aws.amazon.com/v1",
    "kind": "InferenceEndpointConfig",
    "metadata": {"name": "llama-8b-intel-routing", "namespace": "ns-team-a"},
    "spec": {
        "endpointName": "llama-8b-sme",
        "modelName": "Llama-3.1-8B-Instruct",
        "instanceType": "ml.g5.8xlarge",
        "invocationEndpoint": "v1/chat/completions",
        "intelligentRoutingSpec": {"enabled": True, "routingStrategy": "prefixaware"},
        "kvCacheSpec": {"enableL1Cache": True},
        "worker": {
            "image": "lmcache/vllm-openai:v0.3.7",
            "args": ["/opt/ml/model", "--max-model-len", "4096"],
            "modelInvocationPort": {"containerPort": 8000, "name": "http"},
        },
        "loadBalancer": {"healthCheckPath": "/health"},
    },
}
L2_SPEC = {"l2CacheBackend": "redis", "l2CacheLocalUrl": "redis://redis.ns-team-a.svc.cluster.local:6379"}


def sample(**parts: Any) -> dict[str, Any]:
    """The routing sample with parts of its spec replaced; None takes one out."""
    manifest = copy.deepcopy(ROUTING)
    for name, part in parts.items():
        manifest["spec"][name] = part
        if part is None:
            del manifest["spec"][name]
    return manifest


def options(**parts: Any) -> dict[str, Any]:
    return options_of(sample(**parts), "m.yaml").options


def notes(**parts: Any) -> str:
    return "\n".join(options_of(sample(**parts), "m.yaml").notes)


def worker(**parts: Any) -> dict[str, Any]:
    return ROUTING["spec"]["worker"] | parts


def test_the_routing_sample_gives_mode_and_port() -> None:
    assert options() == {"router-mode": "prefixaware", "port": 8000}


@pytest.mark.parametrize("strategy", ["prefixaware", "kvaware", "session", "roundrobin"])
def test_each_strategy_is_the_mode_of_its_name(strategy: str) -> None:
    assert options(intelligentRoutingSpec={"enabled": True, "routingStrategy": strategy})["router-mode"] == strategy


def test_without_a_strategy_it_is_the_crds_default() -> None:
    assert options(intelligentRoutingSpec={"enabled": True})["router-mode"] == "prefixaware"


@pytest.mark.parametrize("routing", [None, {}, {"enabled": False, "routingStrategy": "kvaware"}])
def test_routing_that_is_not_enabled_chooses_no_mode_and_says_so(routing: dict[str, Any] | None) -> None:
    assert "router-mode" not in options(intelligentRoutingSpec=routing)
    assert "chooses no router mode" in notes(intelligentRoutingSpec=routing)


def test_a_redis_l2_is_the_shared_cache_and_its_keys_are_named() -> None:
    caches = {"enableL2Cache": True, "l2CacheSpec": L2_SPEC}
    assert options(kvCacheSpec=caches)["shared-cache"] == "redis://redis.ns-team-a.svc.cluster.local:6379"
    assert "--lmcache-controller tells of those" in notes(kvCacheSpec=caches)


def test_tiered_storage_is_known_by_events_only_and_that_is_named() -> None:
    caches = {"enableL2Cache": True, "l2CacheSpec": {"l2CacheBackend": "TieredStorage"}}
    assert options(kvCacheSpec=caches)["shared-cache"] == "events"
    assert "tieredstorage cannot be asked" in notes(kvCacheSpec=caches)


@pytest.mark.parametrize("caches", [{"l2CacheSpec": L2_SPEC}, {"enableL2Cache": False, "l2CacheSpec": L2_SPEC}])
def test_an_l2_that_is_not_enabled_is_not_used(caches: dict[str, Any]) -> None:
    assert "shared-cache" not in options(kvCacheSpec=caches)
    assert "enableL2Cache is not true" in notes(kvCacheSpec=caches)


def test_an_l2_without_its_spec_is_named() -> None:
    assert "has no l2CacheSpec" in notes(kvCacheSpec={"enableL2Cache": True})


def test_no_l1_makes_host_blocks_worth_nothing() -> None:
    assert options(kvCacheSpec={"enableL1Cache": False})["host-cache-hit-weight"] == 0.0
    assert "host-cache-hit-weight" not in options(kvCacheSpec={})


def test_the_samples_default_metrics_port_is_named_as_another_than_the_invocation_port() -> None:
    assert (
        "metrics.modelMetrics.port 8080 (the default) is not worker.modelInvocationPort.containerPort 8000" in notes()
    )


def test_equal_ports_need_no_word() -> None:
    assert "modelMetrics" not in notes(metrics={"enabled": True, "modelMetrics": {"port": 8000}})


def test_another_metrics_port_is_named_with_its_number() -> None:
    assert "port 9000 is not" in notes(metrics={"modelMetrics": {"port": 9000}})


@pytest.mark.parametrize(
    "args",
    [["--served-model-name", "llama"], ["--served-model-name=llama"], ["m", "--served-model-name", "llama", "alias"]],
)
def test_the_served_name_in_the_workers_arguments_is_the_model(args: list[str]) -> None:
    assert options(worker=worker(args=args))["model"] == "llama"


def test_sagemakers_model_name_is_not_the_served_one_and_that_is_named() -> None:
    assert "model" not in options()
    assert "modelName is SageMaker's name" in notes()


def test_an_invocation_path_that_is_not_read_is_named() -> None:
    assert "invocationEndpoint invocations: requests to it are passed on unread" in notes(invocationEndpoint=None)
    assert "passed on unread" not in notes(invocationEndpoint="/v1/completions")


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"replicas": 7}, "not for a router: endpointName, instanceType, loadBalancer, replicas"),
        ({"kvCacheSpec": {"cacheConfigFile": "/x.yaml"}}, "kvCacheSpec.cacheConfigFile is LMCache's own"),
        ({"kvCacheSpec": {"enableL3Cache": True}}, "kvCacheSpec.enableL3Cache is not known here"),
        ({"metrics": {"enabled": False}}, "metrics.enabled is false"),
        ({"metrics": {"modelMetrics": {"port": 8000, "path": "/m"}}}, "metrics.modelMetrics.path /m"),
        ({"intelligentRoutingSpec": {"enabled": True, "autoScalingSpec": {}}}, "kvctl does not scale itself"),
        ({"intelligentRoutingSpec": {"enabled": True, "routingStrategy": "session"}}, "--session-key names another"),
        ({}, "add the workers with --worker or --workers-file"),
    ],
)
def test_what_cannot_be_honoured_is_named_in_a_line(parts: dict[str, Any], named: str) -> None:
    assert [line for line in notes(**parts).splitlines() if named in line]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"intelligentRoutingSpec": {"enabled": "yes"}}, "intelligentRoutingSpec.enabled must be true or false"),
        (
            {"intelligentRoutingSpec": {"enabled": True, "routingStrategy": "${ROUTING_STRATEGY}"}},
            "routingStrategy must be one of prefixaware, kvaware, session, roundrobin",
        ),
        ({"kvCacheSpec": ["enableL1Cache"]}, "spec.kvCacheSpec must be a mapping"),
        (
            {"kvCacheSpec": {"enableL2Cache": True, "l2CacheSpec": {"l2CacheBackend": "redis/sagemaker"}}},
            "l2CacheBackend must be redis or tieredstorage, not 'redis/sagemaker'",
        ),
        (
            {"kvCacheSpec": {"enableL2Cache": True, "l2CacheSpec": {"l2CacheBackend": "redis"}}},
            "l2CacheLocalUrl is missing",
        ),
        (
            {
                "kvCacheSpec": {
                    "enableL2Cache": True,
                    "l2CacheSpec": {"l2CacheBackend": "redis", "l2CacheLocalUrl": "<PLACEHOLDER_L2_CACHE_LOCAL_URL>"},
                }
            },
            "l2CacheLocalUrl is not a Redis address",
        ),
        ({"worker": {"modelInvocationPort": {"containerPort": "8000"}}}, "containerPort must be a port"),
        ({"worker": {"modelInvocationPort": {"containerPort": 80000}}}, "containerPort must be a port"),
        ({"worker": {"args": "--served-model-name x"}}, "spec.worker.args must be a list"),
        ({"metrics": {"modelMetrics": {"port": True}}}, "spec.metrics.modelMetrics.port must be a port"),
        ({"invocationEndpoint": 5}, "spec.invocationEndpoint must be a string, not 5"),
    ],
)
def test_a_wrong_field_is_refused_in_a_line_that_names_it(parts: dict[str, Any], said: str) -> None:
    with pytest.raises(Problem) as problem:
        options(**parts)
    assert said in str(problem.value)
    assert str(problem.value).startswith("m.yaml: ")
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("change", [{"kind": "Deployment"}, {"kind": None}, {"spec": None}, {"spec": []}])
def test_a_manifest_of_another_kind_or_without_a_spec_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Problem, match=r"m\.yaml: (kind|spec) "):
        options_of(ROUTING | change, "m.yaml")


def test_only_hyperpods_own_api_group_is_a_manifest() -> None:
    assert is_manifest(ROUTING)
    assert not is_manifest({"apiVersion": "apps/v1", "kind": "Deployment"})
    assert not is_manifest({"router-mode": "kv"})
    assert not is_manifest([ROUTING])


# -- through the command line -------------------------------------------------------------------------------------


def app(name: str) -> typer.Typer:
    """A command with the options that a manifest sets, which shows what they became."""
    made = typer.Typer()
    made.callback()(lambda: None)

    @made.command(name)
    def command(
        router_mode: Annotated[str, typer.Option("--router-mode", envvar=env("router-mode"))] = "kv",
        port: Annotated[int, typer.Option("--port", envvar=env("port"))] = 1,
        shared_cache: Annotated[str | None, typer.Option("--shared-cache")] = None,
        host_cache_hit_weight: Annotated[float, typer.Option("--host-cache-hit-weight")] = 0.75,
        model: Annotated[str | None, typer.Option("--model")] = None,
        config: Annotated[Path | None, typer.Option("--config", is_eager=True, callback=load_config)] = None,
    ) -> None:
        typer.echo(f"{router_mode} {port} {shared_cache} {host_cache_hit_weight} {model}")

    return made


def shown(file: Path, *arguments: str, name: str = "serve", **environment: str) -> tuple[str, str]:
    call = [name, "--config", str(file), *arguments]
    result = CliRunner().invoke(app(name), call, env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout.strip(), result.stderr


def test_a_manifest_sets_the_options_and_the_rest_stands_on_stderr_a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "endpoint.yaml"
    file.write_text(yaml.safe_dump(sample(kvCacheSpec={"enableL1Cache": False, "enableL2Cache": True})))
    out, err = shown(file)
    assert out == "prefixaware 8000 None 0.0 None"
    assert all(line.startswith(f"{file}: ") for line in err.splitlines())
    assert "HyperPod wants them equal" in err


def test_a_flag_beats_the_environment_which_beats_the_manifest(tmp_path: Path) -> None:
    file = tmp_path / "endpoint.yaml"
    file.write_text(yaml.safe_dump(ROUTING))
    assert shown(file, KVCTL_ROUTER_MODE="session")[0].startswith("session 8000")
    assert shown(file, "--router-mode", "random", KVCTL_ROUTER_MODE="session")[0].startswith("random 8000")


def test_a_manifest_among_other_objects_is_found(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}
    file.write_text(yaml.safe_dump_all([service, ROUTING]))
    assert shown(file)[0].startswith("prefixaware 8000")


def test_two_manifests_in_a_file_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(yaml.safe_dump_all([ROUTING, ROUTING]))
    with pytest.raises(Problem, match="several YAML documents: expected one"):
        shown(file)


def test_a_manifest_is_for_serve_only(tmp_path: Path) -> None:
    file = tmp_path / "endpoint.yaml"
    file.write_text(yaml.safe_dump(ROUTING))
    with pytest.raises(Problem, match="a configuration of `kvctl serve`, not of `kvctl bench`"):
        shown(file, name="bench")


def test_the_options_that_a_manifest_sets_are_those_of_serve() -> None:
    from kvctl.options import parameter_key
    from kvctl.serve import serve

    made = typer.Typer()
    made.command("serve")(serve)
    known = {parameter_key(param) for param in typer.main.get_command(made).params}
    caches = {"enableL1Cache": False, "enableL2Cache": True, "l2CacheSpec": L2_SPEC}
    taken = options(kvCacheSpec=caches, worker=worker(args=["--served-model-name", "llama"]))
    assert set(taken) == {"router-mode", "port", "shared-cache", "host-cache-hit-weight", "model"}
    assert set(taken) <= known
