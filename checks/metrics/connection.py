"""One PromQL query to a Prometheus over HTTP, as the JSON of its result list, or why there is none.

Goes through prometheus-api-client, which is imported at the first query. Every answer is bounded in size and in time, a
refusal (401, 403) is told from an absent server, and no message carries a token. Amazon Managed Prometheus signs its
requests (sigv4), for which botocore must be installed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from checks.metrics.text import printable
from checks.model import Reason
from checks.numerals import loads
from checks.sources.tape import Answer

if TYPE_CHECKING:
    from prometheus_api_client import PrometheusConnect
    from requests import PreparedRequest, Response

ANSWER_BYTES = 32 << 20
SMALL_BYTES = 64 << 10
"""Of a token's file, and of the body of a refusal."""
MESSAGE_CHARACTERS = 200


class ConnectionProblem(ValueError):
    """Options that cannot work; the message names the option's value and the way out."""


class _Refused(Exception):
    """An HTTP status other than 200, with the beginning of its body."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class _TooMuch(Exception):
    """An answer beyond ANSWER_BYTES."""


class _TooSlow(Exception):
    """An answer that was not complete in time."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """`bearer:FILE`. The file is read for each query, because clusters rotate it."""

    file: Path

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self.token()}"
        return request

    def token(self) -> str:
        """Raises ConnectionProblem where the file cannot be used."""
        try:
            with self.file.open("rb") as opened:
                text = opened.read(SMALL_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConnectionProblem(f"cannot read the bearer token in {self.file}: {_of(error)}") from None
        if not text or not text.isprintable():
            raise ConnectionProblem(f"{self.file} holds no bearer token")
        return text


@dataclass(frozen=True, slots=True)
class Sigv4:
    """`sigv4:REGION`: credentials come from where the AWS tools find them."""

    region: str
    service: str = "aps"

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Signs method, URL and host. Raises ConnectionProblem without botocore or without credentials."""
        try:
            from botocore.auth import SigV4Auth
            from botocore.awsrequest import AWSRequest
            from botocore.session import Session
        except ImportError:
            raise ConnectionProblem("sigv4 needs the package botocore: pip install botocore") from None
        credentials = Session().get_credentials()
        if credentials is None:
            raise ConnectionProblem("sigv4: no AWS credentials; set AWS_PROFILE, or run with an instance or pod role")
        path, mark, query = str(request.url).partition("?")
        request.url = path + mark + query.replace("+", "%20")
        signed = AWSRequest(method=request.method, url=request.url, data=request.body)
        SigV4Auth(credentials.get_frozen_credentials(), self.service, self.region).add_auth(signed)
        request.headers.update(dict(signed.headers.items()))
        return request


Auth = Bearer | Sigv4 | None


def auth_of(text: str) -> Auth:
    """`sigv4:REGION`, `bearer:FILE`, `none` or ''. Raises ConnectionProblem for anything else."""
    kind, _, rest = text.partition(":")
    if kind == "sigv4" and rest:
        return Sigv4(rest)
    if kind == "bearer" and rest:
        return Bearer(Path(rest))
    if text in ("", "none"):
        return None
    raise ConnectionProblem(f"{text!r} is no way to authenticate: sigv4:REGION, bearer:FILE or none")


