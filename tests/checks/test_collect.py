"""Systems without a cluster, known by URL and log file; recordings written by hand; the request itself."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from checks.collect import CollectRequest, LogFile, RequestError, SourceError, collect
from checks.model import Reason, Stack
from checks.snapshot import Role, Snapshot
from checks.sources.tape import Tape

LOGS = Path(__file__).parents[2].parent / "shared" / "data" / "logs"
WORKER_LOG = "INFO 08-01 10:00:05 [api_server.py:1] vLLM API server version 0.19.1\n"


@contextmanager
def serving(pages: dict[str, Any]) -> Iterator[str]:
    """A web server on a free loopback port; JSON for what is no text, 404 for other paths."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path)
            data = b"" if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def page(tokens: int) -> str:
    return f'# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{{model_name="m"}} {tokens}\n'


def engine(tokens: int = 5) -> dict[str, Any]:
    return {"/metrics": page(tokens), "/version": {"version": "0.19.1"}, "/v1/models": {"data": [{"id": "m"}]}}


def take(**request: Any) -> Snapshot:
    return collect(CollectRequest(scrape_interval_s=0.01, **request), Tape.live())


def unused() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


# -- processes ---------------------------------------------------------------------------------------------------


def test_a_router_and_engines_by_url() -> None:
    router = {"/version": {"version": "0.1.11"}, "/engines": {"data": []}, "/metrics": "# TYPE x gauge\nx 1\n"}
    with serving(router) as first, serving(engine()) as second:
        found = take(routers=(first,), workers=(second,))
    assert [(one.role, one.url, one.kind, one.ready) for one in found.members] == [
        (Role.ROUTER, first, "Process", True),
        (Role.WORKER, second, "Process", True),
    ]
    assert (found.cluster, found.stack, found.namespace) == (False, Stack.PRODUCTION_STACK, "")
    assert found.members[1].answers["/version"] == {"version": "0.19.1"}
    assert found.members[1].model == "m"
    assert [one.value for one in found.metrics.find("prompt_tokens")] == [5.0]


def test_kvctl_is_asked_on_its_admin_port_and_tells_its_workers() -> None:
    with serving(engine()) as worker:
        admin = {
            "/workers": {"workers": [{"id": "w1", "url": worker}]},
            "/metrics": "# TYPE kvctl_x gauge\nkvctl_x 1\n",
        }
        with serving(admin) as control, serving({"/version": {"version": "1", "router": "kvctl"}}) as router:
            found = take(routers=(router,), admin=control)
    assert found.stack is Stack.KVCTL
    assert [one.name for one in found.workers] == ["w1"]
    assert found.routers[0].answers["/workers"]["workers"][0]["id"] == "w1"
    assert found.metrics.pages[found.routers[0].key].families == {"kvctl_x"}


def test_a_worker_that_does_not_answer_is_not_ready_and_noted() -> None:
    gone = unused()
    with serving(engine()) as worker:
        found = take(workers=(worker, gone))
    assert [one.ready for one in found.workers] == [True, False]
    assert [(one.reason, gone in one.message) for one in found.unread] == [(Reason.UNREACHABLE, True)]


def test_nothing_that_answers_is_said_in_one_line() -> None:
    with pytest.raises(SourceError, match=r"nothing answered: .* cannot be reached: connection refused"):
        take(routers=(unused(),), workers=(unused(),))


def test_a_url_that_is_none_is_named() -> None:
    with pytest.raises(RequestError, match="--worker 'ftp://x' is not a URL"):
        take(workers=("ftp://x",))


def test_logs_alone(tmp_path: Path) -> None:
    (tmp_path / "w.log").write_text(WORKER_LOG)
    found = take(log_files=(LogFile.parse(f"worker:w1={tmp_path / 'w.log'}"),))
    assert [(one.name, one.ready, one.url) for one in found.workers] == [("w1", True, "")]
    log = found.workers[0].log
    assert log is not None and log.has("vllm-version")
    assert found.metrics.missing is Reason.NO_DATA


def test_both_ends_of_a_long_file_are_read(tmp_path: Path) -> None:
    filler = "".join(f"INFO 08-01 10:00:06 [x.py:1] filler {number}\n" for number in range(500))
    (tmp_path / "w.log").write_text(WORKER_LOG + filler + WORKER_LOG)
    found = take(log_files=(LogFile.parse(f"worker={tmp_path / 'w.log'}"),), log_limit_bytes=4096)
    log = found.workers[0].log
    assert log is not None
    assert (log.count("vllm-version"), log.unread_bytes) == (2, True)


def test_a_log_of_a_worker_known_by_url(tmp_path: Path) -> None:
    (tmp_path / "w.log").write_text(WORKER_LOG)
    with serving(engine()) as worker:
        found = take(workers=(worker,), log_files=(LogFile.parse(f"worker={tmp_path / 'w.log'}"),))
    assert [one.url for one in found.workers] == [worker]
    assert found.workers[0].log is not None


def test_a_missing_log_file_is_noted(tmp_path: Path) -> None:
    with serving(engine()) as worker:
        found = take(workers=(worker,), log_files=(LogFile.parse(f"router={tmp_path / 'none.log'}"),))
    assert [(one.what, one.reason) for one in found.unread] == [("log of router", Reason.GONE)]


