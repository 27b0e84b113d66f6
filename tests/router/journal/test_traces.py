"""Spans of requests through a data plane and a scripted engine, caught by the SDK's exporter in memory."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra kvctl[otel]")

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from router.journal.journal import RequestJournal
from router.journal.record import RequestRecord
from router.journal.traces import Traces
from router.proxy.interface import Answer, Inbound
from tests.router.proxy.scripted import post, stage

PARENT = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{PARENT}-00f067aa0ba902b7-01".encode()


class Caught:
    def __init__(self, ratio: float | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.traces = Traces(SimpleSpanProcessor(self.exporter), ratio)

    @property
    def spans(self) -> dict[str, object]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


def inbound(*headers: tuple[bytes, bytes]) -> Inbound:
    return Inbound("POST", b"/v1/completions", "/v1/completions", list(headers), b"{}", True, time.monotonic())


def record(caught: Caught, request: Inbound) -> RequestRecord:
    made = RequestJournal(None, caught.traces).begin(request)
    request.record = made
    return made


async def test_answer_of_the_routers_own_is_one_span() -> None:
    caught = Caught()
    async with stage(journal=RequestJournal(None, caught.traces)) as scene:
        scene.placing.choose = lambda inbound: Answer(404, b"{}", code="not_found")
        await scene.ask(post(b'{"prompt": "PROMPT-MARKER"}', b"X-Request-Id: mine"))
    (span,) = caught.exporter.get_finished_spans()
    assert span.name == "text_completion request"
    assert span.attributes["http.response.status_code"] == 404
    assert span.attributes["error.type"] == "not_found"
    assert span.attributes["kvctl.request_id"] == "mine"
    assert "PROMPT-MARKER" not in span.to_json()


def test_span_continues_the_clients_trace() -> None:
    caught = Caught()
    request = inbound((b"traceparent", TRACEPARENT))
    made = record(caught, request)
    caught.traces.end(request, made, None, time.monotonic())
    (span,) = caught.exporter.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == PARENT
    assert f"{span.parent.span_id:016x}" == "00f067aa0ba902b7"


def test_engine_gets_the_requests_own_span_as_parent_with_the_clients_state() -> None:
    caught = Caught()
    made = record(caught, inbound((b"traceparent", TRACEPARENT), (b"tracestate", b"vendor=1")))
    lines = caught.traces.upstream(made).decode()
    span = made.span.get_span_context()
    assert f"traceparent: 00-{PARENT}-{span.span_id:016x}-01\r\n" in lines
    assert "tracestate: vendor=1\r\n" in lines


@pytest.mark.parametrize("given", [b"", b"00-xyz", b"\xff", b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01"])
def test_malformed_parent_begins_a_new_trace(given: bytes) -> None:
    caught = Caught()
    request = inbound((b"traceparent", given))
    caught.traces.end(request, record(caught, request), None, time.monotonic())
    (span,) = caught.exporter.get_finished_spans()
    assert span.parent is None


def test_request_that_is_not_sampled_is_passed_on_as_such_and_not_exported() -> None:
    caught = Caught(ratio=0.0)
    request = inbound()
    made = record(caught, request)
    flags = caught.traces.upstream(made).decode().strip().rpartition("-")[2]
    assert int(flags, 16) & 1 == 0
    caught.traces.end(request, made, None, time.monotonic())
    assert caught.exporter.get_finished_spans() == ()


def test_clients_choice_to_sample_wins_over_the_ratio() -> None:
    caught = Caught(ratio=0.0)
    request = inbound((b"traceparent", TRACEPARENT))
    caught.traces.end(request, record(caught, request), None, time.monotonic())
    assert len(caught.exporter.get_finished_spans()) == 1
