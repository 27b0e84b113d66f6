"""What checks ask of workers that run LMCache in their process: which they are, how many ranks, which second tier.

Pure questions to a snapshot, shared by the catalogue.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from checks.logs.patterns import Pattern
from checks.logs.view import LogView, Match
from checks.model import Evidence, Finding, Reason, skipped
from checks.serving import numbers, transfer
from checks.snapshot import Member, Snapshot

_MLA_ARCHITECTURE = re.compile(r"Deepseek(V2|V3|V32|V4|MTP)|KimiK2|Kimi_?VL|MiniCPM3|GlmMoeDsa|LongcatFlash", re.I)
_SHORT = {"--tensor-parallel-size": "-tp", "--pipeline-parallel-size": "-pp", "--data-parallel-size": "-dp"}


def each_worker(snapshot: Snapshot, judge: Callable[[Snapshot, Member], Iterable[Finding]]) -> Iterator[Finding]:
    """Findings of `judge` for each worker with LMCache in its process; a skip for others, and where none was found."""
    if not snapshot.workers:
        yield skipped(Reason.NO_DATA, "no worker was found")
    for worker in snapshot.workers:
        why_not = why_not_in_process(snapshot, worker)
        if why_not:
            yield skipped(Reason.NOT_APPLICABLE, why_not, worker.target)
        else:
            yield from judge(snapshot, worker)


def why_not_in_process(snapshot: Snapshot, worker: Member) -> str:
    """Why checks of LMCache inside the engine do not fit this worker; '' where they do."""
    if uses_server(worker):
        return "LMCache runs in a process of its own here (KV941)"
    return "" if snapshot.lmcache_active(worker) else "LMCache is not configured on this worker"


def uses_server(worker: Member) -> bool:
    """The engine's LMCache is a client of a server of its own (multi-process mode)."""
    connector = transfer(worker)
    return connector is not None and connector.multi_process


def why_quiet(worker: Member, pattern: Pattern, snapshot: Snapshot) -> Reason | None:
    """Why the lack of a run-time line says nothing, or None where it is a fact of the part of the log that was read.

    Unlike start-up lines these also stand in a log whose beginning is gone.
    """
    if worker.log is None:
        return worker.log_missing or Reason.NO_DATA
    if not worker.log.records:
        return Reason.NO_DATA
    read = replace(worker, log=replace(worker.log, head_complete=True))
    return read.why_absence_proves_nothing(pattern, snapshot.lmcache_version(worker))


def is_young(snapshot: Snapshot, worker: Member) -> bool:
    """Not ready, or started so recently that start-up may not be over."""
    started = worker.container.started_at
    return not worker.ready or (started is not None and snapshot.now - started < snapshot.thresholds.young_pod_s)


def engines(worker: Member) -> int:
    """Engines (data-parallel ranks) inside this member."""
    if worker.has_arg("--data-parallel-rank", "--data-parallel-external-lb"):
        return 1
    local = _positive(worker.arg("--data-parallel-size-local"))
    return local or _parallel(worker, "--data-parallel-size")


def ranks(worker: Member) -> int:
    """Worker processes of one engine: tensor times pipeline parallel size."""
    return _parallel(worker, "--tensor-parallel-size") * _parallel(worker, "--pipeline-parallel-size")


def registering_ranks(snapshot: Snapshot, worker: Member) -> int:
    """Ranks of one engine that register with the controller: those listed, one for MLA models, else all."""
    listed = numbers(snapshot.lmcache_config(worker).get("lmcache_worker_ids"))
    return len(listed) or (1 if uses_mla(worker) else ranks(worker))


def uses_mla(worker: Member) -> bool:
    """The model has latent attention, so only rank 0 keeps a cache: by LMCache's own line, else by architecture."""
    if worker.log is None:
        return False
    if (told := worker.log.last("lmcache-model-shape")) is not None:
        return told["mla"] == "True"
    architecture = worker.log.last("vllm-model-arch")
    return architecture is not None and _MLA_ARCHITECTURE.match(architecture["arch"]) is not None


def remote_url(snapshot: Snapshot, worker: Member) -> str | None:
    """URL of LMCache's second tier; None where none is configured, '' where it is set but could not be read."""
    url = snapshot.lmcache_config(worker).get("remote_url")
    if url:
        return str(url)
    if worker.env_unread("LMCACHE_REMOTE_URL"):
        return ""
    if worker.log is not None and (match := worker.log.last("lmcache-remote-connected")) is not None:
        return match["url"]
    return None


def scheme(url: str) -> str:
    """`redis` of `redis://…`; '' where there is none."""
    return url.partition("://")[0].lower() if "://" in url else ""


def recent(snapshot: Snapshot, log: LogView, *patterns: str) -> list[Match]:
    """Matches of the window; those without a time count as inside."""
    return log.since(snapshot.now - snapshot.window_s, *patterns)


@dataclass(frozen=True, slots=True)
class Lookups:
    """Lookups as LMCache's lines tell of them, each request once; pending ones are left out."""

    requests: int
    tokens: float
    hit_tokens: float


def lookups_told(log: LogView) -> Lookups:
    """A request that was scheduled again logs again: its last line counts."""
    asked = {
        one["rid"]: (int(one["total"]), int(one["hit"]))
        for one in log.all("lmcache-request")
        if one["hit"].isdecimal() and one["total"].isdecimal()
    }
    tokens, hits = (float(sum(pair[at] for pair in asked.values())) for at in (0, 1))
    return Lookups(len(asked), tokens, hits)


def stored_told(log: LogView) -> float:
    """Tokens that LMCache's lines say were stored."""
    return float(sum(int(one["tokens"]) for one in log.all("lmcache-stored") if one["tokens"].isdecimal()))


def last_line(member: Member, matches: Sequence[Match]) -> list[Evidence]:
    """Evidence of the last match in the member's log; none where there is none."""
    return [member.log.evidence(matches[-1])] if member.log is not None and matches else []


def times(count: int) -> str:
    """`once`, `3 times`."""
    return "once" if count == 1 else f"{count} times"


def number(value: Any) -> float | None:
    """A number from a configuration or a log, None where it is none."""
    if value is None or isinstance(value, bool):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _parallel(worker: Member, option: str) -> int:
    """A parallel size from the arguments, else from the arguments that vLLM printed; 1 where nothing says."""
    given = _positive(worker.arg(option))
    if given is None:
        given = _after(worker.container.args, _SHORT[option])
    if given is None and worker.log is not None and (match := worker.log.last("vllm-args")) is not None:
        name = option.removeprefix("--").replace("-", "_")
        found = re.search(rf"['\"]{name}['\"]: (\d+)", match["args"])
        given = _positive(found.group(1)) if found else None
    return given or 1


def _after(args: tuple[str, ...], word: str) -> int | None:
    for at, one in enumerate(args):
        if one == word and at + 1 < len(args):
            return _positive(args[at + 1])
        if one.startswith(f"{word}="):
            return _positive(one.partition("=")[2])
    return None


def _positive(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and 0 < len(text) < 7 and int(text) > 0 else None
