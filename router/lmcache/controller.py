"""The LMCache controller as the router sees it: what each worker's LMCache holds of a prompt.

Joins the parts: sockets (a thread), the instances and their keys, which worker an instance is of, and how its keys are
made, which is learnt from the prompts that were routed and the keys admitted after them. All but the sockets and the
learning runs on the loop. Cost on a request, only while a controller runs: the prompt's chunk keys (2 ns a token) once
for each distinct scheme, and a walk over them; copying 8 KiB of ids when it is placed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from router.fleet.registry import Fleet
from router.fleet.view import FleetView
from router.lmcache.binding import Bound, Candidate, How, bind
from router.lmcache.chunks import PromptChunks
from router.lmcache.index import ChunkIndex
from router.lmcache.learn import LEARNT_TOKENS, Found, SeenPrompt, find_scheme, shows
from router.lmcache.overlap import Overlap
from router.lmcache.registry import Instances
from router.lmcache.settings import ControllerSettings
from router.lmcache.shown import entry
from router.lmcache.sockets import ControllerSockets
from router.lmcache.wire import Answer, Ask, Push
from router.lmcache.worker import LmWorker
from router.model import IntArray
from router.prefix.hashing import Tokens

log = logging.getLogger("kvctl.lmcache")

_LOOK_EVERY: Final = 0.25
_LEARN_WITHIN: Final = 60.0
"""Seconds for which a prompt is compared with what is admitted after it."""
_JUDGED_AFTER: Final = 10.0
"""Seconds after which a prompt's first chunk should be known, if ever."""
_MOST_PROMPTS: Final = 256
_LEARN_FROM: Final = 64
_SURE: Final = 2
"""Prompts that must agree on the worker of an instance."""


