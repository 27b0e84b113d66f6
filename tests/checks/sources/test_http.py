"""GETs by URL, and what they may not do."""

from __future__ import annotations

import gzip
import socket
import threading
import zlib

import pytest

import checks.sources.http as module
from checks.model import Reason
from checks.sources.deadline import Deadline
from checks.sources.http import Pages, base_url
from checks.sources.tape import Answer


def answered(response: bytes, *, timeout_s: float = 5.0) -> Answer:
    """What Pages makes of one raw response; b"" never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                if response:
                    connection.sendall(response)
                else:
                    done.wait(10)

        done = threading.Event()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with Pages(timeout_s=timeout_s) as pages:
            answer = pages.get(f"http://127.0.0.1:{listener.getsockname()[1]}/x")
        done.set()
        thread.join(10)
    return answer


def test_an_answer() -> None:
    found = answered(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
    assert (found.status, found.text, found.ok) == (200, "hi", True)


@pytest.mark.parametrize(("status", "reason"), [(404, Reason.NO_DATA), (401, Reason.RBAC), (403, Reason.RBAC)])
def test_a_refusal(status: int, reason: Reason) -> None:
    found = answered(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)
    assert (found.status, found.error) == (status, reason)


def test_redirects_are_not_followed() -> None:
    found = answered(b"HTTP/1.1 302 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
    assert (found.status, found.error) == (302, Reason.NO_DATA)


def test_silence_is_a_timeout() -> None:
    assert answered(b"", timeout_s=0.2).error is Reason.TIMEOUT


def test_something_that_is_not_http_is_unreachable() -> None:
    assert answered(b"SSH-2.0\r\n\r\n").error is Reason.UNREACHABLE


def test_too_much_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_BYTES", 10)
    found = answered(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + b"x" * 20)
    assert (found.text, found.error) == ("", Reason.PARSE)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("h:1", "http://h:1"),
        ("http://h:1/", "http://h:1"),
        ("https://h/base/", "https://h/base"),
        ("http://[::1]:1", "http://[::1]:1"),
    ],
)
def test_base_urls(text: str, url: str) -> None:
    assert base_url(text) == url


@pytest.mark.parametrize("text", ["", "ftp://h", "http://", "http://h:port", "http://h?x=1"])
def test_texts_that_are_no_base_url(text: str) -> None:
    with pytest.raises(ValueError, match="write http://HOST:PORT"):
        base_url(text)


def encoded(body: bytes, encoding: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_an_answer_that_is_compressed_all_the_same_is_read(encoding: str) -> None:
    body = gzip.compress(b"text" * 50_000) if encoding == "gzip" else zlib.compress(b"text" * 50_000)
    assert answered(encoded(body, encoding)).text == "text" * 50_000


def test_a_small_answer_that_unpacks_to_a_huge_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_BYTES", 1 << 20)
    found = answered(encoded(gzip.compress(bytes(8 << 20)), "gzip"))
    assert (found.error, found.text) == (Reason.PARSE, "")
    assert "more than 1 MiB" in found.message


@pytest.mark.parametrize(("body", "encoding"), [(b"no gzip", "gzip"), (b"x", "br"), (b"x", "gzip, gzip")])
def test_an_encoding_that_cannot_be_undone_is_said(body: bytes, encoding: str) -> None:
    assert answered(encoded(body, encoding)).error is Reason.PARSE


def test_a_message_names_no_password() -> None:
    with Pages(timeout_s=2) as pages:
        found = pages.get("http://me:planted@127.0.0.1:1/x")
    assert "planted" not in found.message
    assert "http://127.0.0.1:1/x" in found.message


def test_after_the_end_nothing_is_asked() -> None:
    deadline = Deadline(60)
    deadline.stop("enough")
    with Pages(deadline=deadline) as pages:
        found = pages.get("http://127.0.0.1:1/x")
    assert (found.error, found.message) == (Reason.TIMEOUT, "not asked: enough")


def test_headers_that_never_end_end_with_the_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while not done.wait(0.02):
                    try:
                        connection.sendall(b"X: y\r\n")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        with Pages(timeout_s=0.3) as pages:
            found = pages.get(f"http://127.0.0.1:{listener.getsockname()[1]}/x")
        done.set()
        thread.join(10)
    assert found.error in (Reason.TIMEOUT, Reason.UNREACHABLE)