@dataclass(slots=True)
class PrometheusServer:
    """Where and how to ask. Thread-safe; sockets open with the first query and close with `close`.

    Raises ConnectionProblem for a URL that is none.
    """

    url: str
    """Base URL; the API is below it at /api/v1."""
    auth: Auth = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every query, for proxies and tenants (X-Scope-OrgID)."""
    timeout_s: float = 10.0
    """For a whole query."""
    ca_file: Path | None = None
    verify: bool = True
    """False: any TLS certificate will do."""
    _client: PrometheusConnect | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good:
            raise ConnectionProblem(f"{self.url!r} is no URL of a Prometheus; give http://HOST:PORT")
        self.url = self.url.rstrip("/")

    @property
    def shown(self) -> str:
        """The URL without user, password and query."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}"

    def query(self, text: str, *, at: float | None = None) -> Answer:
        """JSON of the result list of one instant query, as of `at` (epoch seconds by the server's clock; None: now).

        Raises nothing that a server may cause.
        """
        params = {"timeout": f"{self.timeout_s:g}s"}
        if at is not None:
            params["time"] = f"{at:.3f}"
        try:
            result = self._connect().custom_query(text, params=params)
            if not isinstance(result, list):
                raise TypeError(type(result))
            return Answer(200, json.dumps(result, separators=(",", ":"), ensure_ascii=False), at=time.time())
        except Exception as error:
            return self._failed(error)

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _connect(self) -> PrometheusConnect:
        with self._lock:
            if self._client is None:
                self._client = self._open()
            return self._client

    def _open(self) -> PrometheusConnect:
        from prometheus_api_client import PrometheusConnect
        from urllib3.util.retry import Retry

        session = _bounded_session(self.timeout_s)
        session.verify = str(self.ca_file) if self.ca_file is not None and self.verify else self.verify
        once_more = Retry(
            total=1,
            connect=0,
            read=False,
            status_forcelist=(429, 503),
            backoff_factor=0.5,
            respect_retry_after_header=False,
            raise_on_status=False,
        )
        return PrometheusConnect(
            url=self.url,
            headers=dict(self.headers),
            retry=once_more,
            auth=self.auth or _no_auth,
            session=session,
            timeout=self.timeout_s,
        )

    def _failed(self, error: Exception) -> Answer:
        """The answer for what went wrong. An error of our own making is not hidden: it is raised again."""
        from requests import exceptions as http
        from urllib3.exceptions import ReadTimeoutError

        where = f"Prometheus at {self.shown}"
        if isinstance(error, _Refused):
            return self._refused(error, where)
        if isinstance(error, ConnectionProblem):
            return _problem(Reason.RBAC, str(error))
        stalled = any(isinstance(inner, ReadTimeoutError) for inner in error.args)
        if stalled or isinstance(error, _TooSlow | http.Timeout):
            return _problem(Reason.TIMEOUT, f"{where} did not answer within {self.timeout_s:g} s")
        if isinstance(error, _TooMuch):
            return _problem(Reason.PARSE, f"{where} answered with more than {ANSWER_BYTES >> 20} MiB")
        if isinstance(error, http.SSLError):
            return _problem(Reason.UNREACHABLE, f"{where}: TLS: {_of(error)}")
        if isinstance(error, http.JSONDecodeError):
            return _problem(Reason.PARSE, f"{where} answered with something that is no JSON; is it a Prometheus?")
        if isinstance(error, http.RequestException | OSError):
            return _problem(Reason.UNREACHABLE, f"{where} is not reachable: {_of(error)}")
        if isinstance(error, KeyError | TypeError | ValueError | RecursionError):
            return _problem(Reason.PARSE, f"{where} answered with JSON that is no query result")
        raise error

    def _refused(self, error: _Refused, where: str) -> Answer:
        told = _told(error.body)
        if error.status in (401, 403):
            return _problem(Reason.RBAC, f"{where} denies the query (HTTP {error.status})", error.status)
        if 300 <= error.status < 400:
            what = f"{where} sends elsewhere (HTTP {error.status}): a login page, or give the URL it sends to"
            return _problem(Reason.UNREACHABLE, what, error.status)
        if error.status == 404:
            return _problem(Reason.UNREACHABLE, f"{where} has no /api/v1/query (HTTP 404)", error.status)
        if error.status in (408, 504) or (error.status == 503 and "timed out" in told):
            return _problem(Reason.TIMEOUT, f"{where}: the query timed out (HTTP {error.status})", error.status)
        if error.status in (400, 422):
            return _problem(Reason.PARSE, f"{where} does not take the query: {told}", error.status)
        return _problem(Reason.UNREACHABLE, f"{where} answers HTTP {error.status} {told}".rstrip(), error.status)


def _bounded_session(timeout_s: float) -> Any:
    """A requests session that follows no redirect and whose answers are bounded in bytes and in time.

    It raises _Refused for other statuses than 200, _TooMuch and _TooSlow.
    """
    import requests

    class Session(requests.Session):
        def send(self, request: PreparedRequest, **more: Any) -> Response:
            until = time.monotonic() + timeout_s
            response = super().send(request, **{**more, "stream": True, "allow_redirects": False})
            good = response.status_code == 200
            limit = ANSWER_BYTES if good else SMALL_BYTES
            body = bytearray()
            with response:
                for part in response.iter_content(1 << 16):
                    body += part
                    if len(body) > limit:
                        break
                    if time.monotonic() > until:
                        raise _TooSlow
            if not good:
                raise _Refused(response.status_code, body.decode("utf-8", "replace"))
            if len(body) > limit:
                raise _TooMuch
            response._content = bytes(body)
            return response

    return Session()


def _no_auth(request: PreparedRequest) -> PreparedRequest:
    """Keeps requests from looking for a password in ~/.netrc."""
    return request


def _problem(reason: Reason, message: str, status: int = 0) -> Answer:
    line = " ".join(printable(message).split())
    return Answer(status, error=reason, message=line[:MESSAGE_CHARACTERS], at=time.time())


def _told(body: str) -> str:
    """What Prometheus says is wrong, from its JSON; '' where it is none."""
    try:
        decoded = loads(body)
    except ValueError:
        return ""
    return str(decoded.get("error", "")) if isinstance(decoded, dict) else ""


def _of(error: BaseException) -> str:
    """The innermost reason in a few words, without addresses of objects."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    text = str(error.strerror) if isinstance(error, OSError) and error.strerror else str(error)
    return text.rpartition(">: ")[2] or type(error).__name__
