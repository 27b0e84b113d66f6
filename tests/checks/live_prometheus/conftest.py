"""A real Prometheus that scrapes scripted pages and two simulated engines once a second.

A scripted page is a function of how often it was scraped, so every series of a page moves in step and a ratio of two
increases is exact however slow the machine is.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from bench.sim.fleet import SimFleet
from checks.metrics.connection import PrometheusServer
from tests.checks.live_prometheus.pages import TARGETS, Target

SCRAPES = 6
PATIENCE_S = 40.0
SCRIPT = Path(__file__).parents[3] / "scripts" / "system-packages.sh"


@dataclass
class Pages:
    """Serves `/NAME/metrics` on a free port and counts the scrapes."""

    targets: Mapping[str, Target]
    scrapes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.strip("/").partition("/")[0]
                count = pages.scrapes[name] = pages.scrapes.get(name, 0) + 1
                status, text = pages.targets[name].page(count)
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture(scope="session")
def prometheus_binary() -> str:
    """In CI it must be there; elsewhere its absence skips."""
    if (found := shutil.which("prometheus")) is None:
        done = subprocess.run(["bash", str(SCRIPT), "prometheus"], capture_output=True, text=True, timeout=300)
        found = shutil.which("prometheus")
        if found is None:
            why = f"no prometheus: {done.stderr.strip()[-300:] or 'it is installed, but not on PATH'}"
            (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    return found


@pytest.fixture(scope="session")
def pages() -> Iterator[Pages]:
    made = Pages(TARGETS)
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="session")
def engines() -> Iterator[SimFleet]:
    with SimFleet(2, speedup=0, num_blocks=500) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def prometheus(
    prometheus_binary: str, pages: Pages, engines: SimFleet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusServer]:
    """Ready, and every page has been scraped SCRAPES times."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yml").write_text(yaml.safe_dump(_config(pages, engines)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        prometheus_binary,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        server = PrometheusServer(f"http://127.0.0.1:{port}", timeout_s=20.0)
        try:
            _wait("prometheus is ready", lambda: _ready(server.url), process, folder / "log")
            _wait(
                "every page was scraped",
                lambda: all(pages.scrapes.get(name, 0) >= SCRAPES for name in TARGETS),
                process,
                folder / "log",
            )
            yield server
        finally:
            server.close()
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _wait(what: str, true: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert process.poll() is None, f"prometheus ended: {log.read_text()[-2000:]}"
        assert time.monotonic() < deadline, f"never happened: {what}\n{log.read_text()[-2000:]}"
        time.sleep(0.1)


def _config(pages: Pages, engines: SimFleet) -> dict[str, Any]:
    jobs = [
        {
            "job_name": target.job or name,
            "metrics_path": f"/{name}/metrics",
            "static_configs": [{"targets": [pages.address], "labels": dict(target.labels)}],
        }
        for name, target in TARGETS.items()
    ]
    addresses = [engine.url.removeprefix("http://") for engine in engines.engines]
    jobs.append({"job_name": "sims", "static_configs": [{"targets": addresses}]})
    return {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
