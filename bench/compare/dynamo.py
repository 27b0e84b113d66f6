"""Dynamo's HTTP frontend before its own mocker engines: an arm that brings its fleet with it.

The frontend routes to workers that speak Dynamo's own transport, so it cannot stand before engines of the vLLM wire.
Its mocker can be set to the timing model, block size and cache of `kvctl sim`. Discovery is a folder: neither etcd nor
NATS is needed. Starts two child processes.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.proxy import processes
from bench.proxy.routers import free_port

_READY = 90.0


@dataclass(frozen=True, slots=True)
class MockerFleet:
    """The mocker's engines. Without further options its timing is that of `kvctl sim --timing polynomial`."""

    count: int
    model: str
    block_size: int
    num_blocks: int
    tokenizer: Path


@dataclass(slots=True)
class Dynamo:
    """A frontend and its engines."""

    url: str
    children: list[processes.Child]

    def stop(self) -> None:
        for child in self.children:
            child.stop()


def start(python: Path, mode: str, fleet: MockerFleet, folder: Path) -> Dynamo:
    """Starts a frontend of a router mode (kv, round-robin) and its engines.

    Args:
        python: of an environment with ai-dynamo.
        mode: as `dynamo.frontend --router-mode` takes it.
        fleet: the engines.
        folder: for logs, the model folder and the discovery store; the arm's own.

    Raises:
        NotStarted: one of the two ended or did not serve in time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = _model_folder(folder / "model", fleet.tokenizer)
    port = free_port()
    env = {
        "DYN_FILE_KV": str(folder / "store"),
        "DYN_LOG": "warn",
        "HF_HUB_OFFLINE": "1",
        "DYN_SYSTEM_PORT": "-1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    planes = ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
    mocker = [str(python), "-m", "dynamo.mocker", "--model-path", str(model), "--model-name", fleet.model]
    mocker += ["--num-workers", str(fleet.count), "--block-size", str(fleet.block_size)]
    mocker += ["--num-gpu-blocks-override", str(fleet.num_blocks), *planes]
    front = [str(python), "-m", "dynamo.frontend", "--router-mode", mode, "--http-host", "127.0.0.1"]
    front += ["--http-port", str(port), "--kv-cache-block-size", str(fleet.block_size)]
    front += ["--router-min-initial-workers", str(fleet.count), *planes]
    dynamo = Dynamo(f"http://127.0.0.1:{port}", [])
    try:
        for name, command in (("mocker", mocker), ("frontend", front)):
            dynamo.children.append(processes.start(command, None, folder / f"{name}.log", env=env))
        for child in dynamo.children:
            processes.wait_until(lambda: _serves(dynamo.url, fleet.model), _READY, child)
    except processes.NotStarted:
        dynamo.stop()
        raise
    return dynamo


def _serves(url: str, model: str) -> bool:
    try:
        answer = httpx.get(f"{url}/v1/models", timeout=5, trust_env=False)
        return answer.status_code == 200 and any(one["id"] == model for one in answer.json()["data"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False


def _model_folder(folder: Path, tokenizer: Path) -> Path:
    """The tokenizer with the configuration of a small model: the mocker wants one, and computes nothing with it."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in tokenizer.iterdir():
        shutil.copyfile(file, folder / file.name)
    vocabulary = len(json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"])
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": vocabulary,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder
