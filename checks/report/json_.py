"""`-o json`: keys sorted, so that two reports can be compared as text."""

from __future__ import annotations

import json

from checks.model import Diagnosis
from checks.report.shape import plain


def render(diagnosis: Diagnosis, version: str) -> str:
    return json.dumps(plain(diagnosis, version), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
