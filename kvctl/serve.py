"""`kvctl serve`: parse, wire, start. The work is in `router.server`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from kvctl.errors import FAILED, Problem
from kvctl.options import ConfigFile
from kvctl.secret_options import admin_token as admin_token_of
from kvctl.secret_options import secret_of
from kvctl.serve_options import (
    callers_options,
    failures_options,
    fleet_options,
    limits_options,
    routing_options,
    wire_options,
)


def serve(
    router_mode: routing_options.RouterMode = "kv",
    host: fleet_options.Host = "127.0.0.1",
    port: fleet_options.Port = 8000,
    admin_host: fleet_options.AdminHost = "127.0.0.1",
    admin_port: fleet_options.AdminPort = 9090,
    worker: fleet_options.Worker = None,
    workers_file: fleet_options.WorkersFile = None,
    sim: fleet_options.Sim = 0,
    sim_speedup: fleet_options.SimSpeedup = 1.0,
    model: fleet_options.Model = None,
    model_alias: fleet_options.ModelAlias = None,
    tokenizer: routing_options.Tokenizer = None,
    predict_ttl: routing_options.PredictTtl = 5.0,
    approximate_ttl: routing_options.ApproximateTtl = 120.0,
    approximate_cache_policy: routing_options.ApproximateCachePolicy = "ttl",
    truth_loop: routing_options.TruthLoop = True,
    allow_mode_override: routing_options.AllowModeOverride = False,
    router_track_prefill_tokens: routing_options.RouterTrackPrefillTokens = True,
    router_assume_kv_reuse: routing_options.RouterAssumeKvReuse = True,
    router_track_output_blocks: routing_options.RouterTrackOutputBlocks = False,
    router_prefill_load_model: routing_options.RouterPrefillLoadModel = "none",
    session_key: routing_options.SessionKey = None,
    seed: routing_options.Seed = None,
    kv_cost: routing_options.KvCost = "blocks",
    overlap_score_credit: routing_options.OverlapScoreCredit = 1.0,
    overlap_score_credit_decay: routing_options.OverlapScoreCreditDecay = 0.0,
    prefill_load_scale: routing_options.PrefillLoadScale = 1.0,
    decode_active_request_weight: routing_options.DecodeActiveRequestWeight = 0.0,
    host_cache_hit_weight: routing_options.HostCacheHitWeight = 0.75,
    disk_cache_hit_weight: routing_options.DiskCacheHitWeight = 0.25,
    shared_cache_multiplier: routing_options.SharedCacheMultiplier = 0.5,
    shared_cache: routing_options.SharedCache = None,
    shared_cache_timeout: routing_options.SharedCacheTimeout = 0.02,
    router_temperature: routing_options.RouterTemperature = 0.0,
    shadow: routing_options.Shadow = None,
    session_affinity_ttl: routing_options.SessionAffinityTtl = None,
    session_affinity_mode: routing_options.SessionAffinityMode = "hard",
    load_bound: routing_options.LoadBound = 1.25,
    cuda_to_cpu_ratio: routing_options.CudaToCpuRatio = 8,
    balance_factor: routing_options.BalanceFactor = 1.25,
    prefix_limit: routing_options.PrefixLimit = 1_000_000,
    min_match_tokens: routing_options.MinMatchTokens = 0,
    kvaware_threshold: routing_options.KvawareThreshold = 2000,
    kvaware_fallback: routing_options.KvawareFallback = "session",
    active_decode_blocks_threshold: limits_options.ActiveDecodeBlocksThreshold = None,
    active_prefill_tokens_threshold: limits_options.ActivePrefillTokensThreshold = None,
    active_prefill_tokens_threshold_frac: limits_options.ActivePrefillTokensThresholdFrac = None,
    queue_limit: limits_options.QueueLimit = 0,
    queue_timeout: limits_options.QueueTimeout = 60.0,
    queue_class: limits_options.QueueClass = None,
    tenant_limit: limits_options.TenantLimit = None,
    lmcache_controller: limits_options.LmcacheController = None,
    lmcache_none_hash: limits_options.LmcacheNoneHash = None,
    lmcache_hash: limits_options.LmcacheHash = "builtin",
    lmcache_chunk_size: limits_options.LmcacheChunkSize = 256,
    lmcache_heartbeat_timeout: limits_options.LmcacheHeartbeatTimeout = 30.0,
    lmcache_index_limit_mib: limits_options.LmcacheIndexLimitMib = 256,
    index_limit_mib: limits_options.IndexLimitMib = 1024,
    max_body: wire_options.MaxBody = "64MiB",
    max_head: wire_options.MaxHead = "64KiB",
    max_headers: wire_options.MaxHeaders = 100,
    request_timeout: wire_options.RequestTimeout = 60.0,
    keepalive_timeout: wire_options.KeepaliveTimeout = 75.0,
    pool_idle_timeout: wire_options.PoolIdleTimeout = 4.0,
    max_requests_per_connection: wire_options.MaxRequestsPerConnection = 0,
    max_connection_age: wire_options.MaxConnectionAge = 0.0,
    x_forwarded: wire_options.XForwarded = "off",
    tls_cert: wire_options.TlsCert = None,
    tls_key: wire_options.TlsKey = None,
    tls_client_ca: wire_options.TlsClientCa = None,
    tls_handshake_timeout: wire_options.TlsHandshakeTimeout = 10.0,
    upstream_tls_ca: wire_options.UpstreamTlsCa = None,
    upstream_tls_cert: wire_options.UpstreamTlsCert = None,
    upstream_tls_key: wire_options.UpstreamTlsKey = None,
    upstream_tls_insecure: wire_options.UpstreamTlsInsecure = False,
    api_keys_file: callers_options.ApiKeysFile = None,
    upstream_key: callers_options.UpstreamKey = None,
    upstream_key_file: callers_options.UpstreamKeyFile = None,
    admin_token: callers_options.AdminToken = None,
    admin_token_file: callers_options.AdminTokenFile = None,
    admin_open_metrics: callers_options.AdminOpenMetrics = False,
    access_log: callers_options.AccessLog = "off",
    access_log_format: callers_options.AccessLogFormat = "text",
    otel_endpoint: callers_options.OtelEndpoint = None,
    otel_sample_ratio: callers_options.OtelSampleRatio = None,
    max_connections: limits_options.MaxConnections = 20_000,
    connect_timeout: limits_options.ConnectTimeout = 5.0,
    first_byte_timeout: limits_options.FirstByteTimeout = 600.0,
    idle_timeout: limits_options.IdleTimeout = 300.0,
    drain_timeout: limits_options.DrainTimeout = 30.0,
    drain_delay: failures_options.DrainDelay = 0.0,
    retry_budget: failures_options.RetryBudget = 0.2,
    retry_floor: failures_options.RetryFloor = 10.0,
    retry_any: failures_options.RetryAny = False,
    migration_limit: failures_options.MigrationLimit = 0,
    migration_buffer: failures_options.MigrationBuffer = "1MiB",
    breaker: failures_options.Breaker = failures_options.OnOff.ON,
    breaker_failures: failures_options.BreakerFailures = 5,
    breaker_errors: failures_options.BreakerErrors = 10,
    breaker_rate: failures_options.BreakerRate = 0.5,
    breaker_window: failures_options.BreakerWindow = 10.0,
    breaker_ejection: failures_options.BreakerEjection = 5.0,
    breaker_ejection_max: failures_options.BreakerEjectionMax = 300.0,
    breaker_probes: failures_options.BreakerProbes = 3,
    breaker_max_ejected: failures_options.BreakerMaxEjected = 0.5,
    slow_start: failures_options.SlowStart = 0.0,
    health_timeout: failures_options.HealthTimeout = 3.0,
    health_interval: fleet_options.HealthInterval = 1.0,
    log_level: fleet_options.LogLevel = "info",
    output: fleet_options.Output = "text",
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
    if x_forwarded not in ("off", "append", "replace"):
        raise Problem(f"--x-forwarded must be off, append or replace, not '{x_forwarded}'")
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
    from router.engine_time import PrefillModel
    from router.fleet.breaker import BreakerSettings
    from router.fleet.spec import SpecError, check_unique, parse_spec
    from router.hints import session_source
    from router.migration_settings import MigrationSettings
    from router.model import BadRequest
    from router.policies.kv import KvWeights
    from router.policies.registry import UnknownMode, make_policy, mode_name
    from router.policies.settings import PolicySettings
    from router.proxy.forwarded import ForwardedMode
    from router.proxy.interface import Limits, Timeouts
    from router.reading import DispatchSettings
    from router.retry import RetrySettings
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

    limits = Limits(
        max_body=wire_options.max_body(max_body),
        max_head=wire_options.max_head(max_head),
        max_headers=max_headers,
        max_connections=max_connections,
        max_requests=max_requests_per_connection,
    )
    buffer_bytes = failures_options.migration_buffer(migration_buffer)
    tls_files = wire_options.server_files(tls_cert, tls_key, tls_client_ca)
    engine_tls_files = wire_options.engine_files(
        upstream_tls_ca, upstream_tls_cert, upstream_tls_key, upstream_tls_insecure
    )

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
        breaker_settings = None
        if breaker is failures_options.OnOff.ON:
            breaker_settings = BreakerSettings(
                failures=breaker_failures,
                errors=breaker_errors,
                rate=breaker_rate,
                window=breaker_window,
                ejection=breaker_ejection,
                ejection_max=max(breaker_ejection_max, breaker_ejection),
                probes=breaker_probes,
                max_ejected=breaker_max_ejected,
            )
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
                    slow_start=slow_start,
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
                    retry=RetrySettings(share=retry_budget, floor=retry_floor, any=retry_any),
                    migration=MigrationSettings(migration_limit, buffer_bytes),
                ),
                timeouts=Timeouts(
                    connect=connect_timeout,
                    first_byte=first_byte_timeout,
                    idle=idle_timeout,
                    request=request_timeout,
                    keepalive=keepalive_timeout,
                    pool_idle=pool_idle_timeout,
                    handshake=tls_handshake_timeout,
                    max_age=max_connection_age,
                ),
                limits=limits,
                tls=tls_files,
                upstream_tls=engine_tls_files,
                forwarded=ForwardedMode(x_forwarded),
                host=host,
                port=port,
                admin_host=admin_host,
                admin_port=admin_port,
                workers=tuple(check_unique(specs)),
                workers_file=workers_file,
                tokenizer=tokenizer_path,
                health_interval=health_interval,
                health_timeout=health_timeout,
                breaker=breaker_settings,
                drain_delay=drain_delay,
                drain_timeout=drain_timeout,
                shadow=shadows,
                shared_redis=shared_redis,
                lmcache=lmcache,
                log_level=log_level,
                ready_json=output == "json",
                api_keys_file=api_keys_file,
                upstream_key=secret_of(upstream_key, upstream_key_file, "--upstream-key"),
                admin_token=admin_token_of(admin_token, admin_token_file),
                admin_open_metrics=admin_open_metrics,
                access_log=callers_options.access_log(access_log, access_log_format),
                traces=callers_options.traces(otel_endpoint, otel_sample_ratio),
            )
            run(settings)
        except (StartError, SpecError) as error:
            raise Problem(str(error)) from None
