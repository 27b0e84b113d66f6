"""The LMCache workers that have registered, and what follows from each of their messages.

An instance is one engine; its workers are the engine's tensor-parallel ranks, each with keys of its own. Operations
carry a sequence number a worker and location. After a gap in host memory's the worker is asked for all of its keys, in
the answer to its next heartbeat; LMCache cannot send those of other locations again, so these are forgotten and learnt
anew. A worker whose heartbeat stays away is degraded and kept: its keys still count, since the engine's own health says
whether it lives.

No sockets, no clock: times are seconds of one monotonic clock, passed in. Cost: under 1 us an operation.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from router.lmcache.chunks import Scheme
from router.lmcache.index import ChunkIndex, Tier, bits
from router.lmcache.wire import (
    KEY_MASK,
    Answer,
    Ask,
    BatchedKVOperationMsg,
    BatchedP2PLookupMsg,
    BatchedP2PLookupRetMsg,
    DeRegisterMsg,
    ErrorMsg,
    FullSyncBatchMsg,
    FullSyncCommand,
    FullSyncEndMsg,
    FullSyncStartMsg,
    FullSyncStartRetMsg,
    FullSyncStatusMsg,
    FullSyncStatusRetMsg,
    HeartbeatMsg,
    HeartbeatRetMsg,
    Push,
    RegisterMsg,
    RegisterRetMsg,
)
from router.lmcache.worker import MAX_LOCATIONS, Id, LmWorker, Location, Sync, tier_of

log = logging.getLogger("kvctl.lmcache")

SYNCED_LOCATION: Final = "LocalCPUBackend"
"""The one location whose keys a full sync brings."""
_ASK_AGAIN: Final = 30.0
_SYNC_PATIENCE: Final = 300.0
_FORGOTTEN_AFTER: Final = 600.0
_LEAVING: Final = 5.0
"""Seconds in which a heartbeat may still come of a worker that has deregistered."""
_NO_PEER: Final = ("", "", 0, "")


class Instances:
    """Args:
    index: where keys are kept; this is its one writer.
    scheme: how keys are made by a worker of which nothing else is known.
    heartbeat_url: where a worker at some IP address reaches our heartbeat port, `host:port`.
    changed: called whenever a worker has come or gone.
    told: called when one has told its first key.
    patience: seconds without a heartbeat after which a worker is degraded.
    """

    def __init__(
        self,
        index: ChunkIndex,
        scheme: Scheme,
        heartbeat_url: Callable[[str], str],
        changed: Callable[[], None],
        told: Callable[[], None],
        patience: float = 30.0,
    ) -> None:
        self.index = index
        self.workers: dict[Id, LmWorker] = {}
        self.by_bit: dict[int, LmWorker] = {}
        self._by_address: dict[tuple[str, int], LmWorker] = {}
        self._left: dict[Id, tuple[str, int, float]] = {}
        self.counts: Counter[str] = Counter()
        """What happened, by a closed set of names: also the label of a metric."""
        self._scheme = scheme
        self._heartbeat_url = heartbeat_url
        self._changed = changed
        self._told = told
        self._patience = patience

    # -- coming and going --------------------------------------------------------------------------------------

    def register(self, message: RegisterMsg | HeartbeatMsg, now: float) -> LmWorker | None:
        """The worker, with nothing known of its cache; None if there are as many as there may be."""
        name = (message.instance_id, message.worker_id)
        before = self.workers.get(name)
        if before is not None:
            log.warning("Instance-worker %s already registered: what was known of its cache is dropped", name)
            self._drop(before)
        other = self._by_address.get((message.ip, message.port))
        if other is not None and not _everybodys(message.ip):
            log.info("Deregistered instance-worker %s: %s has its address now", other.id, name)
            self.counts["replaced"] += 1
            self._drop(other)
        bit = self.index.add()
        if bit is None:
            self._count_and_say("refused_registrations", "LMCache worker %s not registered: too many are", name)
            return None
        worker = LmWorker(*name, message.ip, message.port, message.peer_init_url, bit, self._scheme, registered_at=now)
        self.workers[name] = self.by_bit[bit] = self._by_address[worker.ip, worker.port] = worker
        self.counts["registered"] += 1
        log.info("Worker registered: %s", worker.instance)
        log.info("Registered instance-worker %s with URL %s:%d", name, worker.ip, worker.port)
        self._changed()
        return worker

    def _deregister(self, message: DeRegisterMsg, now: float) -> None:
        worker = self.workers.get((message.instance_id, message.worker_id))
        if worker is None:
            self._count_and_say(
                "unknown_worker", "Instance-worker %s not registered", (message.instance_id, message.worker_id)
            )
            return
        if (worker.ip, worker.port) != (message.ip, message.port):
            self.counts["late_deregistrations"] += 1  # of a process whose successor has registered since
            return
        self._drop(worker)
        self._left[worker.id] = (worker.ip, worker.port, now)
        self.counts["deregistered"] += 1
        log.info("Deregistered instance-worker %s", worker.id)

    def _drop(self, worker: LmWorker) -> None:
        del self.workers[worker.id]
        del self.by_bit[worker.bit]
        if self._by_address.get((worker.ip, worker.port)) is worker:
            del self._by_address[worker.ip, worker.port]
        self.index.remove(worker.bit)
        self._changed()

    def emptied(self, worker: LmWorker) -> None:
        """The worker's engine has died. If this process is the same after all, it tells its keys again."""
        self.index.clear(worker.bit)
        worker.sync = None
        worker.wants_sync = "engine_was_down"
        worker.asked_at = None

    def look(self, now: float) -> None:
        """Marks workers whose heartbeat is overdue, and gives up on syncs that have stopped."""
        self._left = {name: left for name, left in self._left.items() if now - left[2] < _LEAVING}
        for worker in self.workers.values():
            last = worker.registered_at if worker.heartbeat_at is None else worker.heartbeat_at
            if not worker.overdue and now - last > self._patience:
                worker.overdue = True
                self.counts["overdue_heartbeats"] += 1
                log.warning(
                    "Worker %s_%d last heartbeat time: %s, more than %g seconds; it is kept, as degraded. Is "
                    "lmcache_worker_heartbeat_time set, and port %s reached from there?",
                    worker.instance,
                    worker.number,
                    "never" if worker.heartbeat_at is None else f"{now - last:.0f} s ago",
                    self._patience,
                    self._heartbeat_url(worker.ip).rpartition(":")[2],
                )
            if worker.sync is not None and now - worker.sync.last > _SYNC_PATIENCE:
                self._count_and_say("syncs_given_up", "Full sync of %s has stopped; it is asked again", worker.id)
                worker.sync, worker.wants_sync, worker.asked_at = None, "sync_stopped", None

    def forget_lost(self, bound: Callable[[str], bool], now: float) -> None:
        """Drops workers that were silent for long and whose instance is `bound` to no worker any more."""
        for worker in list(self.workers.values()):
            last = worker.registered_at if worker.heartbeat_at is None else worker.heartbeat_at
            if worker.overdue and now - last > _FORGOTTEN_AFTER and not bound(worker.instance):
                self._drop(worker)
                self.counts["forgotten"] += 1
                log.info("Deregistered instance-worker %s: silent, and of no registered worker", worker.id)

    # -- questions ---------------------------------------------------------------------------------------------

    def answer(self, message: Ask, now: float) -> Answer:
        match message:
            case RegisterMsg():
                if self.register(message, now) is None:
                    return ErrorMsg("this controller has as many workers as it can hold")
                return RegisterRetMsg({"heartbeat_url": self._heartbeat_url(message.ip)})
            case HeartbeatMsg():
                return self._heartbeat(message, now)
            case FullSyncStartMsg():
                return self._sync_started(message, now)
            case FullSyncStatusMsg():
                return self._sync_status(message)
            case BatchedP2PLookupMsg():
                return self._peer(message)

    def _heartbeat(self, message: HeartbeatMsg, now: float) -> Answer:
        worker = self.workers.get((message.instance_id, message.worker_id))
        if worker is None:
            ip, port, left_at = self._left.get((message.instance_id, message.worker_id), ("", 0, 0.0))
            if (ip, port) == (message.ip, message.port) and now - left_at < _LEAVING:
                self.counts["heartbeats_after_deregistration"] += 1
                return HeartbeatRetMsg()
            log.warning("%s has not been registered, re-register the worker.", (message.instance_id, message.worker_id))
            worker = self.register(message, now)
            if worker is None:
                return ErrorMsg("this controller has as many workers as it can hold")
            worker.wants_sync = "worker_re_registered"
        if worker.overdue:
            log.info("Worker %s_%d sends heartbeats again", worker.instance, worker.number)
        worker.overdue, worker.heartbeat_at = False, now
        worker.peer_url = message.peer_init_url
        worker.heartbeats += 1
        reason = worker.wants_sync
        if reason is None or worker.sync is not None:
            return HeartbeatRetMsg()
        if worker.asked_at is not None and now - worker.asked_at < _ASK_AGAIN:
            return HeartbeatRetMsg()
        worker.asked_at = now
        self.counts["syncs_asked"] += 1
        log.info("Full sync asked of %s: %s", worker.id, reason)
        return HeartbeatRetMsg([FullSyncCommand(reason)])

    def _sync_started(self, message: FullSyncStartMsg, now: float) -> FullSyncStartRetMsg:
        worker = self.workers.get((message.instance_id, message.worker_id))
        if worker is None:
            self.counts["unknown_worker"] += 1
            return FullSyncStartRetMsg(message.sync_id, False, "the worker is not registered")
        if self._location(worker, message.location) is None:
            return FullSyncStartRetMsg(message.sync_id, False, f"more than {MAX_LOCATIONS} locations")
        worker.sync = Sync(message.sync_id, message.location, message.batch_count, now)
        log.info("Full sync of %s: %d keys in %d batches", worker.id, message.total_keys, message.batch_count)
        return FullSyncStartRetMsg(message.sync_id, True)

    def _sync_status(self, message: FullSyncStatusMsg) -> FullSyncStatusRetMsg:
        """A sync that is not under way may end: the worker need not stay frozen for it, and not for others'."""
        worker = self.workers.get((message.instance_id, message.worker_id))
        progress = 0.0
        if self.workers:
            progress = 1.0 - sum(one.sync is not None for one in self.workers.values()) / len(self.workers)
        if worker is None or worker.sync is None or worker.sync.id != message.sync_id:
            complete = worker is not None and worker.wants_sync is None
            return FullSyncStatusRetMsg(message.sync_id, complete, progress, True)
        return FullSyncStatusRetMsg(message.sync_id, False, progress, False, worker.sync.missing())

    def _peer(self, message: BatchedP2PLookupMsg) -> BatchedP2PLookupRetMsg:
        """The worker of the same rank in another instance that holds most of these keys."""
        keys = [key & KEY_MASK for key in message.hashes]
        best = _NO_PEER
        others = 0
        for bit in bits(self.index.holders(keys[0])) if keys else ():
            worker = self.by_bit.get(bit)
            same_rank = worker is not None and worker.number == message.worker_id
            if worker is not None and same_rank and worker.peer_url and worker.instance != message.instance_id:
                others |= 1 << bit
        for group, depth in self.index.walk(keys, others)[0]:
            worker = self.by_bit[next(iter(bits(group)))]
            if depth > best[2] and worker.peer_url is not None:
                best = (worker.instance, SYNCED_LOCATION, depth, worker.peer_url)
        return BatchedP2PLookupRetMsg([best])

    # -- what is pushed ----------------------------------------------------------------------------------------

    def take(self, message: Push, start: int, stop: int, now: float) -> None:
        """Items `start` to `stop` of a message with a list; the others as a whole."""
        match message:
            case DeRegisterMsg():
                self._deregister(message, now)
            case BatchedKVOperationMsg():
                self._operations(message, start, stop, now)
            case FullSyncBatchMsg():
                self._sync_batch(message, start, stop, now)
            case FullSyncEndMsg():
                self._sync_ended(message)

    def _operations(self, message: BatchedKVOperationMsg, start: int, stop: int, now: float) -> None:
        worker = self.workers.get((message.instance_id, message.worker_id))
        if worker is None:
            self.counts["unknown_worker"] += 1
            return
        location = self._location(worker, message.location)
        if location is None:
            return
        sync = worker.sync if worker.sync is not None and worker.sync.location == message.location else None
        for operation in message.operations[start:stop]:
            key = operation.key & KEY_MASK
            expected = None if location.last_seq is None else location.last_seq + 1
            if expected is not None and operation.seq_num != expected:
                self._gap(worker, message.location, location, expected, operation.seq_num)
            location.last_seq = operation.seq_num
            if operation.op_type == "admit":
                worker.admits += 1
                if self._admit(worker, location.tier, key, now) and sync is not None:
                    sync.keys.add(key)
            elif operation.op_type == "evict":
                worker.evicts += 1
                if not self.index.evict(worker.bit, location.tier, key):
                    self.counts["unknown_evicts"] += 1
                if sync is not None:
                    sync.keys.discard(key)
            else:
                self.counts["unknown_operations"] += 1

    def _admit(self, worker: LmWorker, tier: Tier, key: int, now: float) -> bool:
        worker.recent.append((key, now))
        if not worker.told:
            worker.told = True
            self._told()
        if self.index.admit(worker.bit, tier, key):
            return True
        if self.index.refused == 1:
            log.warning(
                "The memory for LMCache keys (%d MiB) is full: new keys are not kept. Raise --lmcache-index-limit-mib",
                self.index.limit >> 20,
            )
        return False

    def _gap(self, worker: LmWorker, name: str, location: Location, expected: int, seq: int) -> None:
        location.gaps += 1
        self._count_and_say(
            "gaps",
            "KV batch sequence out of order detected: key=%s, expected_seq=%d, actual_seq=%d, gap=%d",
            (worker.instance, worker.number, name),
            expected,
            seq,
            seq - expected,
            often=location.gaps <= 10,
        )
        if name == SYNCED_LOCATION:
            worker.wants_sync = worker.wants_sync or "sequence_gap"
        else:
            self.index.clear(worker.bit, location.tier)
            self.counts["locations_forgotten"] += 1

    def _sync_batch(self, message: FullSyncBatchMsg, start: int, stop: int, now: float) -> None:
        worker, sync = self._syncing(message)
        if worker is None or sync is None:
            return
        sync.last = now
        tier = worker.locations[message.location].tier
        for key in message.keys[start:stop]:
            key &= KEY_MASK
            if self._admit(worker, tier, key, 0.0):
                sync.keys.add(key)
        if stop >= len(message.keys):
            sync.received.add(message.batch_id)

    def _sync_ended(self, message: FullSyncEndMsg) -> None:
        worker, sync = self._syncing(message)
        if worker is None or sync is None or sync.missing():
            return
        self.index.replace(worker.bit, worker.locations[sync.location].tier, sync.keys)
        worker.sync = worker.wants_sync = worker.asked_at = None
        worker.syncs += 1
        self.counts["syncs"] += 1
        log.info("Full sync completed for worker %s: %d keys", worker.id, len(sync.keys))

    def _syncing(self, message: FullSyncBatchMsg | FullSyncEndMsg) -> tuple[LmWorker | None, Sync | None]:
        worker = self.workers.get((message.instance_id, message.worker_id))
        sync = None if worker is None else worker.sync
        if sync is None or sync.id != message.sync_id or sync.location != message.location:
            self.counts["unknown_syncs"] += 1
            return None, None
        return worker, sync

    def _location(self, worker: LmWorker, name: str) -> Location | None:
        location = worker.locations.get(name)
        if location is None:
            if len(worker.locations) >= MAX_LOCATIONS:
                self._count_and_say(
                    "too_many_locations",
                    "LMCache worker %s names more than 16 locations; the rest is not taken",
                    worker.id,
                )
                return None
            location = worker.locations[name] = Location(tier_of(name))
        return location

    def _count_and_say(self, name: str, message: str, *shown: object, often: bool = False) -> None:
        """Counts, and logs the first of a kind and each thousandth, or each if `often`."""
        if often or self.counts[name] % 1000 == 0:
            log.warning(message, *shown)
        self.counts[name] += 1


def _everybodys(ip: str) -> bool:
    """Whether `ip` tells nothing: LMCache names the loopback where it cannot find its own address."""
    return ip.startswith("127.") or ip in ("::1", "localhost", "")
