"""Real vLLM engines on a CPU as child processes: start, wait until ready, kill -9, start again at the same address.

An engine takes 40 to 100 s to start and about 3.1 GB. Each is a process group of its own, so that killing it takes its
children too. Only loopback addresses. The log of an engine is a file, and its end is part of every error raised here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = Path(os.environ.get("KVCTL_REAL_ENV", str(ROOT / ".venv-vllm")))
MODELS = Path(os.environ.get("KVCTL_REAL_MODELS", str(ROOT / ".real" / "models")))
LOGS = ROOT / ".real" / "logs"
BLOCK_SIZE = 32
"""Attention on CPUs wants a multiple of 32."""
START_TIMEOUT = 400.0

ENGINE_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}


def missing() -> str | None:
    """What keeps the real tests from running, or None."""
    if not (ENVIRONMENT / ".kvctl-complete").is_file():
        return f"no vLLM environment at {ENVIRONMENT}: run make test-real"
    if not (MODELS / "tiny" / "config.json").is_file():
        return f"no model folders at {MODELS}: run make test-real"
    return None


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class EngineFailed(RuntimeError):
    """An engine ended, or did not begin to serve in time. The message ends with the tail of its log."""


@dataclass(slots=True)
class Engine:
    """One `vllm serve`. `blocks` is its KV cache in blocks; few of them provoke evictions."""

    name: str
    model: str
    blocks: int = 2048
    max_model_len: int = 8192
    port: int = 0
    kv_port: int = 0
    replay_port: int = 0
    extra: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.port, self.kv_port, self.replay_port = free_ports(3)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def kv_endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.kv_port}"

    @property
    def replay_endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.replay_port}"

    @property
    def log(self) -> Path:
        return LOGS / f"{self.name}.log"

    def command(self) -> list[str]:
        # vLLM binds its PUB socket only where the address has a "*" (or is ipc); tcp://127.0.0.1:... would connect.
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.kv_port}",
            "replay_endpoint": f"tcp://*:{self.replay_port}",
            "topic": "kv",
        }
        return [
            str(ENVIRONMENT / "bin" / "vllm"),
            "serve",
            str(MODELS / self.model),
            *("--served-model-name", self.model),
            *("--load-format", "dummy"),
            "--enforce-eager",
            *("--max-model-len", str(self.max_model_len)),
            *("--host", "127.0.0.1"),
            *("--port", str(self.port)),
            *("--block-size", str(BLOCK_SIZE)),
            *("--num-gpu-blocks-override", str(self.blocks)),
            "--enable-prompt-tokens-details",
            *("--kv-events-config", json.dumps(events)),
            *self.extra,
        ]

    def start(self) -> None:
        """Starts the process and returns at once; the log goes on in the same file after a restart."""
        LOGS.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **ENGINE_ENV, **self.env}
        environment["PATH"] = f"{ENVIRONMENT / 'bin'}:{environment.get('PATH', '')}"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                cwd=MODELS,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Returns when `/health` answers 200."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process is None or self.process.poll() is not None:
                raise EngineFailed(f"{self.name} ended while starting\n{self.log_tail()}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health", timeout=5.0).status_code == 200:
                    return
            time.sleep(0.5)
        raise EngineFailed(f"{self.name} does not serve after {timeout:.0f} s\n{self.log_tail()}")

    def kill(self) -> None:
        """kill -9 of the whole process group; returns when it is gone."""
        self._signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
            self.process = None

    def stop(self, patience: float = 20.0) -> None:
        """Asks the engine to end, and kills what is left of its group."""
        if self.process is None:
            return
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.kill()

    def reset_cache(self) -> None:
        """Empties the prefix cache of an idle engine and makes it say so on the wire.

        vLLM answers 200 whether it did or not, and publishes AllBlocksCleared only with the next scheduler step.
        """
        answer = httpx.post(f"{self.url}/reset_prefix_cache", timeout=30.0).raise_for_status()
        if answer.json() != {"success": True}:
            raise EngineFailed(f"{self.name} did not empty its cache: {answer.text}")
        step = {"model": self.model, "prompt": [5], "max_tokens": 1}
        httpx.post(f"{self.url}/v1/completions", json=step, timeout=30.0).raise_for_status()

    def log_tail(self, lines: int = 40) -> str:
        if not self.log.is_file():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


def with_lmcache(name: str) -> Engine:
    """An engine with LMCache's connector. LMCache has none for a CPU: it serves, and LMCache starts degraded."""
    LOGS.mkdir(parents=True, exist_ok=True)
    config = LOGS / "lmcache.yaml"
    config.write_text("chunk_size: 64\nlocal_cpu: true\nmax_local_cpu_size: 1.0\n")
    connector = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    extra = ("--kv-transfer-config", json.dumps(connector))
    return Engine(name, "tiny", extra=extra, env={"LMCACHE_CONFIG_FILE": str(config)})


def start_all(engines: Sequence[Engine]) -> None:
    """Starts engines side by side; leaves none behind when one fails."""
    try:
        for each in engines:
            each.start()
        for each in engines:
            each.wait_ready()
    except BaseException:
        for each in engines:
            each.kill()
        raise
