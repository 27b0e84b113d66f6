"""POSTs of the probe: straight to a URL, or to a pod through the API server. The only thing kvctl validate ever sends
that is not a question about what is there.

One request at a time, no redirects, never tried again: an answer that did not come may still have been computed. When
reading stops early (limit, timeout, Ctrl-C) the connection is closed, which cancels the request in the engine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import httpx
import urllib3

from checks.discover.urls import https
from checks.model import Reason
from checks.probe.reply import Clock, Reply, failure, read
from checks.snapshot import Member
from checks.sources.kubernetes import Cluster

CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes: a member's own port, or a base URL (`member` None)."""

    member: Member | None = None
    base: str = ""

    @property
    def url(self) -> str:
        return self.base if self.member is None else self.member.url

    def __str__(self) -> str:
        return self.base if self.member is None else str(self.member.target.place)


class Post(Protocol):
    """Sends one request and reads its answer; every failure is a `Reply`. Ctrl-C goes through."""

    def __call__(
        self, target: Target, path: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout_s: float
    ) -> Reply: ...


@dataclass(frozen=True, slots=True)
class DirectPost:
    """To a URL."""

    client: httpx.Client

    def __call__(
        self, target: Target, path: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout_s: float
    ) -> Reply:
        url, clock = target.url + path, Clock(timeout_s)
        timeout = httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s))
        try:
            with self.client.stream("POST", url, json=body, headers=headers, timeout=timeout) as response:
                chunks = response.iter_bytes()
                return read(
                    response.status_code, response.headers, chunks, stream=bool(body.get("stream")), clock=clock
                )
        except httpx.TimeoutException:
            message = f"{url} did not answer within {timeout_s:g} s"
            return failure(Reason.TIMEOUT, message, clock.sent_at, clock.passed())
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            message = f"{url}: {_why(error)}"
            return failure(Reason.UNREACHABLE, message, clock.sent_at, clock.passed())


@dataclass(frozen=True, slots=True)
class ClusterPost:
    """To a pod through the API server (`create` on pods/proxy); to a URL as `direct` does."""

    cluster: Cluster
    direct: DirectPost

    def __call__(
        self, target: Target, path: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout_s: float
    ) -> Reply:
        member = target.member
        if member is None or member.kind != "Pod":
            return self.direct(target, path, body, headers, timeout_s)
        if any(name.lower() == "authorization" for name in headers):
            message = (
                "an API key cannot go through the API server, which takes the header for its own; "
                "name the router's URL with --probe-endpoint"
            )
            return failure(Reason.RBAC, message, time.time())
        from kubernetes.client import ApiException

        clock = Clock(timeout_s)
        try:
            return self._send(member, path, body, headers, clock)
        except (urllib3.exceptions.HTTPError, ApiException, OSError) as error:
            refused = isinstance(error, urllib3.exceptions.NewConnectionError)  # which is one of its TimeoutErrors
            if isinstance(error, (urllib3.exceptions.TimeoutError, TimeoutError)) and not refused:
                message = f"{target} did not answer within {timeout_s:g} s"
                return failure(Reason.TIMEOUT, message, clock.sent_at, clock.passed())
            message = f"{target} through the API server: {_why(error)}"
            return failure(Reason.UNREACHABLE, message, clock.sent_at, clock.passed())

    def _send(
        self, member: Member, path: str, body: Mapping[str, Any], headers: Mapping[str, str], clock: Clock
    ) -> Reply:
        client: Any = self.cluster.connection.client
        port = urlsplit(member.url).port or 80
        name = f"{member.name}:{port}"
        name = f"https:{name}" if https(member.container) else name
        where = f"/api/v1/namespaces/{quote(member.namespace)}/pods/{quote(name, safe=':')}/proxy{path}"
        _, url, sent_headers, sent, _ = client.param_serialize(
            "POST",
            where,
            query_params=[],
            header_params={"Accept": "*/*", "Content-Type": "application/json", **headers},
            body=dict(body),
            auth_settings=["BearerToken"],
        )
        waits = (min(CONNECT_S, clock.timeout_s), clock.timeout_s)
        answer = client.call_api("POST", url, sent_headers, body=sent, _request_timeout=waits).response
        try:
            told = {str(name): str(value) for name, value in answer.headers.items()}
            chunks = answer.stream(4096, decode_content=True)
            return read(int(answer.status), told, chunks, stream=bool(body.get("stream")), clock=clock)
        finally:
            answer.close()


def _why(error: Exception) -> str:
    """In one line, why there was no answer."""
    text = " ".join(str(error).split())
    if "refused" in text:
        return "connection refused"
    if "Name or service not known" in text or "getaddrinfo" in text:
        return "its name is not known"
    return f"the answer was cut off ({text[:120] or type(error).__name__})"
