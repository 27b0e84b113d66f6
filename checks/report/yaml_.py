"""`-o yaml`: the JSON report as YAML."""

from __future__ import annotations

import yaml

from checks.model import Diagnosis
from checks.report.shape import plain


def render(diagnosis: Diagnosis, version: str) -> str:
    return yaml.safe_dump(plain(diagnosis, version), sort_keys=True, allow_unicode=True, width=120)
