"""`-o yaml`: the JSON report as YAML."""

from __future__ import annotations

import yaml

from checks.model import Diagnosis
from checks.report.shape import plain
from checks.verdict import Severity

try:
    from yaml import CSafeDumper as Dumper
except ImportError:  # PyYAML without libyaml, which is ten times as slow
    from yaml import SafeDumper as Dumper  # type: ignore[assignment]


def render(diagnosis: Diagnosis, version: str, least: Severity = Severity.NONE) -> str:
    data = plain(diagnosis, version, least)
    return str(yaml.dump(data, Dumper=Dumper, sort_keys=True, allow_unicode=True, width=120))
