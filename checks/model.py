"""The nouns of a diagnosis: a check, what it found, where, and on which evidence.

Pure data. A check reads a `Snapshot` (checks/snapshot.py) and yields `Finding`s; it does no I/O and reads no clock: a
recorded cluster is judged exactly like a live one. Rule R0: the absence of a line or a sample is `skip`, never `fail`,
unless the source could have shown it (see `Member.why_absence_proves_nothing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checks.snapshot import Snapshot


class Status(StrEnum):
    """What a check says of one target."""

    PASS = "pass"  # noqa: S105
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    ERROR = "error"


class Reason(StrEnum):
    """Why a finding is `skip` or `error`. A closed list: scripts match on it."""

    NOT_APPLICABLE = "not_applicable"
    NO_DATA = "no_data"
    LOG_TRUNCATED = "log_truncated"
    LOG_LEVEL_HIDES = "log_level_hides"
    NO_TRAFFIC = "no_traffic"
    VERSION_UNKNOWN = "version_unknown"
    DISABLED = "disabled"
    GONE = "gone"
    RBAC = "rbac"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    PARSE = "parse"
    INTERNAL = "internal"


ERRORS = frozenset({Reason.RBAC, Reason.UNREACHABLE, Reason.TIMEOUT, Reason.PARSE, Reason.INTERNAL})
"""Reasons of `error`; the others belong to `skip`."""


class Stack(StrEnum):
    """Whose system this is; decides which checks apply."""

    HYPERPOD = "hyperpod"
    PRODUCTION_STACK = "production-stack"
    LLM_D = "llm-d"
    DYNAMO = "dynamo"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    KVCTL = "kvctl"
    UNKNOWN = "unknown"


CONTROLLER_STACKS = frozenset({Stack.HYPERPOD, Stack.PRODUCTION_STACK, Stack.UNKNOWN})
"""Stacks whose kvaware routing asks LMCache's controller inside the router."""


class Group(StrEnum):
    """Sections of the report, in its order."""

    ACCESS = "Access and discovery"
    CONFIGURATION = "Configuration and versions"
    REGISTRATION = "Registration"
    LMCACHE = "LMCache initialisation and backends"
    IDENTITY = "Hash and chunk consistency"
    ROUTING = "Routing decisions"
    EFFECT = "Cache effectiveness"
    METRICS = "Trust in the metrics"
    PROBE = "Active probes"
    OTHER_STACKS = "Other stacks"


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """What a finding is about. `kind` is a Kubernetes kind, `Process` without a cluster, or `Fleet` for all of it."""

    kind: str = "Fleet"
    namespace: str = ""
    name: str = ""
    container: str = ""

    def __str__(self) -> str:
        """`Pod w-0.prod/vllm` · `Process router` · `fleet`."""
        if self.kind == "Fleet":
            return "fleet"
        where = f"{self.name}.{self.namespace}" if self.namespace else self.name
        return f"{self.kind} {where}" + (f"/{self.container}" if self.container else "")

    @property
    def place(self) -> Target:
        """The same without the container."""
        return replace(self, container="") if self.container else self


FLEET = Target()


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that was read. `text` is clean (no control characters), redacted, at most 240 characters."""

    source: str
    """log · metric · pod · env · args · resource · http · probe"""
    where: str
    """Member, resource or query it came from."""
    text: str
    time: str = ""
    """Kubelet timestamp of a log line; empty elsewhere."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check says of one target, before the runner adds id, title and page."""

    status: Status
    message: str
    target: Target = FLEET
    evidence: tuple[Evidence, ...] = ()
    reason: Reason | None = None
    hint: str = ""
    """Overrides the check's own hint."""


def passed(message: str, target: Target = FLEET, *evidence: Evidence) -> Finding:
    return Finding(Status.PASS, message, target, evidence)


def warned(message: str, target: Target = FLEET, *evidence: Evidence, hint: str = "") -> Finding:
    return Finding(Status.WARN, message, target, evidence, hint=hint)


def failed(message: str, target: Target = FLEET, *evidence: Evidence, hint: str = "") -> Finding:
    return Finding(Status.FAIL, message, target, evidence, hint=hint)


def skipped(reason: Reason, message: str, target: Target = FLEET, *evidence: Evidence, hint: str = "") -> Finding:
    """Skip, or error where the reason says that something could not be read."""
    status = Status.ERROR if reason in ERRORS else Status.SKIP
    return Finding(status, message, target, evidence, reason, hint)


@dataclass(frozen=True, slots=True)
class Check:
    """One question with a stable id. `run` yields at least one finding; it never raises on odd data."""

    id: str
    title: str
    group: Group
    worst: Status
    """The worst state it may give."""
    reads: str
    """What it looks at, in a few words, for `--explain` and its page."""
    rule: str
    """When it passes, warns and fails, with thresholds and why; for `--explain` and its page."""
    hint: str
    """What to do when it does not pass; one line."""
    run: Callable[[Snapshot], Iterable[Finding]]
    stacks: frozenset[Stack] | None = None
    """Stacks it makes sense for; None: all. On others the runner says skip(not_applicable)."""
    caused_by: tuple[str, ...] = ()
    """Checks whose failure explains a failure of this one; it is then folded under them."""
    required: bool = False
    """With --strict a required check that ends in skip(no_data|no_traffic|log_truncated) makes the run inconclusive."""
    proves: bool = False
    """A pass of it is positive evidence that routing by cache works; without any such pass no run says `working`."""
    needs_probe: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A finding with everything a report prints; its texts are clean. Sorted by (id, target)."""

    id: str
    title: str
    group: Group
    status: Status
    target: Target
    message: str
    hint: str
    evidence: tuple[Evidence, ...] = ()
    reason: Reason | None = None
    suppressed: bool = False
    caused_by: str = ""
    """Id of the failed check that this failure is folded under."""


class Verdict(StrEnum):
    """`working` needs positive evidence; only skips and errors make `inconclusive`."""

    WORKING = "working"
    DEGRADED = "degraded"
    BROKEN = "broken"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole answer, as every report prints it."""

    verdict: Verdict
    confidence: str
    """high · medium · low: how much of what proves routing could be read."""
    why: str
    """The verdict in one sentence."""
    results: tuple[Result, ...]
    stack: Stack
    namespace: str
    context: str
    generated_at: str
    versions: Mapping[str, object] = field(default_factory=dict)
    sampled: str = ""
    """`50 of 1200 worker logs` where logs were sampled."""
    cut_short: str = ""
    """Why the run ended early (timeout, Ctrl-C); empty when it did not."""

    def count(self, status: Status) -> int:
        """Results of a state that are neither suppressed nor folded."""
        return sum(1 for one in self.results if one.status is status and not one.suppressed and not one.caused_by)
