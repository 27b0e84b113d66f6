"""Whether and how to trace; readable without the OpenTelemetry packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """`endpoint` None is what the OTEL_* variables say; `ratio` None is OTEL_TRACES_SAMPLER's choice, else all."""

    endpoint: str | None = None
    ratio: float | None = None


def wanted_by(environment: Mapping[str, str]) -> bool:
    """Whether the OTEL_* variables ask for traces over OTLP."""
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    none = environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp"
    return not off and not none and any(environment.get(name) for name in ENDPOINTS)
