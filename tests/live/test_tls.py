"""TLS from the client to the router and from the router to an engine, on running routers.

The engine behind https is a router of its own: it has the paths of one, and speaks TLS.
"""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench.sim.fleet import SimFleet
from tests.live.conftest import RunningRouter, running_router
from tests.router.proxy.tls import Papers

BODY = {"model": "sim", "prompt": "def main(): pass", "max_tokens": 2}


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers.made(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def secure(sims: SimFleet, papers: Papers) -> Iterator[RunningRouter]:
    """Clients have to show a certificate."""
    cert, key = papers.issue("server")
    options = ["--tls-cert", str(cert), "--tls-key", str(key), "--tls-client-ca", str(papers.ca)]
    with running_router("--router-mode", "round-robin", *options, "--worker", f"{sims.engines[0].url},id=a") as router:
        yield router


def client(papers: Papers) -> httpx.Client:
    return httpx.Client(verify=papers.client(*papers.issue("client", "client")), timeout=30.0, trust_env=False)


def test_the_data_port_is_announced_and_speaks_tls(secure: RunningRouter, papers: Papers) -> None:
    assert secure.url.startswith("https://127.0.0.1:")
    assert secure.admin.startswith("http://")
    with client(papers) as http:
        assert http.post(f"{secure.url}/v1/completions", json=BODY).status_code == 200


def test_a_client_without_a_certificate_is_turned_away(secure: RunningRouter, papers: Papers) -> None:
    with httpx.Client(verify=papers.client(), trust_env=False) as http, pytest.raises(httpx.TransportError):
        http.get(f"{secure.url}/health")


def test_an_engine_behind_tls_is_probed_asked_for_tokens_and_routed_to(
    sims: SimFleet, secure: RunningRouter, papers: Papers
) -> None:
    cert, key = papers.issue("outer", "outer")
    options = ["--upstream-tls-ca", str(papers.ca), "--upstream-tls-cert", str(cert), "--upstream-tls-key", str(key)]
    with running_router("--router-mode", "kv", *options, "--worker", f"{secure.url},id=behind-tls") as outer:
        (worker,) = outer.get("/workers")["workers"]
        assert (worker["health"], worker["models"]) == ("up", ["sim"]), outer.log()
        answer = outer.ask()
        assert (answer.status_code, answer.headers["x-kvctl-worker"]) == (200, "behind-tls")
        counted = httpx.post(f"{sims.engines[0].url}/tokenize", json={"model": "sim", "prompt": BODY["prompt"]})
        assert outer.decision(answer)["prompt_tokens"] == counted.json()["count"], "the engine was asked"


def test_an_engine_whose_certificate_nobody_signed_is_not_reached_and_the_log_says_why(secure: RunningRouter) -> None:
    with running_router("--worker", f"{secure.url},id=stranger") as outer:
        assert outer.ask().status_code == 503
        assert "stranger is not reachable" in outer.log()
        assert "CERTIFICATE_VERIFY_FAILED" in outer.log() or "certificate verify failed" in outer.log()


def test_sighup_takes_a_new_certificate(sims: SimFleet, papers: Papers) -> None:
    cert, key = papers.issue("turning")
    with running_router("--tls-cert", str(cert), "--tls-key", str(key), "--worker", sims.engines[0].url) as router:

        def names() -> set[str]:
            port = int(router.url.rsplit(":", 1)[1])
            pem = ssl.get_server_certificate(("127.0.0.1", port))
            path = papers.folder / "seen.pem"
            path.write_text(pem)
            shown = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]
            return {value for _, value in shown["subjectAltName"]}

        assert names() == {"127.0.0.1"}
        papers.issue("turning", "127.0.0.1", "new.example")
        router.process.send_signal(signal.SIGHUP)
        router.wait("the new certificate is shown", lambda: names() == {"127.0.0.1", "new.example"})


def test_sighup_does_not_end_a_router_without_tls(sims: SimFleet) -> None:
    with running_router("--worker", sims.engines[0].url) as router:
        router.process.send_signal(signal.SIGHUP)
        router.wait("it is told", lambda: "taken again" in router.log())
        assert router.ask().status_code == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tls-cert", "absent.pem"], "--tls-cert absent.pem: No such file or directory"),
        (["--upstream-tls-ca", "absent.pem"], "--upstream-tls-ca absent.pem: No such file or directory"),
        (["--x-forwarded", "maybe"], "--x-forwarded must be off, append or replace, not 'maybe'"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(tmp_path: Path, options: list[str], said: str) -> None:
    command = [
        sys.executable,
        "-m",
        "kvctl",
        "serve",
        "--port",
        "0",
        "--admin-port",
        "0",
        "--log-level",
        "error",
        *options,
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KVCTL_")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment)
    assert ended.returncode == 2, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line]
    assert said in line
