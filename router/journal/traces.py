"""Traces (OpenTelemetry, the optional extra `kvctl[otel]`): a span a request, a child for each stage it went through.

The request's span begins when the request is complete, so that its context can go to the engine as `traceparent`; the
stages are added at the end, from times that were noted anyway. Sampling, resource, batching and export are the SDK's
and follow the OTEL_* variables. A span is exported by the SDK's own thread. Names follow the gen_ai conventions where
they have one. No prompt, no answer and no header is in a span. Cost of a sampled request: about 0.2 ms; of another one
about 10 us.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from router.answers import kvctl_version
from router.journal.line import clean
from router.journal.record import RequestRecord
from router.journal.trace_settings import TraceSettings
from router.legs import RoutedLeg
from router.proxy.interface import Inbound, Outcome

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_HEADERS = (b"traceparent", b"tracestate")
_w3c = TraceContextTextMapPropagator()
_NOWHERE = trace.set_span_in_context(trace.INVALID_SPAN)


def exporting(settings: TraceSettings) -> SpanProcessor:
    """The SDK's batch processor before an OTLP/HTTP exporter."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    endpoint = settings.endpoint
    if endpoint is not None and not endpoint.rstrip("/").endswith("/v1/traces"):
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    return BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint))


class Traces:
    """Makes the spans. `close` exports what is left."""

    def __init__(self, processor: SpanProcessor, ratio: float | None = None) -> None:
        sampler: Sampler | None = None if ratio is None else ParentBased(TraceIdRatioBased(ratio))
        self._provider = TracerProvider(sampler=sampler, resource=_resource(os.environ), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("kvctl", kvctl_version())

    def begin(self, inbound: Inbound, record: RequestRecord) -> Span:
        return self._tracer.start_span(
            f"{_OPERATIONS.get(inbound.path) or inbound.method} request",
            context=_parent(inbound),
            kind=trace.SpanKind.SERVER,
            start_time=_ns(record.at),
        )

    @staticmethod
    def upstream(record: RequestRecord) -> bytes:
        """The line by which the engine learns of the request's span; it replaces the client's `traceparent`."""
        assert record.span is not None
        own = record.span.get_span_context()
        lines = f"traceparent: 00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}\r\n"
        if own.trace_state:
            lines += f"tracestate: {own.trace_state.to_header()}\r\n"
        return lines.encode("latin-1", "replace")

    def end(self, inbound: Inbound, record: RequestRecord, leg: RoutedLeg | None, now: float) -> None:
        span = record.span
        if span is None:
            return
        if span.is_recording():
            self._describe(span, inbound, record, leg)
            self._stages(span, inbound, record, leg, now)
        span.end(_at(record, inbound, now))

    def close(self) -> None:
        """Blocks for the time of an export at most."""
        self._provider.shutdown()

    def _describe(self, span: Span, inbound: Inbound, record: RequestRecord, leg: RoutedLeg | None) -> None:
        outcome = "answered" if record.outcome is None else record.outcome.value
        if operation := _OPERATIONS.get(inbound.path):
            span.set_attribute("gen_ai.operation.name", operation)
        span.set_attributes(
            {
                "http.request.method": inbound.method,
                "url.path": clean(inbound.path),
                "http.response.status_code": record.status,
                "kvctl.request_id": inbound.request_id,
                "kvctl.outcome": outcome,
                "kvctl.attempts": record.legs,
            }
        )
        if record.caller is not None:
            span.set_attribute("kvctl.caller", record.caller.name)
        code = record.answer.code if record.answer is not None else ""
        failed = record.status >= 500 or record.outcome not in (None, Outcome.OK, Outcome.CLIENT_GONE)
        if code or failed:
            span.set_attribute("error.type", code or outcome)
        if failed:
            span.set_status(trace.StatusCode.ERROR, code or outcome)
        if leg is None:
            return
        request, decision, said = leg.request, leg.decision, leg.reported
        span.set_attributes(
            {
                "gen_ai.request.model": clean(request.model),
                "server.address": leg.endpoint.host,
                "server.port": leg.endpoint.port,
                "kvctl.worker": leg.worker.id,
                "kvctl.dp_rank": decision.rank,
                "kvctl.mode": decision.mode,
                "kvctl.reason": str(decision.reason),
                "kvctl.decision_id": decision.id,
                "kvctl.prompt_tokens": request.prompt_tokens,
                "kvctl.predicted_cached_tokens": decision.predicted_cached_tokens,
            }
        )
        if decision.degraded:
            span.set_attribute("kvctl.degraded", [str(flag) for flag in decision.degraded])
        if said is None:
            return
        for name, count in (
            ("gen_ai.usage.input_tokens", said.prompt_tokens),
            ("gen_ai.usage.output_tokens", said.completion_tokens),
            ("gen_ai.usage.cache_read.input_tokens", said.cached_tokens),
        ):
            if count is not None:
                span.set_attribute(name, count)

    def _stages(self, span: Span, inbound: Inbound, record: RequestRecord, leg: RoutedLeg | None, now: float) -> None:
        """Children of the request's span; of several attempts the last one's."""
        parent = trace.set_span_in_context(span)
        arrived = inbound.arrived
        if record.tokenise_s:
            self._stage("tokenise", parent, record, inbound, arrived, arrived + record.tokenise_s)
        if leg is None:
            return
        decided = max(leg.placed - leg.decision.decide_us / 1e6, arrived)
        if leg.request.waited_s:
            self._stage("queue", parent, record, inbound, max(decided - leg.request.waited_s, arrived), decided)
        self._stage("decide", parent, record, inbound, decided, leg.placed)
        sent = record.sent if record.sent >= leg.placed else 0.0
        self._stage("connect", parent, record, inbound, leg.placed, sent or now)
        if not sent:
            return
        self._stage("first byte", parent, record, inbound, sent, record.began or now)
        if record.began:
            self._stage("stream", parent, record, inbound, record.began, now)

    def _stage(
        self, name: str, parent: Context, record: RequestRecord, inbound: Inbound, begin: float, end: float
    ) -> None:
        child = self._tracer.start_span(name, context=parent, start_time=_at(record, inbound, begin))
        child.end(_at(record, inbound, max(begin, end)))


def _resource(environment: Mapping[str, str]) -> Resource:
    """The OTEL_* variables' word on the service's name, else ours."""
    named = environment.get("OTEL_SERVICE_NAME") or f"{SERVICE_NAME}=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return Resource.create({SERVICE_VERSION: kvctl_version()} | ({} if named else {SERVICE_NAME: "kvctl"}))


def _parent(inbound: Inbound) -> Context:
    """The context that the client's headers name; an empty one where they name none, or a malformed one."""
    carrier: dict[str, str] = {}
    for name, value in inbound.headers:
        if name in _HEADERS:
            carrier.setdefault(name.decode(), value.decode("latin-1").strip())
    return _w3c.extract(carrier) if carrier else _NOWHERE


def _at(record: RequestRecord, inbound: Inbound, moment: float) -> int:
    """Nanoseconds since the epoch of a time of `time.monotonic`."""
    return _ns(record.at + (moment - inbound.arrived))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
