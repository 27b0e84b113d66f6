"""What the active probe saw, as pure data: its requests and their answers, without prompts and texts.

Filled by checks/probe, read by the checks of KV8xx. Stands apart from checks/probe so that checks need no part of what
sends requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from checks.model import Reason


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """One probe request and its answer. Times in seconds."""

    name: str
    """size · cold · repeat · control · suffix · chat · other-instance · stream-cold · stream-warm · expiry"""
    request_id: str
    status: int
    served_by: str = ""
    """Key of the member that served it; empty where nothing told."""
    how: str = ""
    """header · router-log · metric · direct: how `served_by` is known."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """None where the engine did not say; that is not 0."""
    cached_from: str = ""
    """usage · log · metric"""
    kv_routed: bool | None = None
    """A line or header says that the cache decided; None where nothing tells."""
    ttft_s: float | None = None
    error: str = ""
    reason: Reason | None = None
    """What kind of error."""


@dataclass(frozen=True, slots=True)
class ProbeEvidence:
    """What the active probe saw. `refused` says why it did not run."""

    steps: tuple[ProbeStep, ...] = ()
    refused: str = ""
    prompt_tokens: int = 0
    unit_tokens: int = 0
    """Tokens of the smallest reusable piece (block or chunk)."""
    external_hit_tokens: float | None = None
    """LMCache or connector hit tokens on the other instance in P4; None where it was not tried or not readable."""
    registered_before_expiry: float | None = None
    registered_after_expiry: float | None = None
    choices: int = 0
    """Workers that the router could choose among."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Why steps of a name were not sent."""
    cut_short: str = ""
    """Why it ended before its last step."""
    notes: tuple[str, ...] = ()

    def named(self, name: str) -> list[ProbeStep]:
        return [step for step in self.steps if step.name == name]

    def tokens_at(self, member: str) -> int:
        """Prompt tokens of the probe's own requests that a member (key) served: traffic that says nothing of others."""
        return sum(step.prompt_tokens or 0 for step in self.steps if step.served_by == member)
