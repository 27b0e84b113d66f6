"""The Kubernetes API, read-only: lists in pages, container logs, pods' own HTTP ports through the API server.

Every call returns an `Answer`; what went wrong is a Reason, never an exception. Nothing is written, no Secret is read.
Costs one request a call, more for lists (500 objects a page). Calls are paced, time out after 10 s, are tried again on
429 (as Retry-After says) and once when a kept-alive connection turns out closed; bytes are limited on this side too.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import urllib3

from checks.model import Reason
from checks.numerals import loads
from checks.sources.connection import Connection
from checks.sources.deadline import Deadline
from checks.sources.pace import Pace
from checks.sources.tape import Answer

TIMEOUT_S = 10.0
LIST_PAGE = 500
LIST_PAGES = 200
LIST_BYTES = 64 << 20
"""Of one page of a list."""
PAGE_BYTES = 32 << 20
"""Of one pod's HTTP answer."""
TAIL_TIMES = 4
"""The end of a log is looked for within this many times its limit."""
LOG_TOTAL_S = 30.0
"""To read one log, however slowly it comes; the rest is then unread."""
CALL_S = 60.0
"""For one request, whatever it does; connecting, the answer and its body each have a limit of their own below it."""
RESTARTS = 3
"""Of a list whose continue token expired (410)."""
BUSY_TRIES = 5
BUSY_WAIT_S = 10.0
"""Longest wait for one Retry-After."""
_CHUNK = 64 << 10
_MESSAGE_BYTES = 64 << 10

_REASONS = {401: Reason.RBAC, 403: Reason.RBAC, 404: Reason.NO_DATA, 408: Reason.TIMEOUT, 504: Reason.TIMEOUT}


class _Keep(Enum):
    """What of an answer beyond its limit is kept; ALL: it is an error."""

    ALL = auto()
    START = auto()
    END = auto()