class LMCacheController:
    """Args:
    settings: where it listens and what it assumes.
    fleet: the registered workers.
    clock: seconds of the loop's monotonic clock.
    """

    def __init__(self, settings: ControllerSettings, fleet: Fleet, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.fleet = fleet
        self.index = ChunkIndex(settings.index_limit)
        self.instances = Instances(
            self.index,
            settings.scheme,
            self._heartbeat_url,
            self.fleet_changed,
            self._forget_overlap,
            settings.patience,
        )
        self.bound: dict[str, Bound] = {}
        self.sockets: ControllerSockets | None = None
        self.learnt = 0
        self._clock = clock
        self._prompts: deque[SeenPrompt] = deque(maxlen=_MOST_PROMPTS)
        self._to_judge: deque[SeenPrompt] = deque(maxlen=4 * _MOST_PROMPTS)
        self._shown: dict[str, str] = {}
        self._overlap: Overlap | None = None
        self._unsettled = False
        self._task: asyncio.Task[None] | None = None

    # -- life --------------------------------------------------------------------------------------------------

    def start(self) -> tuple[int, int, int]:
        """Listens; returns the pull, reply and heartbeat ports.

        Raises:
            OSError: one of the ports cannot be bound.
        """
        settings = self.settings
        loop = asyncio.get_running_loop()
        self.sockets = ControllerSockets(
            self._pushed, self._asked, loop, settings.host, (settings.pull, settings.reply, settings.heartbeat)
        )
        pull, reply, heartbeat = self.sockets.ports
        log.info("Starting pull request handler on %s:%d", settings.host, pull)
        log.info("Starting reply request handler on %s:%d", settings.host, reply)
        log.info("Starting heartbeat request handler on %s:%d", settings.host, heartbeat)
        if not _loopback(settings.host):
            log.warning(
                "The LMCache controller listens on %s: whoever reaches its ports can lie about caches; keep them "
                "inside the cluster",
                settings.host,
            )
        self._task = loop.create_task(self._look())
        return self.sockets.ports

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.sockets is not None:
            self.sockets.close()

    def _heartbeat_url(self, ip: str) -> str:
        """`host:port` of the heartbeat port for a worker at `ip`; LMCache puts the tcp:// before it."""
        port = self.settings.heartbeat if self.sockets is None else self.sockets.ports[2]
        host = self.settings.advertise or self.settings.host
        if host in ("0.0.0.0", "::"):  # noqa: S104  compared, not bound
            host = _address_towards(ip)
        return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"

    # -- messages ----------------------------------------------------------------------------------------------

    def _pushed(self, message: Push, start: int, stop: int) -> None:
        self.instances.take(message, start, stop, self._clock())

    def _asked(self, message: Ask) -> Answer:
        return self.instances.answer(message, self._clock())

    # -- the router's calls ------------------------------------------------------------------------------------

    def prompt(self, tokens: Tokens) -> PromptChunks:
        """A prompt's ids (uint32), for `raised` and `placed`."""
        return PromptChunks(tokens)

    def raised(
        self, prompt: PromptChunks, view: FleetView, device: IntArray, host: IntArray, disk: IntArray
    ) -> tuple[IntArray, IntArray]:
        """`host` and `disk`, blocks of each row beyond `device`, by what the row's LMCache holds in addition."""
        overlap = self._overlap
        if overlap is None or overlap.view is not view:
            overlap = self._overlap = Overlap(view, self.instances.workers.values(), self.bound)
        found = overlap.tokens(prompt, self.index)
        if found is None:
            return host, disk
        in_host, in_any = found
        block = view.scoring_block_size
        host = np.maximum(host, in_host // block - device)
        return host, np.maximum(disk, in_any // block - device - host)

    def placed(self, prompt: PromptChunks, worker: str) -> None:
        """The prompt was sent to `worker`: its chunks should be admitted there soon."""
        if self.instances.workers and len(prompt.tokens):
            seen = SeenPrompt(prompt.tokens[:LEARNT_TOKENS].copy(), worker, self._clock())
            self._prompts.append(seen)
            self._to_judge.append(seen)

    def engine_gone(self, worker: str) -> None:
        """The engine's process has ended: what its LMCache held in memory is gone."""
        for one in self.instances.workers.values():
            if self._of(one.instance) == worker:
                self.instances.emptied(one)

    def _of(self, instance: str) -> str:
        """The id of the worker that it is of, "" if that is not known."""
        bound = self.bound.get(instance)
        return "" if bound is None else bound.worker

    # -- for the admin port ------------------------------------------------------------------------------------

    def state_of(self, worker: str) -> list[dict[str, Any]]:
        """One entry for each LMCache worker of a registered worker."""
        self.settle()
        return [self._entry(one) for one in self.instances.workers.values() if self._of(one.instance) == worker]

    def _entry(self, one: LmWorker) -> dict[str, Any]:
        return entry(one, self.bound[one.instance], self.index, self._clock())

    def shown(self) -> dict[str, Any]:
        self.settle()
        pull, reply, heartbeat = (0, 0, 0) if self.sockets is None else self.sockets.ports
        return {
            "host": self.settings.host,
            "ports": {"pull": pull, "reply": reply, "heartbeat": heartbeat},
            "failed": "" if self.sockets is None else self.sockets.failed,
            "index": {"bytes": self.index.bytes, "limit_bytes": self.index.limit, "refused": self.index.refused},
            "messages": {} if self.sockets is None else dict(self.sockets.counts),
            "counts": dict(self.instances.counts),
            "workers": [self._entry(one) for one in self.instances.workers.values()],
        }

    # -- who is whose ------------------------------------------------------------------------------------------

    def fleet_changed(self) -> None:
        """A worker was added to the fleet or removed, or an LMCache worker. Taken account of within a quarter second,
        once for all that have come till then."""
        self._unsettled = True
        self._overlap = None

    def _forget_overlap(self) -> None:
        self._overlap = None

    def settle(self) -> None:
        """Finds out again which instance is whose, if something has changed."""
        if not self._unsettled:
            return
        self._unsettled = False
        ips = {worker.instance: worker.ip for worker in self.instances.workers.values()}
        for instance in self._shown.keys() - ips.keys():
            del self._shown[instance]
        candidates = [
            Candidate(worker.id, worker.endpoint.host, worker.spec.instances) for worker in self.fleet.workers.values()
        ]
        self._overlap = None
        before, self.bound = self.bound, bind(ips, candidates, self._shown)
        for instance, bound in self.bound.items():
            if bound == before.get(instance):
                continue
            if bound.how is How.AMBIGUOUS:
                log.warning(
                    "LMCache instance %s at %s may be of several workers there; until prompts show which, its keys do "
                    "not count. Give the worker's SPEC instance=%s",
                    instance,
                    ips[instance],
                    instance,
                )
            elif bound.how is How.UNKNOWN:
                log.warning(
                    "LMCache instance %s at %s is of no known worker; until prompts show which, its keys do not "
                    "count. Give the worker's SPEC instance=%s",
                    instance,
                    ips[instance],
                    instance,
                )
            else:
                log.info("LMCache instance %s is of worker %s (by %s)", instance, bound.worker, bound.how)

    # -- how keys are made -------------------------------------------------------------------------------------

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            try:
                now = self._clock()
                self.settle()
                self.instances.look(now)
                self.instances.forget_lost(lambda instance: bool(self._of(instance)), now)
                self._judge(now)
                await self._learn(now)
                while self.index.sweeping:
                    self.index.sweep()
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("the LMCache controller's own look at its state failed")

    async def _learn(self, now: float) -> None:
        """Workers whose hash, or whose engine, is not known: compares their newest keys with the newest prompts, less
        and less often where that shows nothing."""
        while self._prompts and now - self._prompts[0].at > _LEARN_WITHIN:
            self._prompts.popleft()
        if not self._prompts:
            return
        for worker in list(self.instances.workers.values()):
            sure = worker.verified and self._of(worker.instance)
            if sure or not worker.recent or self.instances.workers.get(worker.id) is not worker:
                continue
            if now < worker.next_try:
                continue
            worker.next_try = now + min(_LOOK_EVERY * 2 ** min(worker.tries // 4, 10), _LEARN_WITHIN / 2)
            worker.tries += 1
            prompts = self._prompts_for(worker)
            recent = list(worker.recent)
            if worker.verified:
                self._vote_on(worker, prompts, recent)
                continue
            guesses = [worker.scheme, *(one.scheme for one in self.instances.workers.values() if one.verified)]
            found = await asyncio.to_thread(find_scheme, prompts, recent, guesses, self.settings.chunk_size)
            if found is not None and self.instances.workers.get(worker.id) is worker:
                self._found(worker, found, prompts, recent)

    def _prompts_for(self, worker: LmWorker) -> list[SeenPrompt]:
        bound = self._of(worker.instance)
        mine = [one for one in self._prompts if not bound or one.worker == bound]
        return mine[-_LEARN_FROM:]

    def _found(
        self, worker: LmWorker, found: Found, prompts: list[SeenPrompt], recent: list[tuple[int, float]]
    ) -> None:
        form = found.scheme.form
        shown = f"{form.algorithm} over chunks of {form.chunk_size} tokens"
        if not found.rooted:
            if not worker.warned:
                worker.warned = True
                log.warning(
                    "LMCache worker %s hashes with %s, but its NONE_HASH is not a usual one: give --lmcache-hash %s "
                    "--lmcache-none-hash N, with N from its log line 'Initialized NONE_HASH=N'",
                    worker.id,
                    shown,
                    form.algorithm,
                )
            return
        worker.scheme, worker.verified = found.scheme, True
        self._overlap = None
        self.learnt += 1
        log.info("LMCache worker %s: its chunk keys are understood (%s)", worker.id, shown)
        if not self._of(worker.instance):
            self._vote_on(worker, prompts, recent)

    def _vote_on(self, worker: LmWorker, prompts: list[SeenPrompt], recent: list[tuple[int, float]]) -> None:
        """Of which engine the worker is, if prompts show it: each counts once, if it was sent to one worker only."""
        size = worker.scheme.form.chunk_size
        sent: dict[bytes, list[SeenPrompt]] = {}
        for prompt in prompts:
            sent.setdefault(prompt.tokens[:size].tobytes(), []).append(prompt)
        votes: Counter[str] = Counter()
        for same in sent.values():
            if len({one.worker for one in same}) == 1 and shows(same[0], recent, worker.scheme):
                votes[same[0].worker] += 1
        best, count = votes.most_common(1)[0] if votes else ("", 0)
        if count >= _SURE and count > 2 * (votes.total() - count) and best in self.fleet.workers:
            self._shown[worker.instance] = best
            self.fleet_changed()
            self.settle()

    def _judge(self, now: float) -> None:
        """Whether prompts that were sent a while ago are now known by our own keys, worker by worker."""
        while self._to_judge and now - self._to_judge[0].at >= _JUDGED_AFTER:
            prompt = self._to_judge.popleft()
            chunks = PromptChunks(prompt.tokens)
            for worker in self.instances.workers.values():
                if self._of(worker.instance) != prompt.worker or worker.registered_at > prompt.at:
                    continue
                size = worker.scheme.form.chunk_size
                if len(prompt.tokens) < size:
                    continue
                if self.index.holds(worker.bit, chunks.keys(worker.scheme)[0]):
                    worker.matched += 1
                else:
                    worker.unmatched += 1
                    self._never(worker)

    def _never(self, worker: LmWorker) -> None:
        if worker.hash_state != "never_matches" or worker.warned:
            return
        worker.warned = True
        told = "it has told no keys at all" if not worker.admits else f"it has told {worker.admits} keys"
        log.warning(
            "The chunk keys of LMCache worker %s never match: %d prompts, no hit, and %s. See docs/lmcache.md, "
            "'When it never matches'",
            worker.id,
            worker.unmatched,
            told,
        )


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address_towards(ip: str) -> str:
    """The address of ours from which `ip` is reached; nothing is sent. 127.0.0.1 where there is none."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(ip).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((ip, 9))
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return "127.0.0.1"
