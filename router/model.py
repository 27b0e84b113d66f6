"""The nouns of routing: Worker, RouteRequest, Candidates, Term, Decision, Reason.

Pure data: no I/O, no clock, no global random state. Times are seconds of one monotonic clock that the caller owns.
A *row* of `Candidates` is one (worker, dp rank); a *slot* is that row's fixed number in the prefix index and the load
tracker for as long as the worker is registered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import random

    from router.engine_time import EngineTimes
    from router.lmcache.chunks import PromptChunks

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


class Reason(StrEnum):
    """Why the winner won. Closed: also the label of a metric."""

    __hash__ = str.__hash__  # members are keys on the request path; the one of Enum is written in Python

    LOWEST_COST = "lowest_cost"
    TIE = "tie"
    SAMPLED = "sampled"
    ONLY_CANDIDATE = "only_candidate"
    RANDOM = "random"
    ROUND_ROBIN = "round_robin"
    POWER_OF_TWO = "power_of_two"
    LEAST_LOADED = "least_loaded"
    PINNED = "pinned"
    SESSION = "session"
    KNOWN_PREFIX = "known_prefix"
    KV_HIT = "kv_hit"
    AFFINITY = "affinity"
    LOAD_BOUND = "load_bound"


class Degraded(StrEnum):
    """What a decision had to do without. Named in the decision and in a metric, never silent."""

    __hash__ = str.__hash__  # members are keys on the request path; the one of Enum is written in Python

    NO_TOKENS = "no_tokens"
    APPROXIMATE_TOKENS = "approximate_tokens"
    NO_KV_EVENTS = "no_kv_events"
    KV_EVENTS_LOST = "kv_events_lost"
    BLOCK_SIZE_UNKNOWN = "block_size_unknown"
    BLOCK_SIZE_DIFFERS = "block_size_differs"
    NO_SESSION = "no_session"
    POLICY_FAILED = "policy_failed"
    INDEX_DISTRUSTED = "index_distrusted"
    MULTIMODAL = "multimodal"
    SHARED_CACHE_UNREACHABLE = "shared_cache_unreachable"
    LAST_RESORT = "last_resort"


class WhyNot(IntEnum):
    """The rule that removed a row, in the order in which the rules are asked. OK is eligible."""

    OK = 0
    NOT_ALLOWED = 1
    WRONG_MODEL = 2
    UNHEALTHY = 3
    DRAINING = 4
    CIRCUIT_OPEN = 5
    RANK_OUT_OF_RANGE = 6
    TAINT = 7
    BUSY = 8
    SLOW_START = 9
    ALREADY_TRIED = 10
    NOT_PINNED = 11


class DeviceClass(IntEnum):
    UNKNOWN = 0
    CUDA = 1
    CPU = 2


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a user said of a worker; `None` is "ask the engine"."""

    url: str
    id: str
    kv: str | None = None
    replay: str | None = None
    model: str | None = None
    device: str | None = None
    ranks: int | None = None
    block_size: int | None = None
    taints: tuple[str, ...] = ()
    batch_tokens: int | None = None
    """The engine's max_num_batched_tokens, which engines do not tell."""
    instances: tuple[str, ...] = ()
    """Ids of its LMCache instances: one, or one a dp rank in rank order."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What the caller said of its request, beyond the content. All optional; policies and the queue read them.

    `osl`: output tokens it expects. `priority`: higher goes first among equals; `strict_priority`: before all lower
    ones. `deadline_s`: seconds from arrival after which the answer is worth nothing. `allowed`: worker ids, None is
    all. `required_taints` must all be on a worker; `preferred_taints` are (taint, weight), positive attracts.
    """

    session: str | None = None
    osl: int | None = None
    priority: int = 0
    strict_priority: int = 0
    deadline_s: float | None = None
    allowed: frozenset[str] | None = None
    required_taints: frozenset[str] = frozenset()
    preferred_taints: tuple[tuple[str, float], ...] = ()
    policy_class: str = ""
    tenant: str = ""


NO_HINTS = Hints()


@dataclass(frozen=True, slots=True)
class Migrated:
    """Where a stream comes from that goes on elsewhere: `worker` and `decision` (its id) of the leg that broke, `cause`
    as its outcome is called, the generated `tokens` that the new prompt carries, and when the first of them came
    (the core's clock, 0 if none had)."""

    worker: str
    decision: str
    cause: str
    tokens: int
    first_at: float


@dataclass(slots=True)
class RouteRequest:
    """What a policy may know of a request.

    `keys` maps a block size to the request's block keys (uint64, one a full block); usually one entry. `own_keys` are
    those by which the router knows the request again itself, where they differ: its media are part of them. `joins` is
    false where the engine's figure of cached tokens is not that of this prompt (several prompts or answers at once).
    `weights` are this request's overrides of kv weights by name, checked. `now` is the core's clock when
    the decision is made.
    """

    id: str
    model: str
    prompt_tokens: int = 0
    keys: dict[int, npt.NDArray[np.uint64]] = field(default_factory=dict)
    own_keys: dict[int, npt.NDArray[np.uint64]] | None = None
    shared: dict[int, int] = field(default_factory=dict)
    """By block size: the prompt's leading blocks in the shared store as Redis said; empty where it was not asked."""
    degraded: tuple[Degraded, ...] = ()
    pin_worker: str | None = None
    pin_rank: int | None = None
    pin_param: str = "x-kvctl-worker"
    rank_param: str = "x-kvctl-dp-rank"
    tried: frozenset[str] = frozenset()
    joins: bool = True
    hints: Hints = NO_HINTS
    weights: Mapping[str, Any] = field(default_factory=dict)
    now: float = 0.0
    waited_s: float = 0.0
    """Seconds that it stood in the queue before it was placed."""
    chunks: PromptChunks | None = None
    """The prompt for an LMCache controller; None where none runs."""
    migration: Migrated | None = None
    """Set where it is the rest of a stream that broke."""
    unfollowed: str = ""
    """Why its stream could not go on elsewhere if it broke; empty also where nobody has asked."""


