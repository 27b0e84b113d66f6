"""LMCache beside the engine's own cache: 256-token chunks in host memory (L1) and in a store that all share (L2).

A model of the in-process connector, checked against the wheels of 0.3.14, 0.4.3 and 0.5.6: a lookup walks the
prompt's chunk keys through L1 and then L2 and stops at the first that is missing; what the engine lacks of the found
ones is loaded instead of computed; whole new chunks of a prompt are stored when the step that computed them ends.
Partial chunks and answers are not stored (`save_unfull_chunk` and `save_decode_cache` are off, as by default).

Keys are chained from NONE_HASH, so two workers share chunks exactly when theirs is the same. Transfers take the
bytes over a bandwidth; the engine adds that to its step. Pure: no I/O, no clock. Cost: hashing the prompt once more
and some hundred nanoseconds a chunk.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from bench.sim.engine import EngineRequest
from bench.sim.faults import Fault, Faults
from bench.sim.histogram import Histogram
from bench.sim.keystore import KeyStore
from bench.sim.kvcache import CacheEvent
from bench.sim.styles import CHUNK
from router.prefix.hashing import Tokens, block_keys, root_key, text_key

KV_SHAPE = (32, 2, CHUNK, 8, 128)
"""Layers, key and value, tokens, heads, head size: the 8-billion-parameter model of `BatchTiming`."""
TOKEN_BYTES = 32 * 2 * 8 * 128 * 2
L1_GIB = 5.0
"""LMCache's default `max_local_cpu_size`."""
L2_CHUNKS = 65_536
L1_BYTES_PER_SECOND = 20e9
L2_BYTES_PER_SECOND = 2e9

HIT_RATE_BOUNDS = tuple(n / 10 for n in range(1, 11))
TIME_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
SPEED_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)

RECENT_REQUESTS = 1000
"""Requests over which vLLM takes the hit rates of its periodic line."""

_KEY_MASK = (1 << 64) - 1


def none_hash(seed: str) -> int:
    """The root of all chunk keys of workers with this PYTHONHASHSEED: signed, 64 bits, as Python's hashes are."""
    value = text_key(b"PYTHONHASHSEED " + seed.encode(), 0)
    return value - (1 << 64) if value >> 63 else value


class Lookup(NamedTuple):
    """What the scheduler asked and got: tokens of the request, in the engine's cache, found in LMCache, to load."""

    request: str
    total: int
    computed: int
    hit: int
    load: int


class Recent(NamedTuple):
    """Tokens of one request: all, found in the engine's cache, loaded."""

    total: int
    local: int
    loaded: int


class Transfer(NamedTuple):
    """Tokens moved of those asked for, out of `total`; bytes; seconds."""

    request: str
    tokens: int
    asked: int
    total: int
    size: int
    seconds: float


class Observer(Protocol):
    """Hears what happens, as it happens; writes the log."""

    def looked_up(self, lookup: Lookup) -> None: ...

    def retrieved(self, transfer: Transfer) -> None: ...

    def stored(self, transfer: Transfer) -> None: ...

    def contains_failed(self) -> None: ...

    def put_failed(self, key: int) -> None: ...


@dataclass(slots=True)
class CacheCounters:
    """Totals since the worker began. Tokens, requests, bytes as the names say.

    `queries` and `hits` are vLLM's view (tokens its own cache lacked; tokens loaded instead), counted at a request's
    first admission only, and `local_hits` the tokens that its own cache had; the others are LMCache's, which counts
    a preempted request again.
    """

    lookup_requests: int = 0
    lookup_tokens: int = 0
    lookup_hits: int = 0
    lookup_0_hit_requests: int = 0
    retrieve_requests: int = 0
    requested_tokens: int = 0
    hit_tokens: int = 0
    store_requests: int = 0
    stored_tokens: int = 0
    vllm_hit_tokens: int = 0
    prompt_tokens: int = 0
    remote_reads: int = 0
    remote_writes: int = 0
    evictions: int = 0
    puts_failed: int = 0
    queries: int = 0
    hits: int = 0
    local_hits: int = 0
    pings: int = 0
    ping_errors: int = 0
    ping_code: int = 0


@dataclass(slots=True)
class CacheHistograms:
    """`hit_rate` has no request without a hit and the others no transfer that took no time, as in LMCache."""

    hit_rate: Histogram = field(default_factory=lambda: Histogram(HIT_RATE_BOUNDS))
    time_to_retrieve: Histogram = field(default_factory=lambda: Histogram(TIME_BOUNDS))
    time_to_store: Histogram = field(default_factory=lambda: Histogram(TIME_BOUNDS))
    retrieve_speed: Histogram = field(default_factory=lambda: Histogram(SPEED_BOUNDS))
    store_speed: Histogram = field(default_factory=lambda: Histogram(SPEED_BOUNDS))


