"""What the data plane and the routing side know of each other: a complete request in, an answer or a leg out.

The data plane (this package) owns sockets, parsing, timeouts and the relay. It asks a `Dispatcher` where a request
goes, and reports through the `Leg` what became of it. It knows nothing of tokens, blocks or policies.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from router.proxy.migration import Carry


class Endpoint(NamedTuple):
    """An engine's HTTP address. `prefix` is the path of the worker's URL without a trailing slash, mostly empty.
    `tls`: it is https.

    A tuple, because it is hashed once a request: equal addresses share one pool of connections.
    """

    host: str
    port: int
    prefix: str = ""
    tls: bool = False


@dataclass(slots=True)
class Inbound:
    """A complete request, as it came. Header names are lower-cased; order, repeats and values are kept.

    `target` is in origin form (an absolute-form target has lost its scheme and host); `path` is the target up to `?`,
    not percent-decoded. `body` is without transfer coding. `arrived` is the loop's clock when the body was complete.
    """

    method: str
    target: bytes
    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    http11: bool
    arrived: float
    client: str = ""
    request_id: str = ""
    """As the dispatcher knows it; empty until it has read the headers."""
    record: Record | None = None
    """Only while somebody keeps a journal."""
    carry: Carry | None = None
    """Set by the dispatcher for a stream that is to go on elsewhere when it breaks. Engines get `target` and `body` as
    they are at the time: the dispatcher may change both."""

    def header(self, name: bytes) -> str | None:
        """The first value of a header without white space around it, or None. `name` in lower case."""
        for key, value in self.headers:
            if key == name:
                return value.decode("latin-1").strip(" \t")
        return None


@dataclass(slots=True)
class Answer:
    """What the router answers by itself."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    code: str = ""
    """That of an error, for logs."""


class Outcome(StrEnum):
    """How a leg ended. Closed: also the label of a metric."""

    __hash__ = str.__hash__  # members are keys on the request path; the one of Enum is written in Python

    OK = "ok"
    ENGINE_ERROR = "engine_error"
    CLIENT_GONE = "client_gone"
    CONNECT_FAILED = "connect_failed"
    CONNECT_TIMEOUT = "connect_timeout"
    RESET = "reset"
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    CUT = "cut"
    BAD_RESPONSE = "bad_response"
    WORKER_DOWN = "worker_down"
    """Moved to another worker: this one no longer answered health checks, and the request had not begun there."""


@dataclass(slots=True)
class Usage:
    """What the engine said of its own work; None where it said nothing."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class Leg(Protocol):
    """One attempt at one worker, booked before it is handed over. `end` is called exactly once, whatever happens.

    None of the methods may block or raise; what they raise is logged and counted, and the request goes on.
    """

    endpoint: Endpoint
    head_lines: bytes
    """Lines for the response head (`x-kvctl-worker: w1\\r\\n...`), each ending in CRLF. They are also put on the
    plane's own answer when the leg fails for good. An `x-request-id` here replaces the engine's."""
    upstream_lines: bytes = b""
    """Extra lines for the request head that the engine gets, each ending in CRLF (`x-request-id`, where absent)."""
    without: tuple[bytes, ...] = ()
    """Names in lower case of the client's headers that the engine does not get."""
    watch: bool
    """Whether the answer carries tokens: look for the first one and for `usage`."""
    repeatable: bool = True
    """Whether an engine may do the request twice. If not it gets a connection of its own: on a kept one nobody knows
    whether the engine had read it before it closed."""
    counts: bool = False
    """Whether to count a stream's items as they pass (`generated`)."""

    def first_token(self) -> None:
        """The first item with generated content has arrived (streams), or the whole good answer. At most once."""
        ...

    def generated(self, items: int) -> None:
        """So many more items of a stream went by, from the first one with content on; only if `counts`."""
        ...

    def usage(self, usage: Usage) -> None:
        """What the engine reported. At most once, before `end`; also for a broken stream that had reported some."""
        ...

    def end(self, outcome: Outcome, status: int) -> None:
        """`status` is the engine's, 0 if it never answered."""
        ...


