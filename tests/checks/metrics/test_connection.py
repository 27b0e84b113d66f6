"""The connection to a Prometheus: what a server may do to it, and what it sends."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from checks.metrics import connection as module
from checks.metrics.connection import Bearer, ConnectionProblem, PrometheusServer, Sigv4, auth_of
from checks.model import Reason

RESULT = [{"metric": {"pod": "w-0"}, "value": [1785578400.0, "1"]}]
GOOD = json.dumps({"status": "success", "data": {"resultType": "vector", "result": RESULT}})

Answering = Callable[[BaseHTTPRequestHandler], None]


def says(status: int, body: str, **headers: str) -> Answering:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body.encode())

    return answer


@contextlib.contextmanager
def server(answer: Answering, **options: Any) -> Iterator[tuple[PrometheusServer, list[BaseHTTPRequestHandler]]]:
    """A server that answers so, a connection to it, and the requests it got."""
    requests: list[BaseHTTPRequestHandler] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self)
            with contextlib.suppress(OSError):
                answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    options = {"timeout_s": 10.0, **options}
    connected = PrometheusServer(f"http://127.0.0.1:{http.server_port}/base/", **options)
    try:
        yield connected, requests
    finally:
        connected.close()
        http.shutdown()
        http.server_close()


def test_the_result_list_comes_back_as_json() -> None:
    with server(says(200, GOOD)) as (connected, requests):
        answer = connected.query("up")
    assert (answer.status, answer.error, json.loads(answer.text)) == (200, None, RESULT)
    assert answer.at > 0
    assert urlsplit(requests[0].path).path == "/base/api/v1/query"


def test_query_time_and_time_limit_are_sent() -> None:
    with server(says(200, GOOD), timeout_s=7.0) as (connected, requests):
        connected.query('a{b="c"}', at=1785578400.25)
    sent = parse_qs(urlsplit(requests[0].path).query)
    assert sent == {"query": ['a{b="c"}'], "timeout": ["7s"], "time": ["1785578400.250"]}


def test_further_headers_are_sent() -> None:
    with server(says(200, GOOD), headers={"X-Scope-OrgID": "team"}) as (connected, requests):
        connected.query("up")
    assert requests[0].headers["X-Scope-OrgID"] == "team"


def test_a_bearer_token_is_read_again_for_each_query(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with server(says(200, GOOD), auth=Bearer(file)) as (connected, requests):
        for token in ("first", "second"):
            file.write_text(f"{token}\n")
            connected.query("up")
    assert [request.headers["Authorization"] for request in requests] == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize("content", [None, "", "two\nlines", "\x00"])
def test_a_token_that_cannot_be_used_is_a_problem_that_names_the_file(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with server(says(200, GOOD), auth=Bearer(file)) as (connected, requests):
        answer = connected.query("up")
    assert (answer.error, requests) == (Reason.RBAC, [])
    assert str(file)[:40] in answer.message


@pytest.mark.parametrize(
    ("status", "body", "reason", "says_so"),
    [
        (401, "", Reason.RBAC, "denies the query (HTTP 401)"),
        (403, "<html>", Reason.RBAC, "denies the query (HTTP 403)"),
        (404, "", Reason.UNREACHABLE, "has no /api/v1/query"),
        (302, "", Reason.UNREACHABLE, "sends elsewhere (HTTP 302)"),
        (500, "", Reason.UNREACHABLE, "answers HTTP 500"),
        (504, "", Reason.TIMEOUT, "timed out"),
        (503, '{"error": "query timed out in expression evaluation"}', Reason.TIMEOUT, "timed out"),
        (422, '{"error": "too many samples"}', Reason.PARSE, "does not take the query: too many samples"),
        (400, '["x"]', Reason.PARSE, "does not take the query"),
    ],
)
def test_a_refusal_has_its_reason(status: int, body: str, reason: Reason, says_so: str) -> None:
    with server(says(status, body, Location="http://127.0.0.1:1/login")) as (connected, _):
        answer = connected.query("up")
    assert (answer.status, answer.error, answer.text) == (status, reason, "")
    assert says_so in answer.message


@pytest.mark.parametrize(
    "body",
    [
        "<html>login</html>",
        "",
        "[]",
        "{}",
        '{"data": null}',
        '{"data": {"result": {"a": 1}}}',
        '{"data": ' * 100_000,
        "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"),
    ],
    ids=["html", "empty", "list", "object", "null", "no list", "deep", "bytes"],
)
def test_what_is_no_query_result_is_a_parse_problem(body: str) -> None:
    with server(says(200, body)) as (connected, _):
        answer = connected.query("up")
    assert (answer.error, answer.text) == (Reason.PARSE, "")


def test_an_answer_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_BYTES", 1 << 20)
    with server(says(200, " " * (2 << 20))) as (connected, _):
        answer = connected.query("up")
    assert (answer.error, answer.message.partition(" answered ")[2]) == (Reason.PARSE, "with more than 1 MiB")


def test_a_server_that_says_nothing_is_a_timeout() -> None:
    done = threading.Event()
    with server(lambda _: done.wait(20) and None, timeout_s=0.3) as (connected, _):
        answer = connected.query("up")
        done.set()
    assert answer.error is Reason.TIMEOUT
    assert "did not answer within 0.3 s" in answer.message


@pytest.mark.parametrize("pause", [0.05, 5.0], ids=["trickles", "stalls"])
def test_an_answer_that_never_ends_is_a_timeout(pause: float) -> None:
    stop = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not stop.is_set():
            handler.wfile.write(b" " * (1 << 16))
            handler.wfile.flush()
            stop.wait(pause)

    with server(trickle, timeout_s=0.5) as (connected, _):
        answer = connected.query("up")
        stop.set()
    assert answer.error is Reason.TIMEOUT


def test_a_port_without_a_server_is_unreachable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        answer = PrometheusServer(f"http://user:secret@127.0.0.1:{port}").query("up")
    assert answer.error is Reason.UNREACHABLE
    assert answer.message == f"Prometheus at http://127.0.0.1:{port} is not reachable: Connection refused"


def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    answer = PrometheusServer("http://no-such-host.invalid:9090").query("up")
    assert answer.error is Reason.UNREACHABLE
    assert "\n" not in answer.message


def test_plain_http_on_a_tls_port_is_unreachable() -> None:
    with server(says(200, GOOD)) as (connected, _):
        secure = PrometheusServer(connected.url.replace("http:", "https:"))
        answer = secure.query("up")
    assert answer.error is Reason.UNREACHABLE
    assert "TLS" in answer.message


def test_control_characters_of_a_server_are_not_in_the_message() -> None:
    with server(says(422, json.dumps({"error": "x\x1b[31m\ny"}))) as (connected, _):
        message = connected.query("up").message
    assert message.isprintable()


@pytest.mark.parametrize("url", ["", "prometheus:9090", "ftp://host", "http://", "http://host:0", "http://[::1"])
def test_what_is_no_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConnectionProblem, match="no URL of a Prometheus"):
        PrometheusServer(url)


@pytest.mark.parametrize(
    ("text", "auth"),
    [
        ("", None),
        ("none", None),
        ("bearer:/run/token", Bearer(Path("/run/token"))),
        ("sigv4:eu-west-1", Sigv4("eu-west-1")),
    ],
)
def test_ways_to_authenticate_are_read(text: str, auth: object) -> None:
    assert auth_of(text) == auth


@pytest.mark.parametrize("text", ["sigv4:", "bearer", "basic:x", "sigv4"])
def test_other_ways_to_authenticate_are_refused(text: str) -> None:
    with pytest.raises(ConnectionProblem, match="sigv4:REGION, bearer:FILE or none"):
        auth_of(text)


def test_sigv4_without_botocore_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.auth", None)
    with server(says(200, GOOD), auth=Sigv4("eu-west-1")) as (connected, requests):
        answer = connected.query("up")
    assert (answer.error, requests) == (Reason.RBAC, [])
    assert answer.message == "sigv4 needs the package botocore: pip install botocore"


def test_sigv4_signs_for_amazon_managed_prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("botocore", reason="botocore is not installed")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with server(says(200, GOOD), auth=Sigv4("eu-west-1")) as (connected, requests):
        assert connected.query("sum by (pod) (up)").error is None
    signed = requests[0].headers["Authorization"]
    day = time.strftime("%Y%m%d", time.gmtime())
    assert signed.startswith(f"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/{day}/eu-west-1/aps/aws4_request")
    assert "+" not in requests[0].path


def test_sigv4_without_credentials_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("botocore", reason="botocore is not installed")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    answer = PrometheusServer("http://127.0.0.1:9", auth=Sigv4("eu-west-1")).query("up")
    assert "no AWS credentials" in answer.message
