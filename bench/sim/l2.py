"""Stores that simulated engines share (L2): in this process, or in a real Redis.

Redis gets only names (`router.prefix.shared_keys`) with a value of one byte and a time to live; nothing of a prompt.
A Redis that is down or slow costs hits, never a request: each call has a short timeout, after a failure it is left
alone for a second, and that is logged once an outage and counted.

Looking up is a call on the caller's thread, MGETs of growing size up to the first name that is missing (0.2 ms on
loopback for a miss). Writing is done by a thread of its own, in pipelines.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.sim.keystore import KeyStore
from router.prefix.shared_keys import names
from router.redis_url import RedisUrl

log = logging.getLogger(__name__)

MEMORY_BLOCKS = 1 << 20
TIMEOUT = 0.05
PAUSE = 1.0
FIRST_LOOK, MOST_LOOKED = 32, 1024
MOST_WAITING = 1024
MOST_KNOWN = 200_000
_VALUE = b"1"


class MemoryStore:
    """The engines of one process share it; least recently used blocks go first."""

    def __init__(self, blocks: int = MEMORY_BLOCKS) -> None:
        self._keys = KeyStore(blocks)

    def __len__(self) -> int:
        return len(self._keys)

    def client(self) -> MemoryClient:
        """One engine's hold on the store."""
        return MemoryClient(self._keys)


class MemoryClient:
    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys
        self._finished: list[tuple[int, bool]] = []
        self._number = 0

    def prefix(self, keys: Sequence[int]) -> int:
        return self._keys.prefix(keys)

    def news(self, keys: Sequence[int]) -> int:
        return self._keys.prefix(keys)

    def put(self, keys: Sequence[int]) -> int | None:
        for key in keys:
            self._keys.add(key)
        self._number += 1
        self._finished.append((self._number, True))
        return self._number

    def finished(self) -> list[tuple[int, bool]]:
        done, self._finished = self._finished, []
        return done


@dataclass(slots=True)
class RedisCounters:
    """Calls, and blocks written. `skipped` lookups were not tried, because Redis had just failed; `dropped` writes
    neither, for that or because too many were waiting."""

    lookups: int = 0
    lookup_errors: int = 0
    skipped: int = 0
    writes: int = 0
    write_errors: int = 0
    dropped: int = 0
    blocks_written: int = 0


class RedisStore:
    """One engine's connection to a Redis that other engines and processes use too.

    Args:
        url: of the server.
        prefix: what the names begin with (`shared_keys.namespace`).
        ttl: seconds that a block lives after it was last written.
    """

    def __init__(self, url: RedisUrl, prefix: str, ttl: float = 3600.0) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self.counters = RedisCounters()
        self._url = url
        self._prefix = prefix
        self._ttl_ms = max(1, round(ttl * 1000))
        self._again = ttl / 2
        self._error: type[Exception] = redis.RedisError
        self._client: Any = redis.Redis.from_url(
            url.secret,
            socket_timeout=TIMEOUT,
            socket_connect_timeout=TIMEOUT,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._down_until = 0.0
        self._failing = False
        self._wrote: OrderedDict[int, float] = OrderedDict()
        self._number = 0
        self._waiting: queue.Queue[tuple[int, list[int]] | None] = queue.Queue(MOST_WAITING)
        self._finished: deque[tuple[int, bool]] = deque()
        self._lock = threading.Lock()
        self._writer = threading.Thread(target=self._write_all, name="l2-writer", daemon=True)
        self._writer.start()

    @property
    def up(self) -> bool:
        """Whether Redis answered last time."""
        return not self._failing

    def prefix(self, keys: Sequence[int]) -> int:
        if not keys:
            return 0
        if time.monotonic() < self._down_until:
            self.counters.skipped += 1
            return 0
        self.counters.lookups += 1
        found, look = 0, FIRST_LOOK
        while found < len(keys):
            asked = keys[found : found + look]
            try:
                values = self._client.mget(names(self._prefix, asked))
            except self._error as error:
                self.counters.lookup_errors += 1
                self._failed(error)
                return found
            here = next((at for at, value in enumerate(values) if value is None), len(asked))
            found += here
            if here < len(asked):
                break
            look = min(4 * look, MOST_LOOKED)
        self._answered()
        return found

    def news(self, keys: Sequence[int]) -> int:
        fresh = time.monotonic() - self._again
        with self._lock:
            return next((at for at, key in enumerate(keys) if self._wrote.get(key, float("-inf")) < fresh), len(keys))

    def put(self, keys: Sequence[int]) -> int | None:
        now = time.monotonic()
        if now < self._down_until:
            self.counters.dropped += 1
            return None
        self._number += 1
        try:
            self._waiting.put_nowait((self._number, list(keys)))
        except queue.Full:
            self.counters.dropped += 1
            return None
        with self._lock:
            for key in keys:
                self._wrote[key] = now
                self._wrote.move_to_end(key)
            while len(self._wrote) > MOST_KNOWN:
                self._wrote.popitem(last=False)
        return self._number

    def finished(self) -> list[tuple[int, bool]]:
        done = []
        while self._finished:
            done.append(self._finished.popleft())
        return done

    def close(self) -> None:
        """Let the writer end; what waits is not written."""
        while True:
            try:
                self._waiting.put_nowait(None)
                break
            except queue.Full:
                try:
                    self._waiting.get_nowait()
                except queue.Empty:
                    continue
        self._writer.join(2 * TIMEOUT + 1.0)
        self._client.close()

    def _write_all(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            number, keys = waiting
            done = time.monotonic() >= self._down_until and self._write(keys)
            if not done:
                with self._lock:
                    for key in keys:
                        self._wrote.pop(key, None)
            self._finished.append((number, done))

    def _write(self, keys: list[int]) -> bool:
        self.counters.writes += 1
        try:
            for first in range(0, len(keys), MOST_LOOKED):
                pipe = self._client.pipeline(transaction=False)
                for name in names(self._prefix, keys[first : first + MOST_LOOKED]):
                    pipe.set(name, _VALUE, px=self._ttl_ms)
                pipe.execute()
        except self._error as error:
            self.counters.write_errors += 1
            self._failed(error)
            return False
        self.counters.blocks_written += len(keys)
        self._answered()
        return True

    def _failed(self, error: Exception) -> None:
        self._down_until = time.monotonic() + PAUSE
        if not self._failing:
            self._failing = True
            log.warning("The L2 cache at %s fails (%.200s): engines go on without it", self._url, error)

    def _answered(self) -> None:
        if self._failing:
            self._failing = False
            log.warning("The L2 cache at %s answers again", self._url)
