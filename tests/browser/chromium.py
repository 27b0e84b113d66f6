"""Headless Chromium over its DevTools protocol: open a page, ask it questions, collect what it complains about."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import websocket

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def binary() -> str:
    """The browser; in CI it is installed if need be, elsewhere the test is skipped without one."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None and os.environ.get("CI"):
        script = ROOT / "scripts" / "system-packages.sh"
        done = subprocess.run([str(script), "chromium"], capture_output=True, text=True, timeout=600, check=False)
        found = shutil.which("chromium")
        if found is None:
            pytest.skip(f"no Chromium, and it cannot be installed: {done.stderr.strip()[-200:]}")
    if found is None:
        pytest.skip("no Chromium here: scripts/system-packages.sh chromium installs it")
    return found


class Tab:
    """A page of the browser. `complaints`: console errors and exceptions; `requests`: URLs that it asked for."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=PATIENCE, suppress_origin=True)
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = self._receive()
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])

    def _receive(self) -> dict[str, Any]:
        message = dict(json.loads(self._socket.recv()))
        params = message.get("params", {})
        method = message.get("method")
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(str(params["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(str(params["request"]["url"]))
        return message

    def open(self, page: Path, width: int, height: int = 900) -> None:
        """Loads a file at a width and waits until it is there."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self._loaded = False
        self.call("Page.navigate", url=page.as_uri())
        while not self._loaded:
            self._receive()

    def ask(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def tab(folder: Path) -> Iterator[Tab]:
    """A browser with an empty profile in `folder`, ended with the context."""
    command = [
        binary(), "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={folder}", "--disable-gpu",
        "--no-first-run", "--disable-background-networking", "--hide-scrollbars", "--disable-dev-shm-usage",
        *(["--no-sandbox"] if os.geteuid() == 0 else []), "about:blank",
    ]  # fmt: skip
    with (folder.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    opened: Tab | None = None
    try:
        opened = Tab(_page_address(folder, process))
        yield opened
    finally:
        if opened is not None:
            opened.close()
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _page_address(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """Of the first page, which the browser tells through a file and its own small server."""
    port_file = folder / "DevToolsActivePort"
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert process.poll() is None, f"Chromium ended with {process.returncode}"
        if port_file.exists() and (lines := port_file.read_text().splitlines()):
            pages = httpx.get(f"http://127.0.0.1:{lines[0]}/json/list", trust_env=False).json()
            address = next((page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page"), None)
            if address is not None:
                return str(address)
        time.sleep(0.1)
    raise AssertionError("Chromium opened no page in time")
