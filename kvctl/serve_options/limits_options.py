"""Options of `kvctl serve`: queue, LMCache controller, limits and timeouts."""

from __future__ import annotations

from typing import Annotated

from kvctl.options import option

_QUEUE = "Queue"
_LMCACHE = "LMCache"
_LIMITS = "Limits and timeouts"

ActiveDecodeBlocksThreshold = Annotated[
    float | None,
    option(
        "--active-decode-blocks-threshold",
        rich_help_panel=_LIMITS,
        help="A worker with a larger share (0..1) of its blocks in live requests is busy.",
    ),
]
ActivePrefillTokensThreshold = Annotated[
    int | None,
    option(
        "--active-prefill-tokens-threshold",
        rich_help_panel=_LIMITS,
        help="A worker with more prompt tokens waiting is busy.",
    ),
]
ActivePrefillTokensThresholdFrac = Annotated[
    float | None,
    option(
        "--active-prefill-tokens-threshold-frac",
        rich_help_panel=_LIMITS,
        help="The same as a multiple of the worker's batch-tokens (a key of its SPEC).",
    ),
]
QueueLimit = Annotated[
    int,
    option(
        "--queue-limit",
        min=0,
        rich_help_panel=_QUEUE,
        help="Requests that may wait while all workers are busy (past a threshold); 0 refuses them at once.",
    ),
]
QueueTimeout = Annotated[
    float,
    option("--queue-timeout", min=0.001, rich_help_panel=_QUEUE, help="Longest wait in seconds."),
]
QueueClass = Annotated[
    list[str] | None,
    option(
        "--queue-class",
        rich_help_panel=_QUEUE,
        metavar="NAME[:order=wspt][,quantum=512][,limit=N][,token-limit=N]",
        help="A class of requests (x-kvctl-class) with its share of the turns. Repeatable.",
    ),
]
TenantLimit = Annotated[
    int | None,
    option(
        "--tenant-limit",
        min=1,
        rich_help_panel=_QUEUE,
        help="Requests that one tenant (x-tenant-id) may have waiting and running.",
    ),
]
LmcacheController = Annotated[
    str | None,
    option(
        "--lmcache-controller",
        rich_help_panel=_LMCACHE,
        metavar="HOST[:PULL][,reply=PORT][,heartbeat=PORT][,advertise=HOST]",
        help="Be the LMCache controller of the workers (LMCache 0.3.12 and later). Ports 9000, 9001 and 9002 unless "
        "told otherwise; 0 takes a free one.",
    ),
]
LmcacheNoneHash = Annotated[
    int | None,
    option(
        "--lmcache-none-hash",
        rich_help_panel=_LMCACHE,
        help="The NONE_HASH that the workers log. Without it, it is learnt from what they admit.",
    ),
]
LmcacheHash = Annotated[
    str,
    option(
        "--lmcache-hash",
        rich_help_panel=_LMCACHE,
        help="Their hash algorithm until it is learnt: builtin, sha256_cbor or sha256_cbor_64bit.",
    ),
]
LmcacheChunkSize = Annotated[
    int,
    option("--lmcache-chunk-size", min=1, max=65536, rich_help_panel=_LMCACHE, help="Their chunk size likewise."),
]
LmcacheHeartbeatTimeout = Annotated[
    float,
    option(
        "--lmcache-heartbeat-timeout",
        min=1,
        rich_help_panel=_LMCACHE,
        help="Seconds without a heartbeat after which a worker is shown as degraded.",
    ),
]
LmcacheIndexLimitMib = Annotated[
    int,
    option("--lmcache-index-limit-mib", min=1, rich_help_panel=_LMCACHE, help="Memory of its chunk keys."),
]
IndexLimitMib = Annotated[
    int,
    option(
        "--index-limit-mib",
        min=1,
        rich_help_panel=_LIMITS,
        help="Memory of the block index.",
    ),
]
MaxConnections = Annotated[
    int,
    option(
        "--max-connections",
        min=1,
        rich_help_panel=_LIMITS,
        help="Client connections at a time.",
    ),
]
ConnectTimeout = Annotated[
    float,
    option(
        "--connect-timeout",
        min=0.01,
        rich_help_panel=_LIMITS,
        help="Seconds to reach an engine.",
    ),
]
FirstByteTimeout = Annotated[
    float,
    option(
        "--first-byte-timeout",
        min=0.01,
        rich_help_panel=_LIMITS,
        help="Seconds until the engine's first byte.",
    ),
]
IdleTimeout = Annotated[
    float,
    option(
        "--idle-timeout",
        min=0.01,
        rich_help_panel=_LIMITS,
        help="Longest silence inside an answer.",
    ),
]
DrainTimeout = Annotated[
    float,
    option(
        "--drain-timeout",
        min=0,
        rich_help_panel=_LIMITS,
        help="Seconds for running requests to finish when the router is stopped.",
    ),
]
