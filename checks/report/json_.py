"""`-o json`: keys sorted, so that two reports can be compared as text."""

from __future__ import annotations

import json

from checks.model import Diagnosis
from checks.report.shape import plain
from checks.verdict import Severity


def render(diagnosis: Diagnosis, version: str, least: Severity = Severity.NONE) -> str:
    return json.dumps(plain(diagnosis, version, least), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
