"""What a container runs, told from its command, arguments and image; the last resort of discovery.

Pure. Facts about other projects' names; extend the tables when a stack renames something.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from enum import StrEnum

from checks.model import Stack
from checks.snapshot import Role


class Program(StrEnum):
    VLLM_ROUTER = "production-stack router"
    KVCTL = "kvctl"
    KVCTL_SIM = "kvctl's simulated engine"
    ENDPOINT_PICKER = "endpoint picker"
    DYNAMO_FRONTEND = "Dynamo frontend"
    DYNAMO_WORKER = "Dynamo worker"
    SGLANG_ROUTER = "SGLang router"
    SGLANG = "SGLang"
    TRTLLM = "TensorRT-LLM"
    LMCACHE_SERVER = "LMCache server"
    VLLM = "vLLM"

    @property
    def role(self) -> Role:
        return _ROLES.get(self, Role.WORKER)


_ROLES = {
    Program.VLLM_ROUTER: Role.ROUTER,
    Program.KVCTL: Role.ROUTER,
    Program.ENDPOINT_PICKER: Role.ROUTER,
    Program.DYNAMO_FRONTEND: Role.ROUTER,
    Program.SGLANG_ROUTER: Role.ROUTER,
    Program.LMCACHE_SERVER: Role.CACHE_SERVER,
}

STACKS = {
    Program.KVCTL: Stack.KVCTL,
    Program.ENDPOINT_PICKER: Stack.LLM_D,
    Program.DYNAMO_FRONTEND: Stack.DYNAMO,
    Program.DYNAMO_WORKER: Stack.DYNAMO,
    Program.VLLM_ROUTER: Stack.PRODUCTION_STACK,
    Program.SGLANG_ROUTER: Stack.SGLANG,
    Program.SGLANG: Stack.SGLANG,
    Program.TRTLLM: Stack.TRTLLM,
}
"""The stack that a program alone stands for, most telling first; vLLM alone tells none."""

_BY_COMMAND = (
    (Program.KVCTL_SIM, r"(?:^|[/ ])kvctl sim\b"),
    (Program.KVCTL, r"(?:^|[/ ])kvctl serve\b"),
    (Program.VLLM_ROUTER, r"--routing-logic\b|(?:^|[/ ])vllm-router\b|\bvllm_router\."),
    (Program.DYNAMO_FRONTEND, r"\bdynamo\.(?:frontend|router)\b"),
    (Program.DYNAMO_WORKER, r"\bdynamo\.(?:vllm|sglang|trtllm|mocker)\b"),
    (Program.SGLANG_ROUTER, r"\bsglang_router\b|(?:^|[/ ])(?:sglang-router|sgl-model-gateway|smg) "),
    (
        Program.LMCACHE_SERVER,
        r"\blmcache_server\b|\blmcache\.(?:v1\.)?(?:server|multiprocess)|(?:^|[/ ])lmcache server\b",
    ),
    (Program.ENDPOINT_PICKER, r"--?pool-?name\b.*--?(?:grpc|config)|(?:^|[/ ])epp(?: |$)"),
    (Program.SGLANG, r"\bsglang\.launch_server\b|(?:^|[/ ])sglang serve\b"),
    (Program.TRTLLM, r"\btrtllm-serve\b|\btensorrt_llm\b|\btritonserver\b"),
    (Program.VLLM, r"(?:^|[/ ])vllm serve\b|\bvllm\.entrypoints\b|--kv-transfer-config\b|--kv-events-config\b"),
)
_BY_IMAGE = (
    (Program.VLLM_ROUTER, r"lmstack-router|vllm-router"),
    (Program.ENDPOINT_PICKER, r"(?:^|/)epp[:@]|endpoint-picker|inference-scheduler|llm-d-router"),
    (Program.DYNAMO_FRONTEND, r"dynamo-frontend"),
    (Program.SGLANG_ROUTER, r"sglang-router|sgl-model-gateway"),
    (Program.LMCACHE_SERVER, r"lmcache/lmcache-server|lmcache/standalone"),
    (Program.SGLANG, r"(?:^|/)sglang[:@]"),
    (Program.TRTLLM, r"tensorrt-?llm|tritonserver"),
    (Program.VLLM, r"(?:^|/)vllm(?:-[a-z]+)*[:@]"),
)
_COMMAND = tuple((program, re.compile(pattern, re.IGNORECASE)) for program, pattern in _BY_COMMAND)
_IMAGE = tuple((program, re.compile(pattern, re.IGNORECASE)) for program, pattern in _BY_IMAGE)


def program(args: Sequence[str], image: str = "", env: Collection[str] = ()) -> Program | None:
    """The program of a container; None where nothing tells. `env` holds names of variables.

    LMCACHE_* variables mark an engine only when nothing else tells: production-stack sets some on its router too.
    """
    line = " ".join(args)[:20_000]
    named = image if ":" in image.rpartition("/")[2] or "@" in image else f"{image}:"
    for text, table in ((line, _COMMAND), (named, _IMAGE)):
        for found, pattern in table:
            if text and pattern.search(text):
                return found
    return Program.VLLM if any(name.startswith("LMCACHE_") for name in env) else None
