"""The log of one simulated worker: what a vLLM with LMCache of the imitated release writes at INFO.

Words only; every number comes from the worker's own settings, cache and requests. What a release does not write is
left out (first and last releases: the published wheels). Cost: some string formatting a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.sim.lines import Lines
from bench.sim.lmcache import KV_SHAPE, L1_GIB, Lookup, Transfer
from bench.sim.styles import CHUNK, Style

MLA = "remote_mla_worker_id_as_0 mode: False"
GIB = 1024**3
REFUSED = "[Errno 111] Connection refused"
TIMED_OUT = "Resource temporarily unavailable"

_ADAPTER = "vllm_v1_adapter.py:{}:lmcache.integration.vllm.vllm_v1_adapter"
_WORKER = "worker.py:{}:lmcache.v1.cache_controller.worker"
_ENGINE = "cache_engine.py:{}:lmcache.v1.cache_engine"
_MANAGER = "manager.py:{}:lmcache.v1.manager"
_TOKENS = "token_database.py:{}:lmcache.v1.token_database"
_REMOTE = "remote_backend.py:{}:lmcache.v1.storage_backend.remote_backend"
_HEALTH = "base.py:{}:lmcache.v1.health_monitor.base"
_PING = "remote_backend_check.py:{}:lmcache.v1.health_monitor.checks.remote_backend_check"


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What the start-up lines tell. Times in seconds; the port is the one that the controller talks back to."""

    model: str
    instance: str
    worker_port: int
    none_hash: int
    remote_url: str
    pull_url: str
    reply_url: str
    heartbeat_url: str
    heartbeat_delay: float
    heartbeat_time: float
    ping_interval: float
    receive_timeout: float
    block_size: int
    num_blocks: int
    max_model_len: int
    init_fails: bool = False


@dataclass(frozen=True, slots=True)
class PeriodicStats:
    """vLLM's periodic line: tokens a second, requests, percent; a rate is None while nothing was looked up."""

    prompt: float
    generation: float
    running: int
    waiting: int
    usage: float
    prefix_hit_rate: float | None
    external_hit_rate: float | None


