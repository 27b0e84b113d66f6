"""Traces of a running router, received over OTLP and decoded; and what is said where the packages are missing."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.proto", reason="needs the extra kvctl[otel]")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.live.conftest import RunningRouter, running_router
from tests.live.scripted_engine import ScriptedEngine, scripted_engine

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


class Receiver:
    """Takes OTLP over HTTP and keeps the spans."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.raw = b""

    def trace(self, trace_id: str) -> dict[str, Any]:
        return {span.name: span for span in self.spans if span.trace_id.hex() == trace_id}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    found = Receiver("")

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                raw = gzip.decompress(raw)
            found.raw += raw
            for group in ExportTraceServiceRequest.FromString(raw).resource_spans:
                found.resources.append({one.key: one.value.string_value for one in group.resource.attributes})
                for scope in group.scope_spans:
                    found.spans.extend(scope.spans)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with scripted_engine() as running:
        yield running


@pytest.fixture(scope="module")
def router(receiver: Receiver, engine: ScriptedEngine) -> Iterator[RunningRouter]:
    with running_router(
        *("--worker", f"{engine.url},id=w1,block-size=16", "--otel-endpoint", receiver.url),
        variables={"OTEL_BSP_SCHEDULE_DELAY": "50"},
    ) as running:
        running.wait("the engine is up", lambda: running.http.get("/ready").status_code == 200)
        yield running


@pytest.fixture(scope="module")
def spans(router: RunningRouter, receiver: Receiver) -> dict[str, Any]:
    """Those of one good request, by name."""
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
    answer = router.http.post("/v1/completions", json={"model": "m", "prompt": "PROMPT-MARKER"}, headers=headers)
    assert answer.status_code == 200
    router.wait("the spans have come", lambda: "text_completion request" in receiver.trace(TRACE))
    return receiver.trace(TRACE)


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def test_request_has_a_child_for_each_stage(spans: dict[str, Any]) -> None:
    assert set(spans) == {"text_completion request", "tokenise", "decide", "connect", "first byte", "stream"}
    root = spans["text_completion request"]
    assert root.parent_span_id.hex() == PARENT
    assert {span.parent_span_id for name, span in spans.items() if span is not root} == {root.span_id}


def test_stages_lie_within_the_request_one_after_the_other(spans: dict[str, Any]) -> None:
    root = spans["text_completion request"]
    stages = [spans[name] for name in ("tokenise", "decide", "connect", "first byte", "stream")]
    for span in stages:
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano + 1_000_000
    assert [span.start_time_unix_nano for span in stages] == sorted(span.start_time_unix_nano for span in stages)


def test_request_is_described_by_the_gen_ai_conventions_and_our_own(spans: dict[str, Any]) -> None:
    found = attributes(spans["text_completion request"])
    assert found["gen_ai.operation.name"] == "text_completion"
    assert found["gen_ai.request.model"] == "m"
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (40, 2)
    assert found["http.response.status_code"] == 200
    assert (found["kvctl.worker"], found["kvctl.mode"], found["kvctl.attempts"]) == ("w1", "kv", 1)


def test_engine_gets_the_requests_span_as_its_parent(spans: dict[str, Any], engine: ScriptedEngine) -> None:
    last = engine.of("/v1/completions")[0]
    root = spans["text_completion request"]
    (context,) = last.all("traceparent")
    assert context.split("-")[1:3] == [TRACE, root.span_id.hex()]
    assert last.all("tracestate") == ["vendor=1"]


def test_no_prompt_is_exported(spans: dict[str, Any], receiver: Receiver) -> None:
    assert b"text_completion request" in receiver.raw
    assert b"PROMPT-MARKER" not in receiver.raw


def test_router_is_named_as_the_service(spans: dict[str, Any], receiver: Receiver) -> None:
    assert receiver.resources[0]["service.name"] == "kvctl"


def test_refused_request_is_a_span_with_the_error(router: RunningRouter, receiver: Receiver) -> None:
    trace = TRACE[::-1]
    headers = {"traceparent": f"00-{trace}-{PARENT}-01"}
    router.http.post("/v1/completions", json={"model": "none", "prompt": "a"}, headers=headers)
    router.wait("the span has come", lambda: receiver.trace(trace))
    (span,) = receiver.trace(trace).values()
    assert attributes(span)["error.type"] == "model_not_found"


def test_without_the_packages_one_line_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("raise ImportError('hidden', name='opentelemetry')\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KVCTL_")}
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{Path.cwd()}"
    command = [sys.executable, "-m", "kvctl", "serve", "--port", "0", "--admin-port", "0"]
    done = subprocess.run(
        [*command, "--otel-endpoint", "http://127.0.0.1:9"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'kvctl[otel]'" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