class Cluster:
    """One API server. Thread-safe; share it among the threads of a collection."""

    def __init__(
        self,
        connection: Connection,
        pace: Pace,
        deadline: Deadline,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.connection = connection
        self._pace = pace
        self._deadline = deadline
        self._timeout_s = timeout_s
        self._ahead_s = 0.0
        self._lock = threading.Lock()

    def now(self) -> float:
        """Epoch seconds by the API server's clock, as its newest Date header told."""
        return time.time() + self._ahead_s

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """JSON of one object or document."""
        return self._call("GET", path, query or {}, limit=LIST_BYTES)

    def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """For reviews of access only: they are questions, the API keeps nothing of them."""
        return self._call("POST", path, {}, limit=LIST_BYTES, body=body)

    def objects(self, path: str, *, labels: str = "", fields: str = "", any_version: bool = True) -> Answer:
        """`{"items": […]}` of a whole list, page by page.

        `any_version` lets the server answer from its cache. A list whose continue token expired starts again.
        """
        query = {"limit": str(LIST_PAGE)}
        if labels:
            query["labelSelector"] = labels
        if fields:
            query["fieldSelector"] = fields
        for _ in range(RESTARTS):
            answer = self._pages(path, query | ({"resourceVersion": "0"} if any_version else {}))
            if answer.status != 410:
                return answer
            any_version = False
        return Answer(410, "", Reason.TIMEOUT, f"{path}: the list changed faster than it could be read", time.time())

    def log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        limit_bytes: int,
        tail_lines: int | None = None,
        since_s: int | None = None,
        previous: bool = False,
    ) -> Answer:
        """Log text with the kubelet's timestamps: the first `limit_bytes`, or with `tail_lines` the last lines.

        The server's limitBytes counts from the start of what it sends, so a tail is limited on this side only: of more
        than `limit_bytes` the end is kept. 404 and a container that has no log yet are GONE and NO_DATA.
        """
        query = {"container": container, "timestamps": "true"}
        if tail_lines is None:
            query["limitBytes"] = str(limit_bytes)
        else:
            query["tailLines"] = str(tail_lines)
        if since_s is not None:
            query["sinceSeconds"] = str(since_s)
        if previous:
            query["previous"] = "true"
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/log"
        keep = _Keep.START if tail_lines is None else _Keep.END
        answer = self._call("GET", path, query, limit=limit_bytes, accept="*/*", keep=keep)
        if answer.status in (400, 404):
            gone = answer.error is Reason.GONE and not previous
            return replace(answer, error=Reason.GONE if gone else Reason.NO_DATA)
        return answer

    def page(self, namespace: str, pod: str, port: int, path: str, *, https: bool = False) -> Answer:
        """GET of a pod's own HTTP port, through the API server."""
        name = f"https:{pod}:{port}" if https else f"{pod}:{port}"
        url = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name, safe=':')}/proxy{path}"
        return self._call("GET", url, {}, limit=PAGE_BYTES, accept="text/plain, application/json;q=0.9, */*;q=0.1")

    def service(self, namespace: str, service: str, port: str, path: str, query: Mapping[str, str]) -> Answer:
        """GET of a Service's HTTP port (Prometheus), through the API server."""
        url = f"/api/v1/namespaces/{quote(namespace)}/services/{quote(f'{service}:{port}', safe=':')}/proxy{path}"
        return self._call("GET", url, query, limit=PAGE_BYTES)

    def close(self) -> None:
        client: Any = self.connection.client
        client.close()

    def _pages(self, path: str, query: Mapping[str, str]) -> Answer:
        items: list[Any] = []
        following = ""
        for _ in range(LIST_PAGES):
            one = dict(query)
            if following:
                one["continue"] = following
                one.pop("resourceVersion", None)
            answer = self._call("GET", path, one, limit=LIST_BYTES)
            if not answer.ok:
                return answer
            try:
                page = loads(answer.text)
                items.extend(page.get("items") or ())
                following = str((page.get("metadata") or {}).get("continue") or "")
            except (ValueError, AttributeError, TypeError):
                return Answer(answer.status, "", Reason.PARSE, f"{path} did not answer with a list", answer.at)
            if not following:
                return Answer(200, json.dumps({"items": items}), at=answer.at)
        message = (
            f"{path} has more than {LIST_PAGE * LIST_PAGES} objects; narrow it with --router-selector/--worker-selector"
        )
        return Answer(200, "", Reason.PARSE, message, time.time())

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        limit: int,
        accept: str = "application/json",
        body: Mapping[str, Any] | None = None,
        keep: _Keep = _Keep.ALL,
    ) -> Answer:
        answer = Answer()
        for attempt in range(BUSY_TRIES):
            if self._deadline.left() <= 0:
                return answer if attempt else Answer(error=Reason.TIMEOUT, message=f"not asked: {self._deadline.why}")
            send = partial(self._send, method, path, query, limit, accept, body, keep)
            with self._pace.turn():
                answer, wait = self._deadline.bounded(send, _broken_off, within_s=CALL_S)
            if wait is None or attempt == BUSY_TRIES - 1:
                break
            self._deadline.sleep(min(wait, BUSY_WAIT_S))
        return answer

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        limit: int,
        accept: str,
        body: Mapping[str, Any] | None,
        keep: _Keep,
    ) -> tuple[Answer, float | None]:
        """One request; with it the seconds after which to try again, None: do not."""
        client = self.connection.client
        try:
            _, url, headers, sent, _ = client.param_serialize(
                method,
                path,
                query_params=[],
                header_params={"Accept": accept, "Content-Type": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
            )
            target = f"{url}?{urlencode(query)}" if query else url
            for last in (False, True):
                try:
                    response = client.call_api(
                        method, target, headers, body=sent, _request_timeout=(self._timeout_s, self._timeout_s)
                    ).response
                    break
                except urllib3.exceptions.ProtocolError:
                    if last:
                        raise
            return self._read(response, path, limit, keep)
        except Exception as error:
            if (reason := _failure(error)) is None:
                raise
            return Answer(0, "", reason, self._unanswered(reason, error), time.time()), None

    def _read(self, response: Any, path: str, limit: int, keep: _Keep) -> tuple[Answer, float | None]:
        at = time.time()
        self._note_date(response.headers.get("Date"), at)
        status = int(response.status)
        try:
            wanted = limit if 200 <= status < 300 else _MESSAGE_BYTES
            data, whole = _body(response, wanted, keep, time.monotonic() + min(LOG_TOTAL_S, self._deadline.left()))
        finally:
            response.close()
        text = data.decode("utf-8", "replace")
        if 200 <= status < 300:
            if whole or keep is not _Keep.ALL:
                return Answer(status, text, at=at), None
            return Answer(status, "", Reason.PARSE, f"{path} sent more than {limit >> 20} MiB", at), None
        message = _message(text, status)
        if status == 429:
            wait = _seconds(response.headers.get("Retry-After"))
            return Answer(status, "", Reason.TIMEOUT, f"the API server is busy (429): {message}", at), wait
        reason = _REASONS.get(status, Reason.UNREACHABLE if status >= 500 else Reason.NO_DATA)
        if status == 404 and "NotFound" in text:
            reason = Reason.GONE
        return Answer(status, "", reason, message, at), None

    def _unanswered(self, reason: Reason, error: Exception) -> str:
        if reason is Reason.TIMEOUT:
            return f"the API server {self.connection.server} did not answer within {self._timeout_s:g} s"
        return f"the API server {self.connection.server} cannot be reached: {_why(error)}"

    def _note_date(self, date: str | None, at: float) -> None:
        if not date:
            return
        try:
            server = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        with self._lock:
            ahead = server - at
            self._ahead_s = ahead if abs(ahead) > 2 else 0.0


def _broken_off(why: str) -> tuple[Answer, float | None]:
    return Answer(0, "", Reason.TIMEOUT, f"the API server did not finish its answer: {why}", time.time()), None


def _body(response: Any, limit: int, keep: _Keep, until: float) -> tuple[bytes, bool]:
    """The body within the limit, and whether that was all of it. An end begins with a whole line."""
    data, read, whole = bytearray(), 0, True
    for chunk in response.stream(_CHUNK, decode_content=True):
        data += chunk
        read += len(chunk)
        if time.monotonic() > until or read > TAIL_TIMES * limit or (keep is not _Keep.END and read > limit):
            whole = False
            break
        if len(data) > 2 * limit:
            del data[:-limit]
    if len(data) <= limit:
        return bytes(data), whole and read == len(data)
    if keep is _Keep.END:
        end = data[-limit:]
        return bytes(end[end.find(b"\n") + 1 :]), False
    return bytes(data[:limit]), False


def _failure(error: Exception) -> Reason | None:
    """Why a request had no answer; None for a fault of our own."""
    failures = urllib3.exceptions
    if isinstance(error, failures.NewConnectionError):
        return Reason.UNREACHABLE
    if isinstance(error, (failures.TimeoutError, TimeoutError)):
        return Reason.TIMEOUT
    if isinstance(error, (failures.HTTPError, OSError)):
        return Reason.UNREACHABLE
    from kubernetes.client import ApiException

    return Reason.UNREACHABLE if isinstance(error, ApiException) else None


def _why(error: Exception) -> str:
    """The innermost cause, in one line."""
    text = " ".join(str(getattr(error, "reason", None) or error).split())
    known: Sequence[tuple[str, str]] = (
        ("refused", "connection refused"),
        ("CERTIFICATE_VERIFY_FAILED", "its certificate is not trusted"),
        ("Name or service not known", "its name is not known"),
        ("getaddrinfo failed", "its name is not known"),
        ("nodename nor servname", "its name is not known"),
        ("Temporary failure in name resolution", "its name is not known"),
        ("No route to host", "no route to it"),
        ("Network is unreachable", "the network is unreachable"),
    )
    return next((plain for sign, plain in known if sign in text), text[:160] or type(error).__name__)


def _message(text: str, status: int) -> str:
    """The message of a Status object, else the first line."""
    try:
        told = loads(text)
        if isinstance(told, dict) and isinstance(told.get("message"), str):
            return " ".join(str(told["message"]).split())[:300]
    except ValueError:
        pass
    line = next(iter(text.strip().splitlines()), "")
    return line[:300] or f"HTTP {status}"


def _seconds(text: str | None) -> float:
    try:
        return max(0.1, float(text or "1"))
    except ValueError:
        return 1.0
