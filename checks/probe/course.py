"""The probe's requests in their order, one at a time, and what is read around them.

One prompt again and again (P1) beside a control arm of prompts that differ; the same prompt at another engine (P4),
with another end (P5), as a chat (P6); a streamed pair (P7); the prompt once more after LMCache's controller would have
dropped silent workers (P8). Later steps are left out where the budget is spent or the load has grown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from checks.controller import reaping
from checks.metrics.view import Metrics
from checks.model import Reason
from checks.probe.ask import CHAT, Asker, Sent
from checks.probe.attribution import external_hits, moved, named, routes
from checks.probe.load import Load
from checks.probe.options import Endpoint, ProbeOptions
from checks.probe.plan import TIMED_TOKENS, Plan
from checks.probe.post import Target
from checks.probe.prompts import SAMPLE_CHARACTERS, SUFFIX_TOKENS, Scale, filler, first_line, prompt, with_suffix
from checks.probe.stored import Storing
from checks.probe.watch import Readings, Watch
from checks.sharing import shares_l2
from checks.snapshot import Member, Snapshot

MORE_CONTROL = 3
"""Prompts that differ, sent where all went to one worker so far."""
MEASURED_WORKERS = 16
"""With more workers their pages are not read around each request."""
LOAD_WORKERS = 64
"""With more workers the load is that of the collection."""
FAILURES = 3
"""In a row; then the probe stops."""
LOOK_AGAIN_S = 0.5
LOOKS = 4
"""For a counter or a log line that comes a moment after the answer."""
FLUSH_LOOKS = 26
"""LMCache writes its counters every 10 s."""
EXPIRY_MARGIN_S = 15.0
TIMED_PAUSE_S = 2.0
"""Between a streamed prompt and its repeat, for the router to learn of it."""
_BUSY = frozenset({429, 503, 529})


class Stop(Exception):
    """The probe ends here; the message says why, in one line."""


@dataclass(slots=True)
class Course:
    """One run. What was sent and seen so far is there at any time, also after Ctrl-C."""

    snapshot: Snapshot
    options: ProbeOptions
    asker: Asker
    watch: Watch
    plan: Plan
    target: Target
    endpoint: Endpoint
    load: Load
    sleep: Callable[[float], None]
    direct: Callable[[Member], Target | None]
    """How one worker is reached without the router; None if it cannot be."""
    sent: list[Sent] = field(default_factory=list)
    grown: dict[str, Metrics] = field(default_factory=dict)
    """By request id: what the workers' counters grew by around it."""
    notes: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    registered: list[float | None] = field(default_factory=list)
    """Registered workers before and after the wait of P8."""
    external: float | None = None
    _known_as: dict[str, str] = field(default_factory=dict)
    """Member key by the name that a router has for it, learnt from counters."""
    _urls: dict[str, str] = field(default_factory=dict)
    """By request id, where a router's log says that it went."""
    _scale: Scale = field(default_factory=Scale)
    _failures: int = 0

    def run(self) -> None:
        """Raises Stop where it cannot go on."""
        self._size()
        self._same_prompt()
        for step in (self._other_instance, self._shared_prefix, self._chat, self._timed, self._expiry):
            self._still_quiet()
            step()

    @property
    def workers(self) -> tuple[Member, ...]:
        return self.plan.workers

    @property
    def cold(self) -> Sent | None:
        return next((one for one in self.sent if one.name == "cold" and one.reply.ok), None)

    def served(self, sent: Sent) -> tuple[str, str]:
        """Who served a request, and how that is known; ('', '') where nothing tells.

        A name that fits no known worker stands for itself.
        """
        if sent.direct and sent.target.member is not None:
            return sent.target.member.key, "direct"
        told = sent.reply.worker_header[1] or sent.reply.worker
        if told:
            return named(self.workers, told) or self._known_as.get(told, told), "header"
        if url := self._urls.get(sent.request_id):
            return named(self.workers, url) or url, "router-log"
        if (grown := self.grown.get(sent.request_id)) and (key := moved(grown, self.workers)):
            return key, "metric"
        return "", ""

    def find_routes(self, wanted: Sequence[Sent]) -> None:
        """Looks the requests up in the routers' logs; waits a little for lines that come late."""
        for look in range(LOOKS):
            untold = [one for one in wanted if one.reply.ok and not (one.reply.worker_header[1] or one.reply.worker)]
            missing = [one.request_id for one in untold if one.request_id not in self._urls and not one.direct]
            if not missing:
                return
            logs = [log for router in self.snapshot.routers if (log := self.watch.log(router)) is not None]
            if not logs:
                return
            for log in logs:
                self._urls.update({key: route.url for key, route in routes(log, missing).items()})
            if look + 1 < LOOKS:
                self.sleep(LOOK_AGAIN_S)

    # -- the steps -----------------------------------------------------------------------------------------------

    def _size(self) -> None:
        """A short prompt, which shows that requests are answered and how long a token is."""
        text = first_line(self.asker.nonce("size")) + filler(SAMPLE_CHARACTERS)
        sent = self._send("size", text, SAMPLE_CHARACTERS // 2)
        self._needed(sent)
        self._scale = Scale.of(text, sent.reply.prompt_tokens)

    def _same_prompt(self) -> None:
        plan = self.plan
        text = prompt(self.asker.nonce("same"), plan.tokens, self._scale)
        storing = Storing(
            self.watch,
            [*self.snapshot.routers, *self._measured],
            self._measured,
            any(self.snapshot.lmcache_active(worker) for worker in self.workers),
            self.sleep,
        )
        before = self.watch.pages(storing.members)
        cold = self._send("cold", text, plan.tokens)
        self._needed(cold)
        told = cold.reply.prompt_tokens
        if told is not None and told < plan.least:
            raise Stop(f"the prompt has {told} tokens and fills no two pieces of {plan.unit}; please report this")
        self.notes.append(storing.wait(before, cold))
        for _ in range(plan.repeats):
            self._send("repeat", text, plan.tokens)
        for number in range(plan.repeats + MORE_CONTROL):
            if number >= plan.repeats and not (self._all_together() and self.asker.budget.allows(1, plan.tokens)):
                break
            self._send("control", prompt(self.asker.nonce(f"control {number}"), plan.tokens, self._scale), plan.tokens)

    def _other_instance(self) -> None:
        """P4: the same prompt straight to an engine that has not served it."""
        sharing = [worker for worker in self.workers if shares_l2(self.snapshot, worker)]
        if len(sharing) < 2:
            self.skipped["other-instance"] = "no two workers share a second tier"
            return
        knowing = [self.served(one)[0] for one in self.sent if one.name in ("cold", "repeat") and one.reply.ok]
        if "" in knowing:
            self.skipped["other-instance"] = "it is not known who served the prompt"
            return
        fresh = [(worker, where) for worker in sharing if worker.key not in knowing and (where := self.direct(worker))]
        if not fresh:
            self.skipped["other-instance"] = "every worker that can be reached has served the prompt already"
            return
        if not self._may("other-instance", 1, self.plan.tokens):
            return
        worker, where = fresh[0]
        before = self.watch.pages([worker])
        sent = self._send("other-instance", self._prompt, self.plan.tokens, target=where, direct=True)
        if not sent.reply.ok:
            return
        for look in range(FLUSH_LOOKS):
            grown = self.watch.between(before, self.watch.pages([worker]))
            self.external = external_hits(self.watch.log(worker), grown, worker, sent.request_id)
            if self.external or (self.external is not None and look >= LOOKS and not self._counts_late(grown, worker)):
                return
            if look + 1 < FLUSH_LOOKS:
                self.sleep(LOOK_AGAIN_S)

    def _shared_prefix(self) -> None:
        if self._may("suffix", 1, self.plan.tokens + SUFFIX_TOKENS):
            text = with_suffix(self._prompt, self._scale)
            self._send("suffix", text, self.plan.tokens + SUFFIX_TOKENS)

    def _chat(self) -> None:
        if self.endpoint.chat or self.endpoint.path != "/v1/completions":
            self.skipped["chat"] = f"the probe was asked to send to {self.endpoint.path}"
        elif self._may("chat", 2, self.plan.tokens + SUFFIX_TOKENS):
            chat = Endpoint(self.endpoint.base, CHAT)
            for _ in range(2):
                sent = self._send("chat", self._prompt, self.plan.tokens + SUFFIX_TOKENS, endpoint=chat)
                if not sent.reply.ok:
                    self._failures = 0  # a base model has no chat template
                    return
                self.sleep(LOOK_AGAIN_S)

    def _timed(self) -> None:
        tokens = max(self.plan.tokens, TIMED_TOKENS)
        tokens = tokens if self.plan.longest is None else min(tokens, self.plan.longest)
        if not self.asker.budget.allows(2, tokens):
            tokens = self.plan.tokens
        if self._may("stream-cold", 2, tokens):
            text = prompt(self.asker.nonce("timed"), tokens, self._scale)
            cold = self._send("stream-cold", text, tokens, stream=True)
            if not cold.reply.ok:
                return
            self.sleep(TIMED_PAUSE_S)
            warm = self._send("stream-warm", text, tokens, stream=True)
            slower = (warm.reply.ttft_s or 0.0) >= (cold.reply.ttft_s or 0.0)
            if warm.reply.ok and slower and self.asker.budget.allows(1, tokens):
                self._send("stream-warm", text, tokens, stream=True)

    def _expiry(self) -> None:
        if not self.options.heartbeat:
            self.skipped["expiry"] = "asked for with --probe-heartbeat"
            return
        if not self._may("expiry", 1, self.plan.tokens):
            return
        waits = [reaping(self.snapshot, router).timeout for router in self.snapshot.routers]
        seconds = max(waits, default=30.0) + EXPIRY_MARGIN_S
        self.registered.append(self._registered())
        self.asker.tell(f"waiting {seconds:.0f} s for silent workers to be dropped", 0, 0)
        self.sleep(seconds)
        self._send("expiry", self._prompt, self.plan.tokens)
        self.registered.append(self._registered())

    def _all_together(self) -> bool:
        """All repeats and all of the control arm went to one worker; some more may tell chance from habit."""
        self.find_routes(self.sent)
        served = {self.served(one)[0] for one in self.sent if one.name in ("cold", "repeat", "control")}
        return len(served) == 1 and "" not in served and len(self.workers) != 1

    # -- their parts ---------------------------------------------------------------------------------------------

    @property
    def _prompt(self) -> str:
        """The prompt of P1."""
        cold = self.cold
        assert cold is not None
        return cold.prompt

    @property
    def _measured(self) -> tuple[Member, ...]:
        """Workers whose pages are read around requests."""
        return self.workers if len(self.workers) <= MEASURED_WORKERS else ()

    def _send(
        self,
        name: str,
        text: str,
        tokens: int,
        *,
        target: Target | None = None,
        endpoint: Endpoint | None = None,
        stream: bool = False,
        direct: bool = False,
    ) -> Sent:
        """One request with the pages around it where they are needed. Raises Stop."""
        deadline = self.watch.deadline
        if deadline.left() <= 0:
            raise Stop(deadline.why)
        if not self.asker.budget.allows(1, tokens):
            raise Stop(f"the budget is spent after {len(self.sent)} requests")
        measure = self._measured if self._needs_counters() else ()
        before = self.watch.pages(measure) if measure else {}
        sent = self.asker.send(
            name, text, tokens, target or self.target, endpoint or self.endpoint, stream=stream, direct=direct
        )
        self.sent.append(sent)
        if measure and sent.reply.ok:
            self._measure(sent, before, measure)
        self._judge(sent)
        return sent

    def _measure(self, sent: Sent, before: Readings, measure: Sequence[Member]) -> None:
        for look in range(LOOKS):
            grown = self.watch.between(before, self.watch.pages(measure))
            self.grown[sent.request_id] = grown
            key = moved(grown, measure)
            if key:
                told = sent.reply.worker_header[1] or sent.reply.worker
                if told and not sent.direct and not named(self.workers, told):
                    self._known_as.setdefault(told, key)
                return
            if look + 1 < LOOKS:
                self.sleep(LOOK_AGAIN_S)

    def _needs_counters(self) -> bool:
        """The answers so far did not tell by themselves who served them and what came from a cache."""
        router = [one.reply for one in self.sent if not one.direct and one.reply.ok]
        if not router or router[-1].cached_tokens is None:
            return True
        told = router[-1].worker_header[1] or router[-1].worker
        if not told:
            return True
        by_name = bool(named(self.workers, told))
        return not by_name and len(set(self._known_as.values())) < len(self.workers)

    def _judge(self, sent: Sent) -> None:
        """Stops where requests fail."""
        reply = sent.reply
        if reply.ok:
            self._failures = 0
            return
        self._failures += 1
        if reply.reason is Reason.TIMEOUT:
            raise Stop(f"request {sent.name}: {reply.error}")
        if reply.status in _BUSY:
            raise Stop(f"the router is busy: {reply.error}")
        if self._failures >= FAILURES:
            raise Stop(f"{FAILURES} requests in a row failed: {reply.error}")

    def _needed(self, sent: Sent) -> None:
        if not sent.reply.ok:
            raise Stop(f"{self.target}{self.endpoint.path}: {sent.reply.error}")

    def _may(self, name: str, requests: int, tokens: int) -> bool:
        """The budget has room for a step; else says so."""
        if self.asker.budget.allows(requests, tokens):
            return True
        self.skipped[name] = "the budget of requests or tokens is spent"
        return False

    def _still_quiet(self) -> None:
        if self.options.force or len(self.workers) > LOAD_WORKERS:
            return
        pages = self.watch.pages(self.workers)
        if worse := Load.of(self.watch.between(pages, pages), self.workers).worse_than(self.load):
            raise Stop(f"the load has grown: {worse}")

    def _registered(self) -> float | None:
        pages = self.watch.pages(self.snapshot.routers)
        return self.watch.between(pages, pages).now("controller_registered_workers").value

    def _counts_late(self, grown: Metrics, worker: Member) -> bool:
        """Only LMCache's counters tell, which move every 10 s."""
        return not grown.find("external_prefix_cache_hits", worker.key)
