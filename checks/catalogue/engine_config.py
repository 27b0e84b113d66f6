"""KV140 to KV144: the engine and its cache: vLLM, connector, prefix caching, lengths, hybrid models.

Pure functions of a snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from checks.evidence import args, env, image, shown
from checks.hyperpod import endpoints
from checks.model import (
    CONTROLLER_STACKS,
    Check,
    Evidence,
    Finding,
    Group,
    Reason,
    Stack,
    Status,
    failed,
    passed,
    skipped,
    warned,
)
from checks.serving import (
    MP_CONNECTOR,
    Transfer,
    arguments_known,
    block_tokens,
    chunk_tokens,
    max_model_len,
    model_argument,
    printed_argument,
    transfer,
)
from checks.snapshot import Member, Snapshot

_OTHER_ENGINES = re.compile(r"sglang|tensorrt|trtllm|triton|text-generation-inference|\btgi\b|huggingface-tgi", re.I)
_HYBRID = re.compile(
    r"mamba|jamba|bamba|zamba|falcon[-_.]?h1|nemotron[-_.]?h|granitemoehybrid|granite-4|qwen3[-_.]?next|qwen3[-_.]5"
    r"|minimax(text01|m1|-text-01|-m1)|lfm2|plamo2|kimi[-_.]?linear|rwkv|ring[-_.]?linear|bailingmoelinear",
    re.I,
)
_ONE_SIDED = frozenset({"kv_producer", "kv_consumer"})


def engine_is_vllm(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.strategy and not any(endpoint.routed for endpoint in endpoints(snapshot)):
        yield skipped(Reason.NOT_APPLICABLE, "routing is not enabled")
        return
    if not snapshot.workers:
        yield skipped(Reason.NO_DATA, "no worker was found")
    for worker in snapshot.workers:
        yield _engine(snapshot, worker)


def _engine(snapshot: Snapshot, worker: Member) -> Finding:
    rolling = worker.env("OPTION_ROLLING_BATCH") or ""
    ran = worker.log is not None and worker.log.has("vllm-version", "vllm-args", "lmcache-initialized")
    command = " ".join(worker.container.args[:3]).lower()
    if ran or snapshot.metrics.has(("cache_config_info", "prefix_cache_queries"), worker.key):
        return passed("the engine is vLLM, by its own words", worker.target, image(worker))
    if _OTHER_ENGINES.search(worker.container.image) or _OTHER_ENGINES.search(command):
        message = "the engine is not vLLM: HyperPod's caching and routing support only vLLM containers"
        return failed(message, worker.target, image(worker))
    if "vllm" in worker.container.image.lower() or "vllm" in command or rolling.lower() == "vllm":
        return passed("the engine is vLLM, by image and arguments", worker.target, image(worker))
    return skipped(Reason.NO_DATA, "neither image, arguments nor log tell the engine", worker.target, image(worker))


def connector(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.workers:
        yield skipped(Reason.NO_DATA, "no worker was found")
        return
    roles = {worker.key: found.role for worker in snapshot.workers if (found := transfer(worker)) is not None}
    one_sided = bool(roles) and len(set(roles.values())) == 1 and set(roles.values()) <= _ONE_SIDED
    for worker in snapshot.workers:
        finding = _connector(snapshot, worker, transfer(worker))
        if one_sided and finding.status is Status.PASS and worker.key in roles:
            message = f"all workers are {roles[worker.key]}: nothing that is stored is ever loaded, or the reverse"
            yield warned(message, worker.target, args(worker, "--kv-transfer-config"))
        else:
            yield finding


def _connector(snapshot: Snapshot, worker: Member, found: Transfer | None) -> Finding:
    kvaware = snapshot.strategy == "kvaware" and bool(snapshot.stacks & CONTROLLER_STACKS)
    evidence = args(worker, "--kv-transfer-config", "--kv-transfer-config.kv_connector", "--kv-offloading-backend")
    printed = worker.log.last("vllm-connector") if worker.log is not None else None
    if found is None and printed is not None and worker.log is not None:
        found, evidence = Transfer((printed["name"],)), worker.log.evidence(printed)
    if found is not None and found.problem:
        return failed(found.problem, worker.target, evidence)
    if found is None:
        if not arguments_known(worker) and not worker.container.env:
            return skipped(Reason.NO_DATA, "the worker's arguments are not known", worker.target)
        meant = next((name for name in sorted(worker.container.env) if name.startswith("LMCACHE_")), None)
        if snapshot.lmcache_active(worker) and meant is not None:
            message = "LMCache is configured but no connector makes vLLM use it"
            return failed(message, worker.target, env(worker, meant), evidence)
        if snapshot.lmcache_active(worker):
            return skipped(Reason.NO_DATA, "LMCache runs; its connector stands where it was not read", worker.target)
        if kvaware and arguments_known(worker):
            return failed("kvaware without LMCache on the worker: nothing registers", worker.target, evidence)
        return skipped(Reason.NOT_APPLICABLE, "LMCache is not configured on this worker", worker.target)
    if kvaware and found.multi_process:
        message = "kvaware with LMCache as a server of its own: nothing registers with the router's controller"
        return failed(message, worker.target, evidence)
    if found.lmcache:
        return passed(f"vLLM uses {shown(', '.join(found.connectors))}", worker.target, evidence)
    if kvaware or snapshot.lmcache_active(worker):
        message = f"the connector is {shown(', '.join(found.connectors) or 'not named')}, not LMCache's"
        return failed(message, worker.target, evidence)
    return skipped(Reason.NOT_APPLICABLE, "another connector is used on purpose", worker.target, evidence)


def prefix_caching(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.workers:
        yield skipped(Reason.NO_DATA, "no worker was found")
    for worker in snapshot.workers:
        yield _prefix_caching(snapshot, worker)


def _prefix_caching(snapshot: Snapshot, worker: Member) -> Finding:
    on, evidence = _caches_prefixes(snapshot, worker)
    if on is None:
        return skipped(Reason.NO_DATA, "neither metrics nor arguments tell", worker.target)
    if on:
        return passed("prefix caching is on", worker.target, evidence)
    if snapshot.strategy in ("prefixaware", "kv"):
        message = f"prefix caching is off: {snapshot.strategy} sends requests to caches that keep nothing"
        return failed(message, worker.target, evidence)
    return warned("prefix caching is off: the engine's own cache is never hit", worker.target, evidence)


def _caches_prefixes(snapshot: Snapshot, worker: Member) -> tuple[bool | None, Evidence]:
    """Whether the engine keeps prefixes; None where nothing tells."""
    for sample in snapshot.metrics.find("cache_config_info", worker.key):
        if told := sample.labels.get("enable_prefix_caching"):
            text = f"cache_config_info enable_prefix_caching={told}"
            return told.lower() == "true", Evidence("metric", worker.key, shown(text))
    off = args(worker, "--no-enable-prefix-caching")
    given = {word.partition("=")[0].replace("_", "-") for word in worker.container.args}
    if "--no-enable-prefix-caching" in given:
        return False, off
    if "--enable-prefix-caching" in given:
        return True, args(worker, "--enable-prefix-caching")
    if told := printed_argument(worker, "enable_prefix_caching"):
        return told == "True", Evidence("log", worker.key, f"vLLM's arguments: enable_prefix_caching {told}")
    if worker.env("VLLM_USE_V1") == "0":
        return False, env(worker, "VLLM_USE_V1")
    return (True if arguments_known(worker) else None), off


def lengths(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.workers:
        yield skipped(Reason.NO_DATA, "no worker was found")
    for worker in snapshot.workers:
        yield _lengths(snapshot, worker)


def _lengths(snapshot: Snapshot, worker: Member) -> Finding:
    longest, block = max_model_len(worker), block_tokens(snapshot, worker)
    chunk = chunk_tokens(snapshot.lmcache_config(worker)) if snapshot.lmcache_active(worker) else None
    if longest is None:
        return skipped(Reason.NO_DATA, "the model's longest sequence is not known", worker.target)
    if block is None and chunk is None:
        return skipped(Reason.NO_DATA, "the engine's block size is not known", worker.target)
    unit = max(block or 0, chunk or 0)
    named = f"block size {block or 'unknown'}, chunk size {chunk or 'none'}, max_model_len {longest}"
    evidence = (Evidence("args", worker.key, named), args(worker, "--max-model-len"))
    if longest < 2 * unit:
        message = f"the longest sequence ({longest} tokens) does not hold two cacheable pieces of {unit}"
        return warned(message, worker.target, *evidence)
    return passed("prompts can fill several cacheable pieces", worker.target, *evidence)


def hybrid_model(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.workers:
        yield skipped(Reason.NO_DATA, "no worker was found")
    for worker in snapshot.workers:
        yield _hybrid(worker)


def _hybrid(worker: Member) -> Finding:
    log = worker.log
    told = log.last("vllm-model-arch") if log is not None else None
    off = log.last("vllm-hma-off") if log is not None else None
    evidence = [log.evidence(match) for match in (told, off) if match is not None and log is not None]
    name = told["arch"] if told is not None else (model_argument(worker) or worker.model)
    if not evidence and name:
        evidence.append(Evidence("args", worker.key, shown(f"model {name}")))
    if name and _HYBRID.search(name):
        disabled = ", and vLLM switched its hybrid cache manager off" if off is not None else ""
        message = f"a hybrid model{disabled}: prefix caching may find little or nothing"
        return warned(message, worker.target, *evidence)
    if told is not None:
        return passed("not a hybrid architecture", worker.target, *evidence)
    reason = (worker.log_missing or Reason.NO_DATA) if log is None else Reason.NO_DATA
    return skipped(reason, "the model's architecture was not printed", worker.target, *evidence)


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV140",
        title="The engine is vLLM",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="image, arguments, OPTION_ROLLING_BATCH, the engine's own lines and metrics",
        rule="HyperPod's KV caching and intelligent routing support vLLM containers only. Fails for an SGLang, "
        "TensorRT-LLM, Triton or TGI container while routing is on.",
        hint="use a vLLM container, or switch intelligentRoutingSpec and kvCacheSpec off",
        run=engine_is_vllm,
        stacks=frozenset({Stack.HYPERPOD}),
    ),
    Check(
        id="KV141",
        title="LMCache's connector is configured",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="--kv-transfer-config (or --kv-offloading-backend lmcache), LMCACHE_* variables, vLLM's connector line",
        rule="Fails where LMCache is configured but no connector of its own is (log level alone does not count), "
        f"for kvaware without LMCache, and for kvaware with {MP_CONNECTOR}, which never registers. Warns where all "
        "workers only produce, or only consume.",
        hint='give --kv-transfer-config \'{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}\'',
        run=connector,
    ),
    Check(
        id="KV142",
        title="Prefix caching is on",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="vllm:cache_config_info, --no-enable-prefix-caching, VLLM_USE_V1",
        rule="Warns where it is off (LMCache may still be hit); fails for prefixaware and kv, which route to the "
        "engine's own cache. On by default in vLLM V1; the production stack's chart switches it off unless "
        "vllmConfig.enablePrefixCaching is true.",
        hint="drop --no-enable-prefix-caching; in the chart set vllmConfig.enablePrefixCaching: true",
        run=prefix_caching,
    ),
    Check(
        id="KV143",
        title="Prompts can fill a chunk",
        group=Group.CONFIGURATION,
        worst=Status.WARN,
        reads="max_model_len, block size, LMCache's chunk size",
        rule="Warns where max_model_len is below twice the larger of block and chunk: prompts then hardly ever "
        "fill one. Hybrid models have blocks of 784 to 2,096 tokens (vllm#54607, #53749).",
        hint="raise --max-model-len, or lower the block or chunk size",
        run=lengths,
    ),
    Check(
        id="KV144",
        title="Hybrid model",
        group=Group.CONFIGURATION,
        worst=Status.WARN,
        reads="the architecture that vLLM prints, the model's name, the line about the hybrid cache manager",
        rule="Warns for models with Mamba-like or linear-attention layers, whose prefix caching may do nothing "
        "(vllm#51198). vLLM prints that the manager is off for every model with a connector, so that line alone is "
        "no finding.",
        hint="expect few hits with this model; route by load instead, or use a vLLM version that caches its state",
        run=hybrid_model,
    ),
)
