"""`kvctl serve`: parse, wire, start. The work is in `router.server`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

from kvctl.errors import FAILED, Problem
from kvctl.options import ConfigFile, option

_FLEET = "Fleet"
_ROUTING = "Routing"
_WEIGHTS = "Cost of kv mode"
_MODES = "Other modes"
_QUEUE = "Queue"
_LMCACHE = "LMCache"
_LIMITS = "Limits and timeouts"


def serve(
    router_mode: Annotated[
        str,
        option(
            "--router-mode",
            rich_help_panel=_ROUTING,
            help="kv, random, round-robin, power-of-two, least-loaded, direct, device-aware-weighted, session, "
            "prefixaware or kvaware.",
        ),
    ] = "kv",
    host: Annotated[str, option("--host", help="Address of the data port.")] = "127.0.0.1",
    port: Annotated[int, option("--port", min=0, max=65535, help="Data port; 0 takes a free one.")] = 8000,
    admin_host: Annotated[str, option("--admin-host", help="Address of the admin port.")] = "127.0.0.1",
    admin_port: Annotated[
        int,
        option(
            "--admin-port",
            min=0,
            max=65535,
            help="Admin port (metrics, workers, decisions); 0 takes a free one.",
        ),
    ] = 9090,
    worker: Annotated[
        list[str] | None,
        option(
            "--worker",
            rich_help_panel=_FLEET,
            metavar="SPEC",
            help="An engine: URL[,id=…][,kv=tcp://…][,replay=tcp://…][,model=…][,ranks=N][,block-size=N]. Repeatable.",
        ),
    ] = None,
    workers_file: Annotated[
        Path | None,
        option(
            "--workers-file",
            rich_help_panel=_FLEET,
            help="A SPEC a line, or YAML/JSON; read again whenever it changes.",
        ),
    ] = None,
    sim: Annotated[
        int,
        option("--sim", min=0, max=64, rich_help_panel=_FLEET, help="Embed N simulated engines."),
    ] = 0,
    sim_speedup: Annotated[
        float,
        option("--sim-speedup", min=0.01, rich_help_panel=_FLEET, help="Their speed-up."),
    ] = 1.0,
    model: Annotated[
        str | None,
        option(
            "--model",
            rich_help_panel=_FLEET,
            metavar="PATH_OR_NAME",
            help="The one model to serve by name, or a folder whose tokenizer is used.",
        ),
    ] = None,
    model_alias: Annotated[
        list[str] | None,
        option(
            "--model-alias",
            rich_help_panel=_FLEET,
            metavar="NAME=MODEL",
            help="Another name that clients may use for a model. Repeatable.",
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        option(
            "--tokenizer",
            rich_help_panel=_ROUTING,
            help="The model's tokenizer: a folder or tokenizer.json. Without it the engine's /tokenize is asked.",
        ),
    ] = None,
    predict_ttl: Annotated[
        float,
        option(
            "--predict-ttl",
            min=0,
            rich_help_panel=_ROUTING,
            help="Seconds for which the blocks of an ended request count as held unless the engine says that they "
            "are gone; those of a running one always do. 0 switches both off.",
        ),
    ] = 5.0,
    approximate_ttl: Annotated[
        float,
        option(
            "--approximate-ttl",
            min=0,
            rich_help_panel=_ROUTING,
            help="Seconds for which the blocks of a request count as held by a worker without KV events.",
        ),
    ] = 120.0,
    approximate_cache_policy: Annotated[
        str,
        option(
            "--approximate-cache-policy",
            rich_help_panel=_ROUTING,
            help="A worker without KV events is taken to hold what was sent there lately (ttl: --approximate-ttl), or "
            "as much of it as fits its cache (lru).",
        ),
    ] = "ttl",
    truth_loop: Annotated[
        bool,
        option(
            "--truth-loop/--no-truth-loop",
            rich_help_panel=_ROUTING,
            help="Believe a worker's KV events less where its engine reuses less than they promise.",
        ),
    ] = True,
    allow_mode_override: Annotated[
        bool,
        option(
            "--allow-mode-override",
            rich_help_panel=_ROUTING,
            help="Let a request choose its mode with x-kvctl-mode and its weights with x-kvctl-weights.",
        ),
    ] = False,
    router_track_prefill_tokens: Annotated[
        bool,
        option(
            "--router-track-prefill-tokens/--no-router-track-prefill-tokens",
            rich_help_panel=_WEIGHTS,
            help="Count prompt tokens that are still to be computed as load.",
        ),
    ] = True,
    router_assume_kv_reuse: Annotated[
        bool,
        option(
            "--router-assume-kv-reuse/--no-router-assume-kv-reuse",
            rich_help_panel=_WEIGHTS,
            help="Running requests with one prefix share its blocks; else each counts all of its own.",
        ),
    ] = True,
    router_track_output_blocks: Annotated[
        bool,
        option(
            "--router-track-output-blocks",
            rich_help_panel=_ROUTING,
            help="Count the blocks of generated tokens as load, less as the expected length (x-kvctl-osl) comes near.",
        ),
    ] = False,
    router_prefill_load_model: Annotated[
        str,
        option(
            "--router-prefill-load-model",
            rich_help_panel=_ROUTING,
            help="How queued prefill goes down while time passes: none (at the first token), polynomial, or fitted to "
            "observed times to first token.",
        ),
    ] = "none",
    session_key: Annotated[
        str | None,
        option(
            "--session-key",
            rich_help_panel=_ROUTING,
            metavar="HEADER|body:FIELD",
            help="Where a request names its session, besides x-session-id: a header, or a field of its JSON body.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        option(
            "--seed",
            min=0,
            max=2**63 - 1,
            rich_help_panel=_ROUTING,
            help="Makes random choices repeat; by default each start differs.",
        ),
    ] = None,
    kv_cost: Annotated[
        str,
        option("--kv-cost", rich_help_panel=_WEIGHTS, help="The unit kv counts in: blocks, or expected time."),
    ] = "blocks",
    overlap_score_credit: Annotated[
        float,
        option(
            "--overlap-score-credit",
            rich_help_panel=_WEIGHTS,
            help="C: a cached device block's worth.",
        ),
    ] = 1.0,
    overlap_score_credit_decay: Annotated[
        float,
        option(
            "--overlap-score-credit-decay",
            rich_help_panel=_WEIGHTS,
            help="D: how fast that credit fades on a worker with more queued prefill.",
        ),
    ] = 0.0,
    prefill_load_scale: Annotated[
        float,
        option(
            "--prefill-load-scale",
            rich_help_panel=_WEIGHTS,
            help="S: prefill against decode.",
        ),
    ] = 1.0,
    decode_active_request_weight: Annotated[
        float,
        option(
            "--decode-active-request-weight",
            rich_help_panel=_WEIGHTS,
            help="A: blocks that an active request counts as.",
        ),
    ] = 0.0,
    host_cache_hit_weight: Annotated[
        float,
        option(
            "--host-cache-hit-weight",
            rich_help_panel=_WEIGHTS,
            help="Wh: a block in host memory.",
        ),
    ] = 0.75,
    disk_cache_hit_weight: Annotated[
        float,
        option(
            "--disk-cache-hit-weight",
            rich_help_panel=_WEIGHTS,
            help="Wd: a block on disk.",
        ),
    ] = 0.25,
    shared_cache_multiplier: Annotated[
        float,
        option(
            "--shared-cache-multiplier",
            rich_help_panel=_WEIGHTS,
            help="M: a block in a shared store.",
        ),
    ] = 0.5,
    shared_cache: Annotated[
        str | None,
        option(
            "--shared-cache",
            rich_help_panel=_WEIGHTS,
            metavar="redis://HOST:PORT|events",
            help="The store that all engines share: a Redis that is asked for each prompt's blocks, or only what the "
            "engines' KV events tell of it.",
        ),
    ] = None,
    shared_cache_timeout: Annotated[
        float,
        option(
            "--shared-cache-timeout",
            rich_help_panel=_WEIGHTS,
            help="Seconds that a request waits for that Redis at most; then it is placed without.",
        ),
    ] = 0.02,
    router_temperature: Annotated[
        float,
        option(
            "--router-temperature",
            rich_help_panel=_WEIGHTS,
            help="T: 0 takes the cheapest, more spreads.",
        ),
    ] = 0.0,
    shadow: Annotated[
        str | None,
        option(
            "--shadow",
            rich_help_panel=_ROUTING,
            metavar="MODE,…",
            help="Modes that decide on the live state without acting; see GET /shadow on the admin port.",
        ),
    ] = None,
    session_affinity_ttl: Annotated[
        float | None,
        option(
            "--session-affinity-ttl",
            rich_help_panel=_ROUTING,
            help="In any mode: a session stays with its worker until it was idle for so many seconds.",
        ),
    ] = None,
    session_affinity_mode: Annotated[
        str,
        option(
            "--session-affinity-mode",
            rich_help_panel=_ROUTING,
            help="hard: a busy worker refuses its sessions; soft: they move.",
        ),
    ] = "hard",
    load_bound: Annotated[
        float,
        option(
            "--load-bound",
            rich_help_panel=_ROUTING,
            help="kv: no worker gets more than this times the mean of requests in flight; 0 is no bound.",
        ),
    ] = 1.25,
    cuda_to_cpu_ratio: Annotated[
        int,
        option(
            "--cuda-to-cpu-ratio",
            rich_help_panel=_MODES,
            help="device-aware-weighted: requests of a CUDA worker for one of a CPU worker.",
        ),
    ] = 8,
    balance_factor: Annotated[
        float,
        option(
            "--balance-factor",
            rich_help_panel=_MODES,
            help="session, prefixaware: no worker gets more than this times the mean of requests in flight.",
        ),
    ] = 1.25,
    prefix_limit: Annotated[
        int,
        option("--prefix-limit", rich_help_panel=_MODES, help="prefixaware: blocks it remembers, about 80 bytes each."),
    ] = 1_000_000,
    min_match_tokens: Annotated[
        int,
        option(
            "--min-match-tokens", rich_help_panel=_MODES, help="prefixaware: a shorter known prefix is not followed."
        ),
    ] = 0,
    kvaware_threshold: Annotated[
        int,
        option(
            "--kvaware-threshold",
            "--kv-aware-threshold",
            rich_help_panel=_MODES,
            help="kvaware: tokens of the prompt that may be missing from a hit.",
        ),
    ] = 2000,
    kvaware_fallback: Annotated[
        str,
        option(
            "--kvaware-fallback",
            rich_help_panel=_MODES,
            help="kvaware: the mode without a hit: session, round-robin, least-loaded, power-of-two, random or kv.",
        ),
    ] = "session",
    active_decode_blocks_threshold: Annotated[
        float | None,
        option(
            "--active-decode-blocks-threshold",
            rich_help_panel=_LIMITS,
            help="A worker with a larger share (0..1) of its blocks in live requests is busy.",
        ),
    ] = None,
    active_prefill_tokens_threshold: Annotated[
        int | None,
        option(
            "--active-prefill-tokens-threshold",
            rich_help_panel=_LIMITS,
            help="A worker with more prompt tokens waiting is busy.",
        ),
    ] = None,
    active_prefill_tokens_threshold_frac: Annotated[
        float | None,
        option(
            "--active-prefill-tokens-threshold-frac",
            rich_help_panel=_LIMITS,
            help="The same as a multiple of the worker's batch-tokens (a key of its SPEC).",
        ),
    ] = None,
    queue_limit: Annotated[
        int,
        option(
            "--queue-limit",
            min=0,
            rich_help_panel=_QUEUE,
            help="Requests that may wait while all workers are busy (past a threshold); 0 refuses them at once.",
        ),
    ] = 0,
    queue_timeout: Annotated[
        float,
        option("--queue-timeout", min=0.001, rich_help_panel=_QUEUE, help="Longest wait in seconds."),
    ] = 60.0,
    queue_class: Annotated[
        list[str] | None,
        option(
            "--queue-class",
            rich_help_panel=_QUEUE,
            metavar="NAME[:order=wspt][,quantum=512][,limit=N][,token-limit=N]",
            help="A class of requests (x-kvctl-class) with its share of the turns. Repeatable.",
        ),
    ] = None,
    tenant_limit: Annotated[
        int | None,
        option(
            "--tenant-limit",
            min=1,
            rich_help_panel=_QUEUE,
            help="Requests that one tenant (x-tenant-id) may have waiting and running.",
        ),
    ] = None,
    lmcache_controller: Annotated[
        str | None,
        option(
            "--lmcache-controller",
            rich_help_panel=_LMCACHE,
            metavar="HOST[:PULL][,reply=PORT][,heartbeat=PORT][,advertise=HOST]",
            help="Be the LMCache controller of the workers (LMCache 0.3.12 and later). Ports 9000, 9001 and 9002 unless "
            "told otherwise; 0 takes a free one.",
        ),
    ] = None,
    lmcache_none_hash: Annotated[
        int | None,
        option(
            "--lmcache-none-hash",
            rich_help_panel=_LMCACHE,
            help="The NONE_HASH that the workers log. Without it, it is learnt from what they admit.",
        ),
    ] = None,
    lmcache_hash: Annotated[
        str,
        option(
            "--lmcache-hash",
            rich_help_panel=_LMCACHE,
            help="Their hash algorithm until it is learnt: builtin, sha256_cbor or sha256_cbor_64bit.",
        ),
    ] = "builtin",
    lmcache_chunk_size: Annotated[
        int,
        option("--lmcache-chunk-size", min=1, max=65536, rich_help_panel=_LMCACHE, help="Their chunk size likewise."),
    ] = 256,
    lmcache_heartbeat_timeout: Annotated[
        float,
        option(
            "--lmcache-heartbeat-timeout",
            min=1,
            rich_help_panel=_LMCACHE,
            help="Seconds without a heartbeat after which a worker is shown as degraded.",
        ),
    ] = 30.0,
    lmcache_index_limit_mib: Annotated[
        int,
        option("--lmcache-index-limit-mib", min=1, rich_help_panel=_LMCACHE, help="Memory of its chunk keys."),
    ] = 256,
    index_limit_mib: Annotated[
        int,
        option(
            "--index-limit-mib",
            min=1,
            rich_help_panel=_LIMITS,
            help="Memory of the block index.",
        ),
    ] = 1024,
    max_body_mib: Annotated[
        int,
        option("--max-body-mib", min=1, rich_help_panel=_LIMITS, help="Largest request body."),
    ] = 64,
    max_connections: Annotated[
        int,
        option(
            "--max-connections",
            min=1,
            rich_help_panel=_LIMITS,
            help="Client connections at a time.",
        ),
    ] = 20_000,
    connect_timeout: Annotated[
        float,
        option(
            "--connect-timeout",
            min=0.01,
            rich_help_panel=_LIMITS,
            help="Seconds to reach an engine.",
        ),
    ] = 5.0,
    first_byte_timeout: Annotated[
        float,
        option(
            "--first-byte-timeout",
            min=0.01,
            rich_help_panel=_LIMITS,
            help="Seconds until the engine's first byte.",
        ),
    ] = 600.0,
    idle_timeout: Annotated[
        float,
        option(
            "--idle-timeout",
            min=0.01,
            rich_help_panel=_LIMITS,
            help="Longest silence inside an answer.",
        ),
    ] = 300.0,
    drain_timeout: Annotated[
        float,
        option(
            "--drain-timeout",
            min=0,
            rich_help_panel=_LIMITS,
            help="Seconds for running requests to finish when the router is stopped.",
        ),
    ] = 30.0,
    health_interval: Annotated[
        float,
        option(
            "--health-interval",
            min=0.05,
            rich_help_panel=_FLEET,
            help="Seconds between health checks.",
        ),
    ] = 1.0,
    log_level: Annotated[str, option("--log-level", help="debug, info, warning or error.")] = "info",
    output: Annotated[str, option("--output", "-o", help="text, or json: one line when ready.")] = "text",
    config: ConfigFile = None,
) -> None:
    """Run the router in front of engines (OpenAI-compatible).

    Examples:

      kvctl serve --sim 4

      kvctl serve --router-mode kv --worker http://10.0.0.1:8000 --worker http://10.0.0.2:8000,id=gpu-2

      kvctl serve --workers-file workers.txt --tokenizer ./Qwen3-8B
    """
    if output not in ("text", "json"):
        raise Problem(f"-o must be text or json, not '{output}'")
    if log_level not in ("debug", "info", "warning", "error"):
        raise Problem(f"--log-level must be debug, info, warning or error, not '{log_level}'")

    from kvctl.kernels import ensure_cache
    from kvctl.shared_cache import lookup_of

    ensure_cache()
    from router.admin.app import threshold_settings
    from router.admission import AdmissionSettings, parse_class
    from router.affinity import AffinityMode, AffinitySettings
    from router.aliases import parse_aliases
    from router.core import ApproximatePolicy, CoreSettings
    from router.dispatch import DispatchSettings
    from router.engine_time import PrefillModel
    from router.fleet.spec import SpecError, check_unique, parse_spec
    from router.hints import session_source
    from router.model import BadRequest
    from router.policies.kv import KvWeights
    from router.policies.registry import UnknownMode, make_policy, mode_name
    from router.policies.settings import PolicySettings
    from router.proxy.interface import Limits, Timeouts
    from router.server import ServeSettings, StartError, run
    from router.truth import TruthSettings

    tokenizer_path = tokenizer
    if model is not None and Path(model).exists():
        tokenizer_path = tokenizer_path or Path(model)
        model = None
    shared_redis = lookup_of(shared_cache, shared_cache_timeout)
    try:
        weights = KvWeights(
            overlap_score_credit=overlap_score_credit,
            overlap_score_credit_decay=overlap_score_credit_decay,
            prefill_load_scale=prefill_load_scale,
            decode_active_request_weight=decode_active_request_weight,
            host_cache_hit_weight=host_cache_hit_weight,
            disk_cache_hit_weight=disk_cache_hit_weight,
            shared_cache_multiplier=shared_cache_multiplier,
            router_temperature=router_temperature,
            track_prefill_tokens=router_track_prefill_tokens,
        )
        policies = PolicySettings(
            weights=weights,
            kv_cost=kv_cost,
            load_bound=load_bound,
            cuda_to_cpu_ratio=cuda_to_cpu_ratio,
            balance_factor=balance_factor,
            prefix_limit=prefix_limit,
            min_match_tokens=min_match_tokens,
            kvaware_threshold=kvaware_threshold,
            kvaware_fallback=kvaware_fallback,
        )
        mode = mode_name(router_mode)
        make_policy(mode, policies)
        shadows = tuple(mode_name(name) for name in (shadow or "").split(",") if name.strip())
        if session_affinity_mode not in (*AffinityMode,):
            raise Problem(f"--session-affinity-mode must be hard or soft, not '{session_affinity_mode}'")
        if router_prefill_load_model not in (*PrefillModel,):
            raise Problem(
                f"--router-prefill-load-model must be none, polynomial or fitted, not '{router_prefill_load_model}'"
            )
        if approximate_cache_policy not in (*ApproximatePolicy,):
            raise Problem(f"--approximate-cache-policy must be ttl or lru, not '{approximate_cache_policy}'")
        affinity = None
        if session_affinity_ttl is not None:
            affinity = AffinitySettings(session_affinity_ttl, AffinityMode(session_affinity_mode))
        specs = [parse_spec(text) for text in worker or ()]
        lmcache = None
        if lmcache_controller is not None:
            from router.lmcache.settings import controller_settings

            lmcache = controller_settings(
                lmcache_controller,
                none_hash=lmcache_none_hash,
                algorithm=lmcache_hash,
                chunk_size=lmcache_chunk_size,
                index_limit=lmcache_index_limit_mib << 20,
                patience=lmcache_heartbeat_timeout,
            )
        thresholds = threshold_settings(
            active_decode_blocks_threshold, active_prefill_tokens_threshold, active_prefill_tokens_threshold_frac
        )
        aliases = parse_aliases(model_alias or ())
        session_header, session_field = session_source(session_key)
        admission = AdmissionSettings(
            queue_limit, queue_timeout, tenant_limit, tuple(parse_class(text) for text in queue_class or ())
        )
    except (UnknownMode, SpecError, BadRequest, ValueError) as error:
        raise Problem(str(error)) from None

    with contextlib.ExitStack() as stack:
        if sim:
            from bench.sim.fleet import FleetError, SimFleet

            print(f"Starting {sim} simulated engines", file=sys.stderr)
            try:
                fleet = stack.enter_context(SimFleet(sim, speedup=sim_speedup))
            except FleetError as error:
                raise Problem(str(error), code=FAILED) from None
            specs += [
                parse_spec(f"{engine.url},id={engine.id},kv={engine.kv},replay={engine.replay}")
                for engine in fleet.engines
            ]
        try:
            settings = ServeSettings(
                core=CoreSettings(
                    policies=policies,
                    shared_cache=shared_cache is not None,
                    affinity=affinity,
                    prefill_model=PrefillModel(router_prefill_load_model),
                    track_output=router_track_output_blocks,
                    assume_kv_reuse=router_assume_kv_reuse,
                    index_limit=index_limit_mib << 20,
                    predict_ttl=predict_ttl,
                    approximate_ttl=approximate_ttl,
                    approximate_policy=ApproximatePolicy(approximate_cache_policy),
                    truth=TruthSettings() if truth_loop else None,
                    thresholds=thresholds,
                    seed=seed,
                ),
                dispatch=DispatchSettings(
                    mode=mode,
                    model=model,
                    allow_mode_override=allow_mode_override,
                    session_header=session_header,
                    session_field=session_field,
                    aliases=aliases,
                    admission=admission,
                ),
                timeouts=Timeouts(connect=connect_timeout, first_byte=first_byte_timeout, idle=idle_timeout),
                limits=Limits(max_body=max_body_mib << 20, max_connections=max_connections),
                host=host,
                port=port,
                admin_host=admin_host,
                admin_port=admin_port,
                workers=tuple(check_unique(specs)),
                workers_file=workers_file,
                tokenizer=tokenizer_path,
                health_interval=health_interval,
                drain_timeout=drain_timeout,
                shadow=shadows,
                shared_redis=shared_redis,
                lmcache=lmcache,
                log_level=log_level,
                ready_json=output == "json",
            )
            run(settings)
        except (StartError, SpecError) as error:
            raise Problem(str(error)) from None
