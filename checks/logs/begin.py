"""Whether a log without trusted times begins where its program began: for logs given as files.

A start line must come within the first lines, and before any line that only a running program writes: a log whose
beginning was rotated away shows those first. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

FIRST_LINES = 200
"""vLLM prints warnings and a banner before its arguments, routers their configuration."""
_START = re.compile(
    r"non-default args: |LLM engine \(v\d|vLLM API server version |█  version |vLLM server version "
    r"|Initializing [\w-]{1,40}(?: prefill)? routing logic|Initializing KvawareRouter|Start health check thread"
    r"|Started server process|Waiting for application startup|LMCache Configuration: |Loading LMCache config file"
    r"|Creating LMCacheEngine |Loading the kernels "
)
_RUNNING = re.compile(
    r'HTTP/1\.1" \d{3}|Routing request |Reqid: |Avg prompt throughput|Stored \d|Retrieved \d|Storing KV cache for '
    r"|last heartbeat time|System (?:unhealthy|recovered)|Deregistered instance-worker"
)


def begins_with_start(lines: Sequence[str]) -> bool:
    """True where the first lines (clean, as they stand in the log) show a start and nothing of a running program."""
    for line in lines[:FIRST_LINES]:
        text = line[:4096]
        if _RUNNING.search(text):
            return False
        if _START.search(text):
            return True
    return False
