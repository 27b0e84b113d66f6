"""What checks ask of the probe's requests: which were answered, why there are none, and how they are shown. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from checks.model import FLEET, Check, Evidence, Finding, Group, Reason, Status, skipped
from checks.probe_evidence import ProbeEvidence, ProbeStep
from checks.snapshot import Snapshot

SHOWN = 4
"""Requests shown as evidence."""


def evidence_of(snapshot: Snapshot) -> ProbeEvidence:
    """What the probe saw; refused where there was none."""
    return snapshot.probe or ProbeEvidence(refused="no probe was made")


def answered(probe: ProbeEvidence, name: str) -> list[ProbeStep]:
    """Requests of that name that were answered."""
    return [step for step in probe.named(name) if step.status == 200 and not step.error]


def cold_of(probe: ProbeEvidence) -> ProbeStep | None:
    """The first request of the prompt that was repeated."""
    return next(iter(answered(probe, "cold")), None)


def why_not(probe: ProbeEvidence, *names: str) -> Finding | None:
    """Why nothing can be said of steps of these names; None where each was answered at least once."""
    if probe.refused:
        return skipped(Reason.DISABLED, probe.refused)
    for name in names:
        if answered(probe, name):
            continue
        if bad := [step for step in probe.steps if step.name == name and step.error]:
            reason = bad[-1].reason or Reason.UNREACHABLE
            return skipped(reason, f"the {name} request failed: {bad[-1].error}", FLEET, *shown_steps(bad))
        if name in probe.skipped:
            return skipped(Reason.NOT_APPLICABLE, f"not sent: {probe.skipped[name]}")
        if probe.cut_short:
            bad = [step for step in probe.steps if step.error]
            reason = bad[-1].reason or Reason.UNREACHABLE if bad else Reason.NO_DATA
            return skipped(reason, f"the probe ended early: {probe.cut_short}", FLEET, *shown_steps(bad))
        return skipped(Reason.NO_DATA, f"no {name} request was sent")
    return None


def shown_steps(steps: Sequence[ProbeStep]) -> list[Evidence]:
    return [Evidence("probe", step.served_by or "router", _line(step)) for step in steps[:SHOWN]]


def _line(step: ProbeStep) -> str:
    parts = [step.request_id, f"HTTP {step.status}" if step.status else "no answer"]
    if step.served_by:
        parts.append(f"served by {step.served_by} ({step.how})")
    if step.prompt_tokens is not None:
        parts.append(f"{step.prompt_tokens} tokens")
    if step.cached_tokens is not None:
        parts.append(f"{step.cached_tokens} cached ({step.cached_from})")
    if step.kv_routed is not None:
        parts.append("a cache decided" if step.kv_routed else "no cache decided")
    return ", ".join(parts)[:240]


def probe_check(
    id: str,
    title: str,
    worst: Status,
    run: Callable[[Snapshot], Iterable[Finding]],
    *,
    reads: str,
    rule: str,
    hint: str,
    caused_by: tuple[str, ...] = (),
    proves: bool = False,
) -> Check:
    """A check of the section Active probes."""
    return Check(
        id,
        title,
        Group.PROBE,
        worst,
        reads=reads,
        rule=rule,
        hint=hint,
        run=run,
        caused_by=caused_by,
        proves=proves,
        needs_probe=True,
    )