class LMCache:
    """One worker's cache; the engine's `Connector`.

    Args:
        root: the worker's NONE_HASH.
        remote: the L2 that the fleet shares.
        faults: `init-failure`: nothing is ever looked up, found or stored; `l2-down`: the remote store fails each call.
        time_scale: multiplies the time of transfers; 0 is no time at all.
    """

    def __init__(
        self,
        root: int,
        remote: KeyStore,
        observer: Observer,
        faults: Faults = frozenset(),
        time_scale: float = 1.0,
    ) -> None:
        self.counters = CacheCounters()
        self.histograms = CacheHistograms()
        self.local = KeyStore(int(L1_GIB * 2**30) // (CHUNK * TOKEN_BYTES))
        self.recent: deque[Recent] = deque(maxlen=RECENT_REQUESTS)
        self.active = Fault.INIT_FAILURE not in faults
        self.remote_up = Fault.L2_DOWN not in faults
        self._root = root & _KEY_MASK
        self._remote = remote
        self._observer = observer
        self._time_scale = time_scale
        self._saved: dict[str, int] = {}
        self._ending: list[tuple[EngineRequest, Tokens, int]] = []
        self._seconds = 0.0

    @property
    def local_bytes(self) -> int:
        return len(self.local) * CHUNK * TOKEN_BYTES

    def match(self, request: EngineRequest, tokens: Tokens, computed: int, *, first: bool) -> int:
        total = len(tokens)
        hit = load = 0
        remote = 0
        if self.active:
            keys = self._keys(request, tokens)
            here = self.local.prefix(keys)
            remote = self._remote_prefix(keys, here)
            for key in keys[here : here + remote]:
                self._keep(key)
            hit = (here + remote) * CHUNK
            load = max(0, hit - computed - (hit == total))
            self._count_lookup(total, hit, computed)
            self._saved[request.id] = hit
        if first:
            self.counters.queries += total - computed
            self.counters.hits += load
            self.counters.local_hits += computed
            self.recent.append(Recent(total, computed, load))
        self._observer.looked_up(Lookup(request.id, total, computed, hit, load))
        if load:
            self._retrieve(request, computed, hit, remote)
        return load

    def computed(self, request: EngineRequest, tokens: Tokens, *, last: bool) -> None:
        if not self.active:
            return
        saved = self._saved.get(request.id, 0)
        if last:
            self._saved.pop(request.id, None)
        upto = len(tokens) // CHUNK * CHUNK
        if upto <= saved:
            return
        if not last:
            self._saved[request.id] = upto
        self._ending.append((request, tokens[:upto], saved // CHUNK * CHUNK))
        self._seconds += self._time((upto - saved) * TOKEN_BYTES / L1_BYTES_PER_SECOND)

    def forget(self, request_id: str) -> None:
        self._saved.pop(request_id, None)

    def step_ended(self) -> None:
        ended, self._ending = self._ending, []
        for request, tokens, start in ended:
            self._store(request, tokens, start)

    def take_seconds(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def take_events(self) -> list[CacheEvent]:
        """None: LMCache tells its controller of its chunks, not the engine's listeners."""
        return []

    def ping(self) -> bool:
        """Ask the remote store whether it is there, and remember the answer; the code of a failure is LMCache's -2."""
        if self.remote_up:
            self.counters.pings += 1
        else:
            self.counters.ping_errors += 1
        self.counters.ping_code = 0 if self.remote_up else -2
        return self.remote_up

    def _keys(self, request: EngineRequest, tokens: Tokens) -> list[int]:
        root = root_key(self._root, CHUNK, request.lora, request.salt)
        keys: list[int] = block_keys(np.ascontiguousarray(tokens), CHUNK, root).tolist()
        return keys

    def _remote_prefix(self, keys: list[int], here: int) -> int:
        if here == len(keys):
            return 0
        if not self.remote_up:
            self._observer.contains_failed()
            return 0
        return self._remote.prefix(keys[here:])

    def _count_lookup(self, total: int, hit: int, computed: int) -> None:
        counters = self.counters
        counters.lookup_requests += 1
        counters.lookup_tokens += total
        counters.lookup_hits += hit
        counters.prompt_tokens += total
        counters.vllm_hit_tokens += computed
        if hit:
            self.histograms.hit_rate.observe(hit / total)
        else:
            counters.lookup_0_hit_requests += 1

    def _retrieve(self, request: EngineRequest, computed: int, hit: int, remote: int) -> None:
        asked = hit - computed // CHUNK * CHUNK
        size = asked * TOKEN_BYTES
        far = min(asked, remote * CHUNK) * TOKEN_BYTES
        seconds = self._time(size / L1_BYTES_PER_SECOND + far / L2_BYTES_PER_SECOND)
        self._seconds += seconds
        counters = self.counters
        counters.retrieve_requests += 1
        counters.requested_tokens += asked
        counters.hit_tokens += asked
        counters.remote_reads += far // (CHUNK * TOKEN_BYTES)
        if seconds:
            self.histograms.time_to_retrieve.observe(seconds)
            self.histograms.retrieve_speed.observe(asked / seconds)
        self._observer.retrieved(Transfer(request.id, asked, asked, hit, size, seconds))

    def _store(self, request: EngineRequest, tokens: Tokens, start: int) -> None:
        keys = self._keys(request, tokens)[start // CHUNK :]
        for key in keys:
            self._keep(key)
            if self.remote_up:
                self._remote.add(key)
                self.counters.remote_writes += 1
            else:
                self.counters.puts_failed += 1
                self._observer.put_failed(key)
        count = len(tokens) - start
        size = count * TOKEN_BYTES
        seconds = self._time(size / L1_BYTES_PER_SECOND)
        self.counters.store_requests += 1
        self.counters.stored_tokens += count
        if seconds:
            self.histograms.time_to_store.observe(seconds)
            self.histograms.store_speed.observe(count / seconds)
        self._observer.stored(Transfer(request.id, count, count, len(tokens), size, seconds))

    def _keep(self, key: int) -> None:
        self.counters.evictions += self.local.add(key)

    def _time(self, seconds: float) -> float:
        return seconds * self._time_scale
