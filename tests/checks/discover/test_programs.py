"""What a container runs."""

from __future__ import annotations

import pytest

from checks.discover.programs import Program, program
from checks.snapshot import Role


@pytest.mark.parametrize(
    ("args", "image", "expected"),
    [
        (["--host", "0.0.0.0", "--routing-logic", "kvaware"], "lmcache/lmstack-router:latest", Program.VLLM_ROUTER),
        (["vllm-router", "--port", "8001"], "x:1", Program.VLLM_ROUTER),
        (["vllm", "serve", "m"], "x:1", Program.VLLM),
        (["/bin/sh", "-c", "vllm", "serve", "m"], "x:1", Program.VLLM),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], "x:1", Program.VLLM),
        ([], "vllm/vllm-openai:v0.19.1", Program.VLLM),
        ([], "registry:5000/lmcache/vllm-openai@sha256:ab", Program.VLLM),
        (["kvctl", "serve", "--sim", "2"], "x:1", Program.KVCTL),
        (["/usr/bin/kvctl", "sim", "--port", "1"], "x:1", Program.KVCTL_SIM),
        (["python", "-m", "dynamo.frontend"], "x:1", Program.DYNAMO_FRONTEND),
        (["python3", "-m", "dynamo.vllm", "--kv-transfer-config", "{}"], "x:1", Program.DYNAMO_WORKER),
        (["python3", "-m", "sglang.launch_server"], "lmsysorg/sglang:v0.5", Program.SGLANG),
        (["python3", "-m", "sglang_router.launch_router"], "x:1", Program.SGLANG_ROUTER),
        (["trtllm-serve", "m"], "nvcr.io/nvidia/tensorrt-llm/release:1", Program.TRTLLM),
        (
            ["--pool-name", "p", "--grpc-port", "9002"],
            "ghcr.io/llm-d/llm-d-inference-scheduler:v0.3",
            Program.ENDPOINT_PICKER,
        ),
        ([], "registry.k8s.io/gateway-api-inference-extension/epp:v1", Program.ENDPOINT_PICKER),
        (["lmcache_server", "0.0.0.0", "8080"], "lmcache/lmcache-server:1", Program.LMCACHE_SERVER),
        (["nginx"], "nginx:1", None),
        (["--model", "serve"], "python:3.12", None),
    ],
)
def test_program(args: list[str], image: str, expected: Program | None) -> None:
    assert program(args, image) is expected


def test_lmcache_variables_alone_mark_an_engine() -> None:
    assert program(["run"], "x:1", ["LMCACHE_CHUNK_SIZE"]) is Program.VLLM


def test_lmcache_variables_do_not_make_a_router_an_engine() -> None:
    assert program(["--routing-logic", "kvaware"], "x:1", ["LMCACHE_LOG_LEVEL"]) is Program.VLLM_ROUTER


def test_every_program_has_a_role() -> None:
    assert {one.role for one in Program} == {Role.ROUTER, Role.WORKER, Role.CACHE_SERVER}
