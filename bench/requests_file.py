"""requests.jsonl: a row a request, written as each block ends, so that what was measured outlives the run.

Writes one file. Times t_* in a row are seconds from the block's start, latencies are milliseconds; null is a time that
does not exist, or a failure's. No prompt and no answer is in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import msgspec

from bench.experiment import BlockResult
from bench.metrics import Measured

NAME = "requests.jsonl"


class RequestsFile:
    """The open file. A context manager; a file that is there already is replaced."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / NAME).open("wb")

    def __enter__(self) -> RequestsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, block: BlockResult) -> None:
        """Appends a block's requests, in the order of its schedule."""
        encoder = msgspec.json.Encoder()
        for measured in block.facts.measured:
            self._file.write(encoder.encode(row(block, measured)) + b"\n")
        self._file.flush()


def write_requests(folder: Path, blocks: Iterable[BlockResult]) -> None:
    """All at once, for blocks that are at hand."""
    with RequestsFile(folder) as file:
        for block in blocks:
            file.add(block)


def row(block: BlockResult, m: Measured) -> dict[str, object]:
    """One request as a row."""
    timing, request = m.timing, m.request
    times = {
        name: _number(moment - block.start)
        for name, moment in (
            ("t_sched", timing.t_sched),
            ("t_send", timing.t_send),
            ("t_hdr", timing.t_hdr),
            ("t_first", timing.t_first),
            ("t_last", timing.t_last),
            ("t_end", timing.t_end),
        )
    }
    latencies = {
        name: _number(m.value(name))
        for name in ("ttft_ms", "ttft_send_ms", "sched_lag_ms", "itl_ms", "stall_ms", "e2e_ms", "drain_ms")
    }
    return {
        "id": request.id,
        "arm": block.arm.name,
        "block": block.block.index,
        "round": block.block.round,
        "session": request.session,
        "turn": request.turn,
        "group": request.group,
        "ok": timing.ok,
        "aborted": timing.aborted,
        "error": timing.error,
        "detail": timing.detail,
        "status": timing.status,
        "retry_after_s": timing.retry_after,
        "worker": timing.worker,
        "decision": timing.decision,
        "decide_us": m.decision.decide_us if m.decision else None,
        "prompt_tokens": timing.prompt_tokens if timing.prompt_tokens is not None else request.prompt_len,
        "cached_tokens": timing.cached_tokens,
        "predicted_cached_tokens": m.decision.predicted if m.decision else None,
        "output_planned": request.output_len,
        "output_tokens": timing.n_out,
        "output_tokens_source": timing.n_out_source,
        **times,
        **latencies,
        "after": request.after,
        "first_chunk_tokens": timing.n_first,
        "coalesced": timing.coalesced,
        "resent": timing.retried,
        "events": asdict(timing.events),
        "interrupted": block.interrupted,
    }


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
