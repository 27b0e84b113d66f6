"""A diagnosis as plain data: what `-o json` and `-o yaml` print. Its schema is data/report.schema.json.

`schema_version` rises when a key changes its meaning or goes; new keys may come without. Two runs over the same data
differ in `generated_at` only.
"""

from __future__ import annotations

from typing import Any

from checks.model import Diagnosis, Evidence, Result
from checks.report.grouping import at_least, shown_counts
from checks.verdict import Severity, severity

SCHEMA_VERSION = 1


def page(check: str) -> str:
    """Where a check is described, from the project's root."""
    return f"docs/checks/{check}.md"


def plain(diagnosis: Diagnosis, version: str, least: Severity = Severity.NONE) -> dict[str, Any]:
    """The report as JSON types; `version` is kvctl's. `least` leaves out results, which the summary still counts."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "kvctl", "version": version},
        "generated_at": diagnosis.generated_at,
        "target": {
            "context": diagnosis.context,
            "namespace": diagnosis.namespace,
            "stack": str(diagnosis.stack),
        },
        "versions": dict(diagnosis.versions),
        "sampled": diagnosis.sampled or None,
        "cut_short": diagnosis.cut_short or None,
        "summary": {
            **shown_counts(diagnosis.results),
            "verdict": str(diagnosis.verdict),
            "confidence": diagnosis.confidence,
            "why": diagnosis.why,
        },
        "results": [_result(one) for one in at_least(diagnosis.results, least)],
    }


def _result(result: Result) -> dict[str, Any]:
    target = result.target
    return {
        "id": result.id,
        "title": result.title,
        "group": str(result.group),
        "status": str(result.status),
        "severity": str(severity(result)),
        "target": {
            "kind": target.kind,
            "namespace": target.namespace,
            "name": target.name,
            "container": target.container,
        },
        "message": result.message,
        "evidence": [_evidence(one) for one in result.evidence],
        "hint": result.hint,
        "docs": page(result.id),
        "reason": str(result.reason) if result.reason is not None else None,
        "suppressed": result.suppressed,
        "caused_by": result.caused_by or None,
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {
        "source": evidence.source,
        "pod": evidence.where,
        "line": evidence.text,
        "time": evidence.time or None,
    }
