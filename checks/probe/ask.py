"""Sends the probe's requests, one at a time, by way of the tape; counts what they cost.

A recorded probe is replayed by asking the same things in the same order: the run's id, which makes request ids and
prompts, stands in the recording too. Prompts are never stored.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from checks.model import Reason, Stack
from checks.probe.options import Budget, Endpoint, ProbeOptions
from checks.probe.post import Post, Target
from checks.probe.prompts import body
from checks.probe.reply import Reply
from checks.sources.tape import Answer, Tape

NOT_RECORDED = "not in the recording"
CHAT = "/v1/chat/completions"


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording keeps of how a probe was started."""

    run: str
    endpoint: str = ""
    requests: int
    tokens: int
    yes: bool = False
    force: bool = False
    heartbeat: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """One request and what came of it."""

    name: str
    request_id: str
    prompt: str = field(repr=False)
    reply: Reply
    target: Target
    direct: bool = False
    """Sent to that member itself, not to the router."""


def begin(tape: Tape, options: ProbeOptions | None) -> tuple[str, ProbeOptions] | None:
    """The id of this run and its options; of a replay those of the recorded run. None where no probe is to be made."""
    if options is None and not tape.replaying:
        return None
    begun = None
    if options is not None:
        begun = Begun(
            run=secrets.token_hex(4),
            endpoint=options.endpoint,
            requests=options.requests,
            tokens=options.tokens,
            yes=options.yes,
            force=options.force,
            heartbeat=options.heartbeat,
        )
    text = "" if begun is None else msgspec.json.encode(begun).decode()
    answer = tape.ask("probe", "begin", lambda: Answer(200, text))
    if not answer.ok:
        return None
    try:
        kept = msgspec.json.decode(answer.text, type=Begun)
        told = {name: getattr(kept, name) for name in ("endpoint", "requests", "tokens", "yes", "force", "heartbeat")}
        return kept.run, replace(options or ProbeOptions(), **told)
    except (msgspec.DecodeError, ValueError):
        return None


@dataclass(slots=True)
class Asker:
    """All requests of one run."""

    run: str
    tape: Tape
    post: Post
    options: ProbeOptions
    budget: Budget
    model: str
    stack: Stack
    tell: Callable[[str, int, int], None] = lambda stage, done, total: None
    numbers: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def nonce(self, name: str) -> str:
        """The random part of one prompt: 32 hexadecimal digits, the same in a replay."""
        return hashlib.blake2b(f"{self.run} {name}".encode(), digest_size=16).hexdigest()

    def send(
        self,
        name: str,
        text: str,
        tokens: int,
        target: Target,
        endpoint: Endpoint,
        *,
        stream: bool = False,
        direct: bool = False,
    ) -> Sent:
        """Sends one prompt of about `tokens` tokens. The caller has made sure that the budget allows it."""
        number = self.numbers[name] = self.numbers.get(name, 0) + 1
        request_id = f"kvctl-{self.run}-{name}-{number:02d}"
        self.count += 1
        self.tell("probe", self.count, self.options.requests)
        asked: dict[str, Any] = body(self.model, text, chat=endpoint.chat, stream=stream)
        if self.stack is Stack.DYNAMO:
            asked["nvext"] = {"extra_fields": ["worker_id"]}
        headers = {"X-Request-Id": request_id}
        if self.options.api_key:
            headers["Authorization"] = f"Bearer {self.options.api_key}"

        def fetch() -> Answer:
            reply = self.post(target, endpoint.path, asked, headers, self.options.timeout_s)
            text = msgspec.json.encode(reply).decode()
            return Answer(reply.status, text, reply.reason, reply.error, reply.sent_at + reply.total_s)

        self.budget.spend(tokens)
        answer = self.tape.ask("probe", f"{name} {number}", fetch)
        reply = _reply(answer)
        self.budget.correct(tokens, reply.prompt_tokens)
        return Sent(name, request_id, text, reply, target, direct)


def _reply(answer: Answer) -> Reply:
    if not answer.text:
        return Reply(status=answer.status, error=answer.message or NOT_RECORDED, reason=answer.error or Reason.NO_DATA)
    try:
        return msgspec.json.decode(answer.text, type=Reply)
    except msgspec.DecodeError as error:
        return Reply(error=f"the recorded answer cannot be read: {error}"[:200], reason=Reason.PARSE)
