"""GETs of routers and engines by URL: without a cluster, or straight to a pod's address from inside one.

Read-only. A call ends within 10 s, reads at most 32 MiB, follows no redirects.
"""

from __future__ import annotations

import time
from typing import Self
from urllib.parse import urlsplit

import httpx

from checks.model import Reason
from checks.sources.tape import Answer

TIMEOUT_S = 10.0
PAGE_BYTES = 32 << 20
_ACCEPT = "text/plain, application/json;q=0.9, */*;q=0.1"


class Pages:
    """A pool of connections; thread-safe."""

    def __init__(self, *, concurrency: int = 8, timeout_s: float = TIMEOUT_S) -> None:
        limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        self._timeout_s = timeout_s
        self._client = httpx.Client(timeout=timeout_s, limits=limits, headers={"accept": _ACCEPT})

    def get(self, url: str) -> Answer:
        """The answer of one GET; every failure is a Reason."""
        deadline = time.monotonic() + self._timeout_s
        try:
            with self._client.stream("GET", url) as response:
                return _read(response, url, deadline)
        except httpx.TimeoutException:
            return Answer(0, "", Reason.TIMEOUT, f"{url} did not answer within {self._timeout_s:g} s", time.time())
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return Answer(0, "", Reason.UNREACHABLE, f"{url} cannot be reached: {_why(error)}", time.time())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


def base_url(text: str) -> str:
    """`http://HOST:PORT` without a trailing slash; a scheme is added where it is missing. Raises ValueError."""
    url = text if "://" in text else f"http://{text}"
    parts = urlsplit(url)
    try:
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError
        _ = parts.port
    except ValueError:
        raise ValueError(f"{text!r} is not a URL; write http://HOST:PORT") from None
    return url.rstrip("/")


def _read(response: httpx.Response, url: str, deadline: float) -> Answer:
    at, status = time.time(), response.status_code
    if not 200 <= status < 300:
        denied = status in (401, 403)
        return Answer(status, "", Reason.RBAC if denied else Reason.NO_DATA, f"{url} answered HTTP {status}", at)
    data = bytearray()
    for chunk in response.iter_bytes():
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