class Dispatcher(Protocol):
    def dispatch(self, inbound: Inbound) -> Answer | Leg | Awaitable[Answer | Leg]:
        """Where a request goes. Answers at once where it can; an awaitable is cancelled when the client leaves.

        A leg that comes out of an awaitable after the client has left is ended with CLIENT_GONE.
        """
        ...

    def retry(self, inbound: Inbound, failed: Leg, outcome: Outcome) -> Answer | Leg | Awaitable[Answer | Leg]:
        """After a leg that ended before the first byte of the answer's body: another leg, or the error to answer."""
        ...

    def elsewhere(self, inbound: Inbound, leg: Leg) -> Leg | None:
        """Another leg for a request whose leg has not ended and can be given up without loss; None: stay with it."""
        ...

    def go_on(self, inbound: Inbound, failed: Leg, outcome: Outcome) -> Answer | Leg | Awaitable[Answer | Leg]:
        """After a leg whose stream broke, where `inbound.carry` is set: another leg for the rest of it. An answer means
        that there is none; nobody gets it."""
        ...


class Record(Protocol):
    """What the plane notes of one request. Times are `time.monotonic`'s, 0 where it never came to that.

    `leg`: the last one, `legs`: how many; `answer`: the router's own, if it answered; `status`: what the client got, 0
    for nothing; `outcome`: how the last leg ended, None where there was none and the router
    answered itself; `sent`: the request went to the engine; `began`: the first bytes of the answer's body went to the
    client; `bytes_out`: bytes of bodies passed on or answered.
    """

    leg: Leg | None
    legs: int
    answer: Answer | None
    status: int
    outcome: Outcome | None
    sent: float
    began: float
    bytes_out: int


class Journal(Protocol):
    """Who follows requests from beginning to end: the access log, traces, the limits of callers."""

    def begin(self, inbound: Inbound) -> Record: ...

    def end(self, inbound: Inbound, record: Record) -> None:
        """The request is over, whatever became of it. Called once for each `begin`."""
        ...

    def refused(self, client: str, method: str, path: str, request_id: str, answer: Answer) -> None:
        """The plane refused what a client sent before it was a request. Method and path may be empty."""
        ...


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. Watched by a coarse sweep: a timeout fires up to a quarter of the shortest one (at most 0.5 s) late.

    `first_byte` is from sending the request to the first byte of the answer's body: engines send the head of a stream
    before they have computed anything, so a head alone is held back and does not count. `idle` is the longest silence
    inside an answer, and the longest time a client may leave a full buffer untouched. `request` is what a client has
    for a head, and again for a body (there one second more for each 64 KiB received). `keepalive` ends an unused
    downstream connection, `pool_idle` an unused upstream one, before the engine does (uvicorn: after 5 s).
    `handshake` is what a client has for a TLS handshake (an engine: `connect`). A client's connection older than
    `max_age` ends with its next answer; 0: no matter how old.
    """

    connect: float = 5.0
    first_byte: float = 600.0
    idle: float = 300.0
    request: float = 60.0
    keepalive: float = 75.0
    pool_idle: float = 4.0
    handshake: float = 10.0
    max_age: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes and counts that a client controls. `max_requests`: on one connection, which ends with the answer to the
    last of them; 0: any number."""

    max_body: int = 64 * 1024 * 1024
    max_head: int = 64 * 1024
    max_headers: int = 100
    max_connections: int = 20_000
    write_high_water: int = 256 * 1024
    idle_per_endpoint: int = 512
    max_requests: int = 0


@dataclass(slots=True)
class PlaneStats:
    """Counters of the data plane, read by the admin port. `connections` and `open_requests` are gauges.

    `bad_requests`: refused by the plane itself (4xx, too many connections). `upstream_refreshed`: a re-used connection
    was found dead and the request went again on a fresh one. `retries`: legs after the first. `faults`: exceptions out
    of the dispatcher or a leg. `unwatched`: answers whose content or usage could not be followed to the end.
    `completed`: streams that broke when only their end was missing, which the router wrote.
    `tls_begun`, `tls_done`: connections of clients accepted for a TLS handshake, and those that came through it.
    """

    connections: int = 0
    open_requests: int = 0
    requests: int = 0
    bad_requests: int = 0
    upstream_opened: int = 0
    upstream_reused: int = 0
    upstream_refreshed: int = 0
    retries: int = 0
    faults: int = 0
    unwatched: int = 0
    completed: int = 0
    tls_begun: int = 0
    tls_done: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
