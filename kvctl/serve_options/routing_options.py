"""Options of `kvctl serve`: how it routes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from kvctl.options import option

_ROUTING = "Routing"
_WEIGHTS = "Cost of kv mode"
_MODES = "Other modes"

RouterMode = Annotated[
    str,
    option(
        "--router-mode",
        rich_help_panel=_ROUTING,
        help="kv, random, round-robin, power-of-two, least-loaded, direct, device-aware-weighted, session, "
        "prefixaware or kvaware.",
    ),
]
Tokenizer = Annotated[
    Path | None,
    option(
        "--tokenizer",
        rich_help_panel=_ROUTING,
        help="The model's tokenizer: a folder or tokenizer.json. Without it the engine's /tokenize is asked.",
    ),
]
PredictTtl = Annotated[
    float,
    option(
        "--predict-ttl",
        min=0,
        rich_help_panel=_ROUTING,
        help="Seconds for which the blocks of an ended request count as held unless the engine says that they "
        "are gone; those of a running one always do. 0 switches both off.",
    ),
]
ApproximateTtl = Annotated[
    float,
    option(
        "--approximate-ttl",
        min=0,
        rich_help_panel=_ROUTING,
        help="Seconds for which the blocks of a request count as held by a worker without KV events.",
    ),
]
ApproximateCachePolicy = Annotated[
    str,
    option(
        "--approximate-cache-policy",
        rich_help_panel=_ROUTING,
        help="A worker without KV events is taken to hold what was sent there lately (ttl: --approximate-ttl), or "
        "as much of it as fits its cache (lru).",
    ),
]
TruthLoop = Annotated[
    bool,
    option(
        "--truth-loop/--no-truth-loop",
        rich_help_panel=_ROUTING,
        help="Believe a worker's KV events less where its engine reuses less than they promise.",
    ),
]
AllowModeOverride = Annotated[
    bool,
    option(
        "--allow-mode-override",
        rich_help_panel=_ROUTING,
        help="Let a request choose its mode with x-kvctl-mode and its weights with x-kvctl-weights.",
    ),
]
RouterTrackPrefillTokens = Annotated[
    bool,
    option(
        "--router-track-prefill-tokens/--no-router-track-prefill-tokens",
        rich_help_panel=_WEIGHTS,
        help="Count prompt tokens that are still to be computed as load.",
    ),
]
RouterAssumeKvReuse = Annotated[
    bool,
    option(
        "--router-assume-kv-reuse/--no-router-assume-kv-reuse",
        rich_help_panel=_WEIGHTS,
        help="Running requests with one prefix share its blocks; else each counts all of its own.",
    ),
]
RouterTrackOutputBlocks = Annotated[
    bool,
    option(
        "--router-track-output-blocks",
        rich_help_panel=_ROUTING,
        help="Count the blocks of generated tokens as load, less as the expected length (x-kvctl-osl) comes near.",
    ),
]
RouterPrefillLoadModel = Annotated[
    str,
    option(
        "--router-prefill-load-model",
        rich_help_panel=_ROUTING,
        help="How queued prefill goes down while time passes: none (at the first token), polynomial, or fitted to "
        "observed times to first token.",
    ),
]
SessionKey = Annotated[
    str | None,
    option(
        "--session-key",
        rich_help_panel=_ROUTING,
        metavar="HEADER|body:FIELD",
        help="Where a request names its session, besides x-session-id: a header, or a field of its JSON body.",
    ),
]
Seed = Annotated[
    int | None,
    option(
        "--seed",
        min=0,
        max=2**63 - 1,
        rich_help_panel=_ROUTING,
        help="Makes random choices repeat; by default each start differs.",
    ),
]
KvCost = Annotated[
    str,
    option("--kv-cost", rich_help_panel=_WEIGHTS, help="The unit kv counts in: blocks, or expected time."),
]
OverlapScoreCredit = Annotated[
    float,
    option(
        "--overlap-score-credit",
        rich_help_panel=_WEIGHTS,
        help="C: a cached device block's worth.",
    ),
]
OverlapScoreCreditDecay = Annotated[
    float,
    option(
        "--overlap-score-credit-decay",
        rich_help_panel=_WEIGHTS,
        help="D: how fast that credit fades on a worker with more queued prefill.",
    ),
]
PrefillLoadScale = Annotated[
    float,
    option(
        "--prefill-load-scale",
        rich_help_panel=_WEIGHTS,
        help="S: prefill against decode.",
    ),
]
DecodeActiveRequestWeight = Annotated[
    float,
    option(
        "--decode-active-request-weight",
        rich_help_panel=_WEIGHTS,
        help="A: blocks that an active request counts as.",
    ),
]
HostCacheHitWeight = Annotated[
    float,
    option(
        "--host-cache-hit-weight",
        rich_help_panel=_WEIGHTS,
        help="Wh: a block in host memory.",
    ),
]
DiskCacheHitWeight = Annotated[
    float,
    option(
        "--disk-cache-hit-weight",
        rich_help_panel=_WEIGHTS,
        help="Wd: a block on disk.",
    ),
]
SharedCacheMultiplier = Annotated[
    float,
    option(
        "--shared-cache-multiplier",
        rich_help_panel=_WEIGHTS,
        help="M: a block in a shared store.",
    ),
]
SharedCache = Annotated[
    str | None,
    option(
        "--shared-cache",
        rich_help_panel=_WEIGHTS,
        metavar="redis://HOST:PORT|events",
        help="The store that all engines share: a Redis that is asked for each prompt's blocks, or only what the "
        "engines' KV events tell of it.",
    ),
]
SharedCacheTimeout = Annotated[
    float,
    option(
        "--shared-cache-timeout",
        rich_help_panel=_WEIGHTS,
        help="Seconds that a request waits for that Redis at most; then it is placed without.",
    ),
]
RouterTemperature = Annotated[
    float,
    option(
        "--router-temperature",
        rich_help_panel=_WEIGHTS,
        help="T: 0 takes the cheapest, more spreads.",
    ),
]
Shadow = Annotated[
    str | None,
    option(
        "--shadow",
        rich_help_panel=_ROUTING,
        metavar="MODE,…",
        help="Modes that decide on the live state without acting; see GET /shadow on the admin port.",
    ),
]
SessionAffinityTtl = Annotated[
    float | None,
    option(
        "--session-affinity-ttl",
        rich_help_panel=_ROUTING,
        help="In any mode: a session stays with its worker until it was idle for so many seconds.",
    ),
]
SessionAffinityMode = Annotated[
    str,
    option(
        "--session-affinity-mode",
        rich_help_panel=_ROUTING,
        help="hard: a busy worker refuses its sessions; soft: they move.",
    ),
]
LoadBound = Annotated[
    float,
    option(
        "--load-bound",
        rich_help_panel=_ROUTING,
        help="kv: no worker gets more than this times the mean of requests in flight; 0 is no bound.",
    ),
]
CudaToCpuRatio = Annotated[
    int,
    option(
        "--cuda-to-cpu-ratio",
        rich_help_panel=_MODES,
        help="device-aware-weighted: requests of a CUDA worker for one of a CPU worker.",
    ),
]
BalanceFactor = Annotated[
    float,
    option(
        "--balance-factor",
        rich_help_panel=_MODES,
        help="session, prefixaware: no worker gets more than this times the mean of requests in flight.",
    ),
]
PrefixLimit = Annotated[
    int,
    option("--prefix-limit", rich_help_panel=_MODES, help="prefixaware: blocks it remembers, about 80 bytes each."),
]
MinMatchTokens = Annotated[
    int,
    option("--min-match-tokens", rich_help_panel=_MODES, help="prefixaware: a shorter known prefix is not followed."),
]
KvawareThreshold = Annotated[
    int,
    option(
        "--kvaware-threshold",
        rich_help_panel=_MODES,
        help="kvaware: tokens of the prompt that may be missing from a hit.",
    ),
]
KvawareFallback = Annotated[
    str,
    option(
        "--kvaware-fallback",
        rich_help_panel=_MODES,
        help="kvaware: the mode without a hit: session, round-robin, least-loaded, power-of-two, random or kv.",
    ),
]
