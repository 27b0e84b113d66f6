"""`-o sarif`: SARIF 2.1.0, for code scanning and its viewers.

A rule a check that found something; a result a failure, warning or error. A target is a logical location, `namespace/
pod/container`; a fingerprint of check and target lets a viewer know a finding again although its numbers changed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from checks.model import Diagnosis, Result, Status, Target
from checks.report.grouping import at_least
from checks.report.shape import page
from checks.verdict import Severity, severity

_LEVEL = {Status.FAIL: "error", Status.WARN: "warning", Status.ERROR: "note"}
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def render(diagnosis: Diagnosis, version: str, least: Severity = Severity.NONE) -> str:
    shown = [one for one in at_least(diagnosis.results, least) if one.status in _LEVEL]
    rules = sorted({one.id: one for one in shown}.items())
    index = {check: at for at, (check, _) in enumerate(rules)}
    log = {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "kvctl",
                        "semanticVersion": version,
                        "rules": [_rule(one) for _, one in rules],
                    }
                },
                "results": [_result(one, index[one.id]) for one in shown],
                "properties": {
                    "verdict": str(diagnosis.verdict),
                    "confidence": diagnosis.confidence,
                    "why": diagnosis.why,
                    "stack": str(diagnosis.stack),
                },
                "columnKind": "unicodeCodePoints",
            }
        ],
    }
    return json.dumps(log, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _rule(result: Result) -> dict[str, Any]:
    return {
        "id": result.id,
        "shortDescription": {"text": result.title},
        "help": {"text": f"See {page(result.id)}; `kvctl validate --explain {result.id}` prints it."},
        "properties": {"tags": [str(result.group)]},
    }


def _result(result: Result, rule: int) -> dict[str, Any]:
    told = "; ".join(f"{one.where}: {one.text}" for one in result.evidence)
    parts = [
        result.message,
        *([f"Evidence: {told}"] if told else []),
        *([f"Hint: {result.hint}"] if result.hint else []),
    ]
    found: dict[str, Any] = {
        "ruleId": result.id,
        "ruleIndex": rule,
        "level": _LEVEL[result.status],
        "message": {"text": "\n".join(parts)},
        "locations": [
            {"logicalLocations": [{"fullyQualifiedName": _location(result.target), "kind": "resource"}]},
        ],
        "partialFingerprints": {"checkAndTarget/v1": _fingerprint(result)},
        "properties": {
            "severity": str(severity(result)),
            "reason": str(result.reason) if result.reason is not None else None,
            "causedBy": result.caused_by or None,
        },
    }
    if result.suppressed:
        found["suppressions"] = [{"kind": "external", "status": "accepted"}]
    return found


def _location(target: Target) -> str:
    parts = [part for part in (target.namespace, target.name, target.container) if part]
    return "/".join(parts) or "fleet"


def _fingerprint(result: Result) -> str:
    target = result.target
    text = "\0".join((result.id, target.kind, target.namespace, target.name, target.container))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
