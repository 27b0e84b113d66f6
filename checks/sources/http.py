"""GETs of routers and engines by URL: without a cluster, or straight to a pod's address from inside one.

Read-only. A call ends within 10 s, or with the collection, reads at most 32 MiB, follows no redirects.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from typing import Self
from urllib.parse import urlsplit

import httpx

from checks.model import Reason
from checks.sources.deadline import Deadline
from checks.sources.tape import Answer

TIMEOUT_S = 10.0
PAGE_BYTES = 32 << 20
_PART = 64 << 10
_ACCEPT = "text/plain, application/json;q=0.9, */*;q=0.1"


class Pages:
    """A pool of connections; thread-safe."""

    def __init__(self, *, concurrency: int = 8, timeout_s: float = TIMEOUT_S, deadline: Deadline | None = None) -> None:
        """Without a deadline a call ends by its own time alone."""
        limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        self._timeout_s = timeout_s
        self._deadline = deadline or Deadline(float("inf"))
        headers = {"accept": _ACCEPT, "accept-encoding": "identity"}
        self._client = httpx.Client(timeout=timeout_s, limits=limits, headers=headers)

    def get(self, url: str, token: str = "") -> Answer:
        """The answer of one GET, with `token` as its bearer; every failure is a Reason."""
        shown = without_user(url)

        def unfinished(why: str) -> Answer:
            return Answer(0, "", Reason.TIMEOUT, f"{shown} did not finish its answer: {why}", time.time())

        if self._deadline.left() <= 0:
            return Answer(0, "", Reason.TIMEOUT, f"not asked: {self._deadline.why}", time.time())
        # Twice: name and connection first, then the answer. httpx limits each read, not their number.
        return self._deadline.bounded(lambda: self._get(url, shown, token), unfinished, within_s=2 * self._timeout_s)

    def _get(self, url: str, shown: str, token: str) -> Answer:
        deadline = time.monotonic() + self._timeout_s
        try:
            headers = {"authorization": f"Bearer {token}"} if token else {}
            with self._client.stream("GET", url, headers=headers) as response:
                return _read(response, shown, deadline)
        except httpx.TimeoutException:
            return Answer(0, "", Reason.TIMEOUT, f"{shown} did not answer within {self._timeout_s:g} s", time.time())
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return Answer(0, "", Reason.UNREACHABLE, f"{shown} cannot be reached: {_why(error)}", time.time())
        except _Unreadable as error:
            return Answer(0, "", Reason.PARSE, f"{shown}: {error}", time.time())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


def base_url(text: str) -> str:
    """`http://HOST:PORT` without a trailing slash; a scheme is added where it is missing. Raises ValueError."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError
        _ = parts.port
    except ValueError:
        raise ValueError(f"{without_user(text)!r} is not a URL; write http://HOST:PORT") from None
    return url.rstrip("/")


def without_user(url: str) -> str:
    """The URL without user and password, for people."""
    scheme, mark, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{mark}{authority.rpartition('@')[2]}{slash}{path}"


class _Unreadable(Exception):
    """The answer's encoding cannot be undone."""


def _decoded(response: httpx.Response) -> Iterator[bytes]:
    """The body's parts, none larger than _PART whatever it was compressed from."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        yield from response.iter_raw(_PART)
        return
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise _Unreadable(f"the answer is encoded as {encoding[:40]!r}, which was not asked for")
    undo = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        for part in response.iter_raw(_PART):
            yield undo.decompress(part, _PART)
            while undo.unconsumed_tail:
                yield undo.decompress(undo.unconsumed_tail, _PART)
    except zlib.error as error:
        raise _Unreadable(f"the answer cannot be decompressed: {error}") from None


def is_base_url(text: str) -> bool:
    """A stranger's text that `base_url` takes as it is."""
    try:
        return "://" in text and bool(base_url(text))
    except ValueError:
        return False


def _read(response: httpx.Response, url: str, deadline: float) -> Answer:
    at, status = time.time(), response.status_code
    if not 200 <= status < 300:
        denied = status in (401, 403)
        return Answer(status, "", Reason.RBAC if denied else Reason.NO_DATA, f"{url} answered HTTP {status}", at)
    data = bytearray()
    for chunk in _decoded(response):
        data += chunk
        if len(data) > PAGE_BYTES:
            return Answer(status, "", Reason.PARSE, f"{url} sent more than {PAGE_BYTES >> 20} MiB", at)
        if time.monotonic() > deadline:
            return Answer(status, "", Reason.TIMEOUT, f"{url} did not finish its answer in time", at)
    return Answer(status, data.decode("utf-8", "replace"), at=at)


def _why(error: Exception) -> str:
    text = " ".join(str(error).split())
    known = (("refused", "connection refused"), ("Name or service not known", "its name is not known"))
    return next((plain for sign, plain in known if sign in text), text[:160] or type(error).__name__)
