"""What the probe saw, put together for the checks: each request with who served it, cached tokens, and whether a cache
decided. Reads the decisions of kvctl's router and the logs of workers where answers do not tell."""

from __future__ import annotations

from dataclasses import dataclass

from checks.logs.view import LogView
from checks.probe.ask import Sent
from checks.probe.attribution import by_cache, cached_by_metric, looked, moved, routes
from checks.probe.course import Course
from checks.probe_evidence import ProbeEvidence, ProbeStep
from checks.snapshot import Member


def gathered(course: Course) -> ProbeEvidence:
    """All that is known of the requests that were sent."""
    course.find_routes(course.sent)
    reading = _Reading(course, {}, _hits(course))
    steps = tuple(reading.step(sent) for sent in course.sent)
    cold = course.cold
    tokens = None if cold is None else cold.reply.prompt_tokens
    before, after = (*course.registered, None, None)[:2]
    return ProbeEvidence(
        steps=steps,
        prompt_tokens=tokens or course.plan.tokens,
        unit_tokens=course.plan.unit,
        external_hit_tokens=course.external,
        registered_before_expiry=before,
        registered_after_expiry=after,
        choices=len(course.workers),
        skipped=dict(course.skipped),
        notes=tuple(course.notes),
    )


def _hits(course: Course) -> dict[str, bool]:
    """By request id, whether the router wrote that a cache was found; only for a router that writes that."""
    snapshot = course.snapshot
    if snapshot.strategy != "kvaware":
        return {}
    ids = [one.request_id for one in course.sent if one.reply.ok and not one.direct]
    found: dict[str, bool] = {}
    for router in snapshot.routers:
        log = None if router.router_log_level not in ("DEBUG", "INFO") else course.watch.log(router)
        if log is not None:
            found.update({key: route.by_cache for key, route in routes(log, ids).items()})
    return found


@dataclass(slots=True)
class _Reading:
    """Logs of workers, read once each."""

    course: Course
    logs: dict[str, LogView | None]
    hits: dict[str, bool]

    def step(self, sent: Sent) -> ProbeStep:
        reply = sent.reply
        served, how = self.course.served(sent) if reply.ok else ("", "")
        cached, source = self._cached(sent, served) if reply.ok else (None, "")
        return ProbeStep(
            name=sent.name,
            request_id=sent.request_id,
            status=reply.status,
            served_by=served,
            how=how,
            prompt_tokens=reply.prompt_tokens,
            cached_tokens=cached,
            cached_from=source,
            kv_routed=self._routed(sent) if reply.ok and not sent.direct else None,
            ttft_s=reply.ttft_s,
            error=reply.error,
            reason=reply.reason,
        )

    def _routed(self, sent: Sent) -> bool | None:
        for router in self.course.snapshot.routers:
            decision = self.course.watch.decision(router, sent.request_id)
            if decision is not None:
                return by_cache(decision)
        return self.hits.get(sent.request_id)

    def _cached(self, sent: Sent, served: str) -> tuple[int | None, str]:
        """Tokens from a cache: as the answer says, as LMCache's line says, as the counters say."""
        if sent.reply.cached_tokens is not None:
            return sent.reply.cached_tokens, "usage"
        worker = next((one for one in self.course.workers if one.key == served), None)
        if worker is None:
            return None, ""
        log = self._log(worker)
        told = looked(log, sent.request_id) if log is not None else None
        if told is not None and told.computed is not None:
            return told.cached, "log"
        grown = self.course.grown.get(sent.request_id)
        if grown is not None and moved(grown, self.course.workers) == served:
            counted = cached_by_metric(self.course.snapshot, grown, worker)
            if counted is not None:
                return counted, "metric"
        return (told.cached, "log") if told is not None else (None, "")

    def _log(self, worker: Member) -> LogView | None:
        if worker.key not in self.logs:
            self.logs[worker.key] = self.course.watch.log(worker)
        return self.logs[worker.key]