def test_a_recording_of_processes_replays_without_them(tmp_path: Path) -> None:
    (tmp_path / "w.log").write_text(WORKER_LOG)
    with serving({"/version": {"version": "0.1.11"}}) as router, serving(engine()) as worker:
        file = LogFile.parse(f"worker={tmp_path / 'w.log'}")
        request = CollectRequest(routers=(router,), workers=(worker,), log_files=(file,), scrape_interval_s=0.01)
        with Tape.record(tmp_path / "rec", options=request.options(), version="1") as tape:
            recorded = collect(request, tape)
    (tmp_path / "w.log").unlink()
    replay = Tape.replay(tmp_path / "rec")
    assert collect(CollectRequest.of_options(replay.options), replay) == recorded


@pytest.mark.skipif(not LOGS.is_dir(), reason="the shared logs are not here")
def test_a_real_log_of_a_degraded_engine() -> None:
    found = take(log_files=(LogFile.parse(f"worker={LOGS / 'vllm-lmcache-degraded.log'}"),))
    log = found.workers[0].log
    assert log is not None
    assert log.has("lmcache-manager-failed") and log.head_complete


# -- by hand -----------------------------------------------------------------------------------------------------


def by_hand(folder: Path, **files: str) -> Path:
    """A recording with one worker pod; `files`: further answers as KIND__KEY=text with `_slash_` for `/`."""
    pod = {
        "metadata": {"name": "w-0", "namespace": "prod", "labels": {"app.kubernetes.io/component": "serving-engine"}},
        "spec": {"containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.19.1"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "podIP": "10.0.0.1"},
    }
    rows = {("kubernetes", "prod/pods"): json.dumps({"items": [pod]})}
    rows |= {(kind, key): text for name, text in files.items() for kind, _, key in [name.partition("__")]}
    folder.mkdir()
    options = {"namespace": "prod", "scrape_interval_s": 0}
    (folder / "manifest.json").write_text(json.dumps({"schema_version": 1, "now": 1785580200.0, "options": options}))
    lines = []
    for number, ((kind, key), text) in enumerate(rows.items()):
        (folder / f"{number}.txt").write_text(text)
        lines.append(json.dumps({"kind": kind, "key": key.replace("_slash_", "/"), "file": f"{number}.txt"}))
    (folder / "index.jsonl").write_text("\n".join(lines))
    return folder


def replayed(folder: Path) -> Snapshot:
    tape = Tape.replay(folder)
    return collect(CollectRequest.of_options(tape.options), tape)


def test_pods_alone_make_a_recording(tmp_path: Path) -> None:
    found = replayed(by_hand(tmp_path / "rec"))
    assert [one.key for one in found.members] == ["prod/w-0"]
    assert found.members[0].log_missing is Reason.NO_DATA
    assert (found.now, found.namespace, found.metrics.missing) == (1785580200.0, "prod", Reason.NO_DATA)
    assert found.unread == ()


def test_a_log_and_a_page_by_hand(tmp_path: Path) -> None:
    folder = by_hand(
        tmp_path / "rec",
        **{"log__prod/w-0/vllm head": f"2026-08-01T10:00:00Z {WORKER_LOG}", "page__prod/w-0:8000/metrics": page(7)},
    )
    found = replayed(folder)
    assert found.members[0].log is not None and found.members[0].log.has("vllm-version")
    assert [(one.value, one.increase) for one in found.metrics.find("prompt_tokens")] == [(7.0, 0.0)]


def test_permissions_by_hand(tmp_path: Path) -> None:
    row = {"verb": "get", "resource": "pods/log", "namespace": "prod", "allowed": False}
    found = replayed(by_hand(tmp_path / "rec", **{"kubernetes__prod/access": json.dumps([row])}))
    assert [(one.resource, one.allowed) for one in found.access] == [("pods/log", False)]


def test_custom_resources_by_hand_need_no_discovery(tmp_path: Path) -> None:
    items = {"items": [{"metadata": {"name": "x", "namespace": "prod"}}]}
    found = replayed(by_hand(tmp_path / "rec", **{"kubernetes__prod/inferenceendpointconfigs": json.dumps(items)}))
    assert found.stack is Stack.HYPERPOD


def test_a_recording_without_pods_says_so(tmp_path: Path) -> None:
    folder = by_hand(tmp_path / "rec")
    (folder / "index.jsonl").write_text("")
    assert [(one.what, one.reason) for one in replayed(folder).unread] == [("pods in prod", Reason.NO_DATA)]


# -- the request -------------------------------------------------------------------------------------------------


def test_a_request_survives_a_recording_without_paths_of_this_machine() -> None:
    file = LogFile.parse("worker:a=/home/me/w.log")
    request = CollectRequest(namespace="prod", kubeconfig="/home/me/k", log_files=(file,), stack=Stack.LLM_D)
    again = CollectRequest.of_options(json.loads(json.dumps(request.options())))
    assert "/home/me" not in json.dumps(request.options())
    assert (again.namespace, again.stack, again.log_files[0].name) == ("prod", Stack.LLM_D, "a")


@pytest.mark.parametrize("text", ["w.log", "engine=w.log", "worker:=w.log", "router=", "=w.log"])
def test_a_log_option_that_is_none_is_named(text: str) -> None:
    with pytest.raises(RequestError, match="write ROLE=FILE"):
        LogFile.parse(text)


def test_an_option_of_a_manifest_that_cannot_be_is_named() -> None:
    with pytest.raises(RequestError, match="concurrency"):
        CollectRequest.of_options({"concurrency": "many"})
