"""An engine in this process that keeps what it is sent and answers as the prompt says."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Seen:
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


@dataclass
class ScriptedEngine:
    url: str
    seen: list[Seen] = field(default_factory=list)

    def of(self, path: str) -> list[Seen]:
        return [one for one in self.seen if one.path == path]


@contextlib.contextmanager
def scripted_engine(needs: str | None = None) -> Iterator[ScriptedEngine]:
    """Models `m` and `other`. A prompt with DO-500, DO-RESET, DO-GARBAGE or DO-CUT is answered that way; one with
    TOKENIZE-400 or TOKENIZE-500 is not tokenised, and the engine says so by quoting it. `needs`: the API key without
    which everything but /health is a 401."""
    engine = ScriptedEngine("")

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def keep(self) -> bytes:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            engine.seen.append(Seen(self.path, list(self.headers.items()), body))
            return body

        def say(self, status: int, data: Any) -> None:
            raw = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def refused(self) -> bool:
            if needs is None or self.path == "/health" or self.headers.get("authorization") == f"Bearer {needs}":
                return False
            self.say(401, {"error": "no key"})
            return True

        def do_GET(self) -> None:
            self.keep()
            if self.refused():
                return
            if self.path == "/v1/models":
                cards = [{"id": name, "object": "model", "max_model_len": 4096} for name in ("m", "other")]
                self.say(200, {"object": "list", "data": cards})
            elif self.path == "/version":
                self.say(200, {"version": "0"})
            else:
                self.say(200 if self.path == "/health" else 404, {})

        def do_POST(self) -> None:
            body = self.keep()
            if self.refused():
                return
            if self.path == "/tokenize" and (b"TOKENIZE-400" in body or b"TOKENIZE-500" in body):
                self.say(400 if b"TOKENIZE-400" in body else 500, {"error": f"cannot tokenise {body.decode()}"})
            elif self.path == "/tokenize":
                self.say(200, {"tokens": list(range(40)), "count": 40, "max_model_len": 4096})
            elif b"DO-500" in body:
                self.say(500, {"error": "engine failed"})
            elif b"DO-RESET" in body:
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.connection.close()
                self.close_connection = True
            elif b"DO-GARBAGE" in body:
                self.wfile.write(b"garbage\r\n\r\n")
                self.close_connection = True
            elif b"DO-CUT" in body:
                self.send_response(200)
                self.send_header("content-length", "100")
                self.end_headers()
                self.wfile.write(b"half")
                self.close_connection = True
            else:
                usage = {"prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42}
                self.say(200, {"choices": [{"text": "an answer", "index": 0}], "usage": usage})

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    engine.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