class WorkerLog:
    """Writes the records of one worker; an `Observer` of its cache."""

    def __init__(self, lines: Lines, facts: WorkerFacts) -> None:
        self._lines = lines
        self._facts = facts
        self._style = lines.style
        no_gpu = facts.init_fails and lines.style.failure_is_missing_device
        self._device = "CPU" if no_gpu else "GPU"

    def began(self) -> None:
        """vLLM's first lines, up to where it makes the connector of the worker role."""
        facts, style = self._facts, self._style
        vllm = self._lines.vllm
        banner = f"\n  vLLM (simulated by kvctl)\n  version {style.vllm_text}\n  model   {facts.model}\n"
        vllm(banner, "api_utils.py:347", process="APIServer")
        arguments: Mapping[str, object] = {
            "model": facts.model,
            "max_model_len": facts.max_model_len,
            "block_size": facts.block_size,
            "kv_transfer_config": "KVTransferConfig(kv_connector='LMCacheConnectorV1', kv_role='kv_both')",
        }
        vllm(f"non-default args: {arguments}", "api_utils.py:286", process="APIServer")
        vllm(f"Initializing a V1 LLM engine (v{style.vllm_text}) with config: model='{facts.model}'", "core.py:133")
        tokens = facts.num_blocks * facts.block_size
        vllm(f"{self._device} KV cache size: {tokens:,} tokens", "kv_cache_utils.py:2327")

    def initialized(self) -> None:
        """A start-up that went well, up to the moment when the worker asks the controller to register it."""
        facts, lmcache = self._facts, self._lines.lmcache
        self._connector()
        self._configuration()
        self._engine()
        lmcache("INFO", f"Reply socket established at *:{facts.worker_port}", _WORKER.format(161))
        worker = (facts.instance, 0)
        lmcache("INFO", f"Registering lmcache instance-worker: {worker}", _WORKER.format(190))

    def started(self, url: str) -> None:
        """The rest of that start-up, which does not wait for the controller's answer; then it serves at `url`."""
        lmcache = self._lines.lmcache
        self._role("WORKER", self._metadata())
        lmcache("INFO", "Registering KV caches", _ADAPTER.format(732))
        lmcache("INFO", "Post initializing LMCacheEngine", _ENGINE.format(283))
        remote = f"Connected to remote storage at {self._facts.remote_url}, {MLA}"
        lmcache("INFO", remote, _REMOTE.format(71))
        self._health_monitor()
        if self._style.aws:
            self._lines.plain("INFO", "LMCacheManager initialized successfully")
        self._scheduler()
        self._serving(url)

    def failed_to_initialize(self, url: str) -> None:
        """A start-up whose worker role fails; the scheduler role does not notice, and the server starts."""
        lmcache = self._lines.lmcache
        self._connector()
        self._configuration()
        if not self._style.failure_is_missing_device:
            self._engine()
        end = ". System will operate in degraded mode (recompute)."
        head = "Failed to initialize LMCacheManager components: "
        lmcache("ERROR", head + _failure(self._style) + end, _MANAGER.format(107))
        self._role("WORKER", "None")
        lmcache("INFO", "Registering KV caches", _ADAPTER.format(732))
        lmcache("WARNING", "Skipping post_init due to previous initialization failure", _MANAGER.format(189))
        self._scheduler()
        self._serving(url)

    def registered(self) -> None:
        facts, lmcache = self._facts, self._lines.lmcache
        lmcache("INFO", f"Received heartbeat_url from controller: {facts.heartbeat_url}", _WORKER.format(223))
        self._heartbeat_socket()
        start = f"Starting lmcache worker 0for instance {facts.instance}"
        lmcache("INFO", start, _WORKER.format(623))

    def registration_failed(self) -> None:
        lmcache = self._lines.lmcache
        lmcache("ERROR", f"Failed to register with controller: {TIMED_OUT}", _WORKER.format(214))
        lmcache("ERROR", f"Instance {self._facts.instance}, worker 0 error: {TIMED_OUT}", _WORKER.format(633))

    def heartbeat_begins(self) -> None:
        facts = self._facts
        times = f"delay time: {facts.heartbeat_delay:g}s, heartbeat time: {facts.heartbeat_time:g}s"
        self._lines.lmcache("INFO", f"Start heartbeat in {facts.instance} : 0, {times}", _WORKER.format(433))

    def heartbeat_sent(self) -> None:
        self._lines.lmcache("INFO", "Sending heartbeat message to controller...", _WORKER.format(386))
        self._lines.lmcache("INFO", "Heartbeat message sent, waiting for response...", _WORKER.format(390))

    def heartbeat_answered(self) -> None:
        self._lines.lmcache("INFO", "Received heartbeat response with 2 frames", _WORKER.format(392))

    def heartbeat_timed_out(self) -> None:
        text = f"Heartbeat timeout occurred, recreating socket. Error: {TIMED_OUT}"
        self._lines.lmcache("ERROR", text, _WORKER.format(398))
        self._heartbeat_socket()

    def ping_failed(self) -> None:
        self._lines.lmcache("ERROR", f"Ping error: {REFUSED}", _PING.format(258))
        check = f"RemoteBackendHealthCheck({self._facts.remote_url})"
        self._lines.lmcache("WARNING", f"Health check failed: {check}", _HEALTH.format(485))

    def looked_up(self, lookup: Lookup) -> None:
        text = (
            f"Reqid: {lookup.request}, Total tokens {lookup.total}, Inference Engine computed tokens:"
            f" {lookup.computed}, LMCache hit tokens: {lookup.hit}, need to load: {lookup.load}"
        )
        self._lines.lmcache("INFO", text, _ADAPTER.format(1304))

    def retrieved(self, transfer: Transfer) -> None:
        speed = _speed(transfer)
        text = (
            f"Retrieved {transfer.tokens} out of {transfer.asked} required tokens (from {transfer.total} total tokens)."
            f" size: {transfer.size / GIB:.4f} gb, cost {transfer.seconds * 1000:.4f} ms, throughput: {speed:.4f} GB/s;"
        )
        self._lines.lmcache("INFO", self._of_request(transfer) + text, _ENGINE.format(985))

    def stored(self, transfer: Transfer) -> None:
        cost = transfer.seconds * 1000
        text = (
            f"Stored {transfer.tokens} out of total {transfer.asked} tokens. size: {transfer.size / GIB:.4f} GB,"
            f" cost {cost:.4f} ms, throughput: {_speed(transfer):.4f} GB/s;"
            f" offload_time: {cost:.4f} ms, put_time: {0:.4f} ms"
        )
        self._lines.lmcache("INFO", self._of_request(transfer) + text, _ENGINE.format(588))

    def contains_failed(self) -> None:
        self._lines.lmcache("WARNING", f"Remote connection failed in contains: {REFUSED}", _REMOTE.format(160))
        self._lines.lmcache("WARNING", "Returning False", _REMOTE.format(161))

    def put_failed(self, key: int) -> None:
        if not self._style.names_request_in_store:
            return
        name = f"{self._facts.model}@1@0@{key:x}@bfloat16"
        self._lines.lmcache("ERROR", f"Put task failed for key {name}: {REFUSED}", _REMOTE.format(196))

    def periodic(self, stats: PeriodicStats) -> None:
        text = (
            f"Engine 000: Avg prompt throughput: {stats.prompt:.1f} tokens/s, Avg generation throughput:"
            f" {stats.generation:.1f} tokens/s, Running: {stats.running} reqs, Waiting: {stats.waiting} reqs,"
            f" {self._device} KV cache usage: {stats.usage:.1f}%"
        )
        if stats.prefix_hit_rate is not None:
            text += f", Prefix cache hit rate: {stats.prefix_hit_rate:.1f}%"
        if stats.external_hit_rate is not None:
            text += f", External prefix cache hit rate: {stats.external_hit_rate:.1f}%"
        self._lines.vllm(text, "loggers.py:335", process="APIServer")

    def _connector(self) -> None:
        vllm = self._lines.vllm
        vllm(
            f"Creating v1 connector with name: LMCacheConnectorV1 and engine_id: {self._facts.instance}",
            "factory.py:62",
        )
        vllm("Initializing latest dev LMCache connector", "lmcache_connector.py:100")

    def _settings(self) -> dict[str, object]:
        facts = self._facts
        return {
            "chunk_size": CHUNK,
            "local_cpu": True,
            "max_local_cpu_size": f"{L1_GIB} GB",
            "remote_url": facts.remote_url,
            "save_decode_cache": False,
            "pre_caching_hash_algorithm": "builtin",
            "enable_controller": True,
            "lmcache_instance_id": facts.instance,
            "controller_pull_url": facts.pull_url,
            "controller_reply_url": facts.reply_url,
            "lmcache_worker_ports": self._ports(),
            "lmcache_worker_heartbeat_delay_time": facts.heartbeat_delay,
            "lmcache_worker_heartbeat_time": facts.heartbeat_time,
            "save_unfull_chunk": False,
            "extra_config": {
                "ping_interval": facts.ping_interval,
                "worker_socket_recv_timeout_ms": int(facts.receive_timeout * 1000),
            },
        }

    def _ports(self) -> list[int]:
        """The configured worker ports; releases that can start without a GPU fail where there is none."""
        missing = self._facts.init_fails and not self._style.failure_is_missing_device
        return [] if missing else [self._facts.worker_port]

    def _configuration(self) -> None:
        text = f"LMCache Configuration: {self._settings()}"
        self._lines.lmcache("INFO", text, "config.py:611:lmcache.v1.config")
        layers, _, _, heads, size = KV_SHAPE
        text = (
            f"num_layer: {layers}, chunk_size: {CHUNK}, num_kv_head (per gpu): {heads}, head_size: {size},"
            f" hidden_dim (D) for KV (per gpu): {heads * size}, use mla: False, kv shape: {KV_SHAPE},"
            " num_draft_layers: 0"
        )
        place = "vllm_service_factory.py:111:lmcache.integration.vllm.vllm_service_factory"
        self._lines.lmcache("INFO", text, place if self._style.failure_is_traceback else _MANAGER.format(275))

    def _engine(self) -> None:
        lmcache = self._lines.lmcache
        lmcache("INFO", "Creating LMCacheEngine instance vllm-instance", _ENGINE.format(1950))
        self._hashing()
        lmcache("INFO", f"Creating LMCacheEngine with config: {self._settings()}", _ENGINE.format(104))

    def _hashing(self) -> None:
        lmcache = self._lines.lmcache
        warning = "Could not load 'builtin' from vLLM. Using builtin hash."
        warning += " This may cause inconsistencies in distributed caching."
        lmcache("WARNING", warning, _TOKENS.format(162))
        text = f"Initialized NONE_HASH={self._facts.none_hash} from vLLM (>= PR#20511)"
        lmcache("INFO", text, _TOKENS.format(100))
        lmcache("INFO", "Using hash algorithm: builtin", _TOKENS.format(110))

    def _role(self, role: str, metadata: str) -> None:
        versions = f"version {self._style.lmcache_build}, vllm version {self._style.vllm_text}"
        text = f"LMCache initialized for role KVConnectorRole.{role} with {versions}"
        text += f", lmcache cache_engine metadata: {metadata}"
        self._lines.lmcache("INFO", text, _ADAPTER.format(485))

    def _metadata(self) -> str:
        return (
            f"LMCacheMetadata(model_name='{self._facts.model}', world_size=1, worker_id=0, kv_dtype=torch.bfloat16,"
            f" kv_shape={KV_SHAPE}, use_mla=False, role='worker', chunk_size={CHUNK})"
        )

    def _health_monitor(self) -> None:
        old = self._style.health_monitor_names_role
        text = "Health monitor initialized and started" + (" at manager level (role=worker)" if old else "")
        place = _MANAGER.format(234) if old else "base_service_factory.py:126:lmcache.integration.base_service_factory"
        self._lines.lmcache("INFO", text, place)

    def _scheduler(self) -> None:
        self._connector()
        self._hashing()
        self._role("SCHEDULER", "None")

    def _serving(self, url: str) -> None:
        vllm = self._lines.vllm
        vllm(f"Starting vLLM server on {url}", "entry.py:140", process="APIServer")
        self._lines.http("INFO", "    Application startup complete.")

    def _heartbeat_socket(self) -> None:
        milliseconds = int(self._facts.receive_timeout * 1000)
        text = f"Creating heartbeat socket to connect to: {self._facts.heartbeat_url}, recv_timeout: {milliseconds}ms"
        self._lines.lmcache("INFO", f"{text}, send_timeout: {milliseconds}ms", _WORKER.format(308))

    def _of_request(self, transfer: Transfer) -> str:
        return f"[req_id={transfer.request}] " if self._style.names_request_in_store else ""


def _speed(transfer: Transfer) -> float:
    return transfer.size / transfer.seconds / GIB if transfer.seconds else 0.0


def _failure(style: Style) -> str:
    """Why the worker role fails: no port for the controller to talk to, which these releases assert without a word,
    or, in newer ones, no connector for the device.
    """
    if not style.failure_is_traceback:
        return ""
    packages = ".../site-packages/lmcache/"
    if style.failure_is_missing_device:
        error = "RuntimeError: No supported cpu connector found."
        frames = (
            ("v1/manager.py", 94, "__init__"),
            ("integration/vllm/vllm_service_factory.py", 203, "get_or_create_lmcache_engine"),
            ("v1/gpu_connector/__init__.py", 247, "CreateGPUConnector"),
        )
    else:
        error = "AssertionError"
        frames = (
            ("v1/manager.py", 94, "__init__"),
            ("v1/cache_engine.py", 143, "__init__"),
            ("v1/cache_controller/worker.py", 134, "__init__"),
        )
    trace = "".join(f'  File "{packages}{file}", line {line}, in {name}\n' for file, line, name in frames)
    return f"Traceback (most recent call last):\n{trace}{error}\n"