@dataclass(slots=True)
class Candidates:
    """The fleet as one request sees it: arrays of equal length n, one row a (worker, dp rank).

    Overlaps are blocks: `device` is the contiguous prefix held on the device, `host` and `disk` what the next tiers
    add behind it, `shared` what a shared store holds beyond the device. Loads are those of the requests already
    booked; `new_blocks` is what this request would add to `decode_blocks` on that row, so that the potential load is
    the sum of the two. `own_prefill_tokens` is the part of `prefill_tokens` that is this request's own prefix, being
    computed there for another. `taint_factor` multiplies the cost where the request prefers some taints, else None;
    `times` is there for a policy that needs it. `told` are the device blocks that the worker's own events promise,
    without what is only expected; `trust` is what overlaps were multiplied with, None if every index is trusted.
    """

    workers: tuple[str, ...]
    ranks: tuple[int, ...]
    slots: IntArray
    eligible: BoolArray
    why_not: IntArray
    device: IntArray
    host: IntArray
    disk: IntArray
    shared: IntArray
    prefill_tokens: IntArray
    own_prefill_tokens: IntArray
    decode_blocks: IntArray
    new_blocks: IntArray
    active_requests: IntArray
    capacity_blocks: IntArray
    block_size: IntArray
    device_class: IntArray
    taint_factor: FloatArray | None = None
    times: EngineTimes | None = None
    told: IntArray | None = None
    trust: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.workers)


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of the cost, for every row. `values`: float64, shape (n,)."""

    name: str
    unit: str
    values: FloatArray


@dataclass(slots=True)
class Decision:
    """Who serves a request and why; keeps all candidates and their terms. `winner` is a row of `candidates`.

    A policy fills the first six fields, the core the rest. `at` is the core's clock until the request is placed, and
    seconds since the epoch from then on.
    """

    mode: str
    winner: int
    reason: Reason
    terms: tuple[Term, ...]
    cost: FloatArray
    candidates: Candidates
    degraded: tuple[Degraded, ...] = ()
    id: str = ""
    request_id: str = ""
    model: str = ""
    at: float = 0.0
    prompt_tokens: int = 0
    block_size: int = 0
    decide_us: float = 0.0
    predicted_cached_tokens: int = 0
    best_cached_tokens: int | None = None
    """The most that any eligible row would have had cached, counted like the winner's; None: not counted yet, see
    `router.reuse.best_cached_tokens`."""
    engine_cached_tokens: int | None = None
    waited_s: float = 0.0
    migration: Migrated | None = None
    went_on: str = ""
    """The id of the decision by which this one's stream went on elsewhere when it broke."""

    @property
    def worker(self) -> str:
        return self.candidates.workers[self.winner]

    @property
    def rank(self) -> int:
        return self.candidates.ranks[self.winner]


class Need(StrEnum):
    """What a policy cannot do its work without."""

    __hash__ = str.__hash__  # members are keys on the request path; the one of Enum is written in Python

    BLOCKS = "blocks"
    LOAD = "load"
    TIMES = "times"


class Policy(Protocol):
    """One way to choose. Stateful policies (round-robin) keep their own counter; no policy reads a clock."""

    name: str
    needs: frozenset[Need]

    def decide(self, request: RouteRequest, candidates: Candidates, rng: random.Random) -> Decision:
        """Choose among the eligible rows; the caller guarantees that there is at least one."""
        ...


@runtime_checkable
class Learns(Policy, Protocol):
    """A policy that remembers where it sent what (a prefix tree, a session's worker). Told only of placed requests."""

    def placed(self, request: RouteRequest, decision: Decision) -> None:
        """The request was booked on the decision's winner."""
        ...

    def dropped(self, worker: str, slots: tuple[int, ...]) -> None:
        """A worker was removed, or what it held is gone on these slots."""
        ...


class RoutingError(Exception):
    """Root of what routing can refuse with. `status` and `code` are those of the HTTP answer."""

    status = 503
    code = "no_worker"
    headers: tuple[tuple[str, str], ...] = ()
    """More headers of the answer."""
    retry_after = 1
    """Seconds, said with 429, 503 and 529."""
    request: RouteRequest | None = None
    """What was refused, as far as it had been read."""
    mode = ""
    candidates: Candidates | None = None
    """Whom the request could have gone to, each with the rule that removed it; None where it did not come to that."""

    def __init__(self, message: str, *, param: str | None = None, extra: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.extra = extra
        """More keys for the error's body: a limit, its value and the current one."""


class NoWorkers(RoutingError):
    """Nobody can serve the request: none registered, none healthy, or all filtered."""


class AllBusy(RoutingError):
    """Somebody could serve it, and everybody who could is past a limit."""

    status = 529
    code = "all_workers_busy"


class UnknownModel(RoutingError):
    status = 404
    code = "model_not_found"


class BadRequest(RoutingError):
    """The caller's own mistake: the body, a header, a pin that names nobody."""

    status = 400
    code = "bad_request"
