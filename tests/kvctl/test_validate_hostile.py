"""`kvctl validate` as a process in a bad world: signals, outputs that are closed, full or ASCII, servers that hang."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from tests.checks.cluster.emulated import Cluster
from tests.checks.test_collect import engine, serving
from tests.kvctl.conftest import Run
from tests.kvctl.test_validate import degraded, kubeconfig, one_line

COMMAND = [sys.executable, "-m", "kvctl", "validate"]
ESCAPES = "\x1b]0;owned\x07\x1b[31m"


def environment(**more: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("KVCTL_", "KUBE", "LC_", "COLUMNS"))
    }
    return kept | more


def ran(*arguments: str, stdout: int | IO[bytes] = subprocess.PIPE, **more: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [*COMMAND, *arguments], stdout=stdout, stderr=subprocess.PIPE, timeout=120, env=environment(**more), check=False
    )
    return done.returncode, (done.stdout or b"").decode(), done.stderr.decode()


@contextmanager
def dripping() -> Iterator[tuple[str, threading.Event]]:
    """A server whose headers never end, and an event that is set once it was asked."""
    done, asked = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)

        def drip(connection: socket.socket) -> None:
            with connection:
                try:
                    connection.sendall(b"HTTP/1.1 200 OK\r\n")
                    while not done.wait(0.1):
                        connection.sendall(b"X: y\r\n")
                except OSError:
                    return

        def accept() -> None:
            while not done.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                asked.set()
                threads.append(threading.Thread(target=drip, args=(connection,), daemon=True))
                threads[-1].start()

        acceptor = threading.Thread(target=accept, daemon=True)
        acceptor.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        finally:
            done.set()
            for thread in (acceptor, *threads):
                thread.join(10)


def signalled(number: signal.Signals, asked: threading.Event, *arguments: str, **more: str) -> tuple[int, str, str]:
    """The process gets the signal once the server was asked."""
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**more)
    ) as process:
        assert asked.wait(60)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


# -- signals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code", "why"),
    [(signal.SIGINT, 130, "interrupted with Ctrl-C"), (signal.SIGTERM, 143, "ended by SIGTERM")],
)
def test_a_signal_while_the_router_is_asked_first_of_all_reports_what_is_there(
    tmp_path: Path, number: signal.Signals, code: int, why: str
) -> None:
    with dripping() as (url, asked):
        log = f"worker={degraded(tmp_path)}"
        got, out, err = signalled(number, asked, "--router", url, "--log", log, "-o", "json")
    assert (got, err) == (code, "")
    assert json.loads(out)["cut_short"] == why


def test_ctrl_c_while_the_api_server_is_asked_first_of_all_is_one_line(tmp_path: Path) -> None:
    with dripping() as (url, asked):
        code, out, err = signalled(signal.SIGINT, asked, KUBECONFIG=str(kubeconfig(tmp_path, url)))
    assert (code, out) == (130, "")
    assert one_line(err) == "kvctl: interrupted with Ctrl-C before anything had answered\n"


def test_ctrl_c_while_prometheus_is_asked_reports_what_is_there(tmp_path: Path) -> None:
    with dripping() as (url, asked):
        log = f"worker={degraded(tmp_path)}"
        code, out, err = signalled(signal.SIGINT, asked, "--log", log, "--prometheus", url, "-o", "json")
    assert (code, err) == (130, "")
    assert json.loads(out)["cut_short"] == "interrupted with Ctrl-C"


def test_sigterm_before_anything_answered_leaves_no_half_recording(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    with dripping() as (url, asked):
        code, _, _ = signalled(signal.SIGTERM, asked, "--worker", url, "--record", str(folder / "rec"))
    assert code == 143
    assert list(folder.iterdir()) == []


def test_a_pipe_that_nobody_writes_to_does_not_outlast_ctrl_c(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with dripping() as (url, asked):
        code, _, err = signalled(
            signal.SIGINT, asked, "--log", f"worker={tmp_path / 'pipe'}", "--prometheus", url, "-o", "json"
        )
    assert (code, err) == (130, "")


# -- outputs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["wide", "yaml", "json"])
def test_an_ascii_output_is_written_to_the_end(tmp_path: Path, form: str) -> None:
    log = tmp_path / "engine.log"
    log.write_text(degraded(tmp_path).read_text().replace("no such backend", "kein Gerät «cpu» 😀"), encoding="utf-8")
    code, out, err = ran("--log", f"worker={log}", "-o", form, PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    assert (code, err) == (1, "")
    read = {"wide": str, "yaml": yaml.safe_load, "json": json.loads}[form](out)
    assert "kein Ger" in str(read)
    assert form == "wide" or "«cpu» 😀" in str(read)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", ["text", "json"])
def test_an_output_without_room_is_one_line_with_exit_code_3(tmp_path: Path, form: str) -> None:
    with Path("/dev/full").open("wb") as full:
        code, _, err = ran("--log", f"worker={degraded(tmp_path)}", "-o", form, stdout=full)
    assert code == 3
    assert one_line(err) == "kvctl: the report cannot be written: No space left on device\n"


@pytest.mark.parametrize("form", ["wide", "json"])
def test_a_reader_that_goes_away_changes_nothing_about_the_exit_code(tmp_path: Path, form: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        code, _, err = ran("--log", f"worker={degraded(tmp_path)}", "-o", form, stdout=closed)
    assert (code, err) == (1, "")


def test_no_output_at_all_changes_nothing_about_the_exit_code(tmp_path: Path) -> None:
    script = 'exec "$@" >&-'
    command = ["sh", "-c", script, "sh", *COMMAND, "--log", f"worker={degraded(tmp_path)}", "-q"]
    done = subprocess.run(command, stderr=subprocess.PIPE, timeout=120, env=environment(), check=False)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("columns", ["20", "1", "0", "-3", "x"])
def test_any_width_is_reported_in(kvctl: Run, tmp_path: Path, columns: str) -> None:
    done = kvctl("--log", f"worker={degraded(tmp_path)}", COLUMNS=columns)
    assert (done.returncode, done.stderr) == (1, "")
    assert "DEGRADED" in done.stdout


def test_lines_fit_a_terminal_of_twenty_columns(kvctl: Run, tmp_path: Path) -> None:
    done = kvctl("--log", f"worker={degraded(tmp_path)}", "-q", COLUMNS="20")
    assert max(map(len, done.stdout.splitlines())) <= 20


# -- systems -----------------------------------------------------------------------------------------------------


def test_an_api_server_whose_message_holds_escapes_is_one_clean_line(kvctl: Run, tmp_path: Path) -> None:
    with Cluster().serving(tmp_path) as cluster:
        cluster.trouble("/apis", 401, message=f"who are you? token={'planted' * 2} {ESCAPES}")
        done = kvctl(KUBECONFIG=str(cluster.kubeconfig))
    assert (done.returncode, done.stdout) == (3, "")
    assert one_line(done.stderr).rstrip("\n").isprintable()
    assert "who are you?" in done.stderr
    assert "planted" not in done.stderr


@pytest.mark.parametrize(("query", "code"), [("", 3), ("/x?q=1", 2)])
def test_a_password_in_a_url_is_not_printed(kvctl: Run, query: str, code: int) -> None:
    done = kvctl("--worker", f"http://me:planted@127.0.0.1:1{query}")
    assert done.returncode == code
    assert "planted" not in one_line(done.stderr)


def test_a_url_given_twice_is_one_worker(kvctl: Run) -> None:
    with serving(engine()) as url:
        done = kvctl("--worker", url, "--worker", f"{url}/", "-o", "json", "--checks", "KV003", "--timeout", "1s")
    assert len(json.loads(done.stdout)["versions"]["workers"]) == 1


def test_a_url_that_is_router_and_worker_is_refused(kvctl: Run) -> None:
    done = kvctl("--router", "http://127.0.0.1:1", "--worker", "http://127.0.0.1:1")
    assert done.returncode == 2
    assert "also given as --router" in one_line(done.stderr)


ADMIN: dict[str, Any] = {
    "/metrics": "kvctl_open_requests 1\n",
    "/workers": {
        "workers": [{"id": "127.0.0.1:1", "url": "http://[x"}, {"id": "w", "url": "file:///etc/passwd"}, 7, None]
    },
    "/index": "[" * 100_000,
    "/decisions": {"decisions": {"id": 1}},
    "/config": {"dispatch": [1]},
    "/loads": {"loads": "many"},
}


def test_a_router_whose_answers_are_nonsense_is_judged_without_internal_errors(kvctl: Run) -> None:
    answers = {**ADMIN, "/version": {"version": [], "router": "kvctl"}, "/v1/models": {"data": {}}}
    with serving(answers) as url:
        done = kvctl("--router", url, "--admin", url, "-o", "json", "--timeout", "2s")
    assert done.returncode in (0, 1), done.stderr
    assert [one for one in json.loads(done.stdout)["results"] if one["reason"] == "internal"] == []


# -- exit codes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), 1),
        (("--suppress", "KV302", "--suppress", "KV301"), 0),
        (("--checks", "KV301", "--suppress", "KV301", "--strict"), 4),
        (("--window", "0"), 2),
        (("--since", "0s"), 2),
        (("--timeout", "0"), 2),
        (("--log-limit-bytes", "9" * 5000), 2),
        (("--checks", ","), 2),
        (("--prometheus-auth", "bearer:x"), 2),
        (("--kubeconfig", "x"), 2),
        (("--router-namespace", "x"), 2),
        (("--explain", "KV302", "--list-checks"), 2),
    ],
)
def test_exit_codes(kvctl: Run, tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    assert kvctl("--log", f"worker={degraded(tmp_path)}", "-q", *arguments).returncode == code


def test_what_is_no_log_is_one_line_with_exit_code_2(kvctl: Run, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(b"\x1f\x8b\x08")
    done = kvctl("--log", f"worker={tmp_path / 'x.log'}")
    assert (done.returncode, done.stdout) == (2, "")
    assert "compressed (gzip)" in one_line(done.stderr)
