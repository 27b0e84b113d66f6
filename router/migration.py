"""Whether a stream that breaks goes on at another worker, and with what: the routing side of `router.proxy.migration`.

Touches nothing but the request it is given; asks the model's tokenizer, or an engine's `/detokenize`, where the engine
sent several tokens in one event or keeps text back for stop strings. Cost: one more look at the body a streamed
request, and nothing for others.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable
from dataclasses import replace
from typing import Protocol

import numpy as np

from router.legs import RoutedLeg
from router.migration_body import Followed, asking_for_ids, followed, going_on, salt_in
from router.migration_settings import MigrationSettings
from router.model import Migrated, RouteRequest, RoutingError
from router.model_tokens import ModelTokens
from router.proxy.errors import error_answer
from router.proxy.interface import Answer, Inbound, Leg, Outcome
from router.proxy.migration import Carry
from router.tokens.body import Body, Kind

log = logging.getLogger("kvctl.migration")

_TARGET = b"/v1/completions"
_LONGEST_CHARACTER = 8
"""Tokens at the end of an answer that may be an unfinished character, at most."""
_WINDOW = 32


class Placer(Protocol):
    """What a stream that goes on needs of the dispatcher."""

    looks_up: bool
    """Whether a shared store is asked for the prompt's blocks."""

    def may_retry(self, outcome: Outcome) -> bool:
        """Whether the retry budget allows one more leg; if so it is counted."""
        ...

    def context(self, model: str) -> int | None:
        """Tokens that every worker with `model` can hold; None if nobody has said."""
        ...

    def read(self, request: RouteRequest, body: Body, mode: str) -> None:
        """Take the ids of `body` into the request, as far as the mode looks at them. Raises RoutingError."""
        ...

    async def look_up(self, request: RouteRequest, body: Body) -> None: ...

    def again(self, inbound: Inbound, request: RouteRequest, mode: str) -> Leg | Awaitable[Answer | Leg]:
        """Place the request, or let it wait. Raises RoutingError."""
        ...


class Migrations:
    """Counts are by outcome: `moved`, `restarted` (nothing had been sent), `completed` (only the end was missing) or
    why it was not to be; and, for streams that are not followed, by what speaks against it."""

    def __init__(self, settings: MigrationSettings, tokens: ModelTokens) -> None:
        self.settings = settings
        self._tokens = tokens
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.unfollowed: defaultdict[str, int] = defaultdict(int)
        self.followed = 0
        self.carried_tokens = 0

    def follow(self, inbound: Inbound, request: RouteRequest, body: Body) -> None:
        """A request for a stream was read, and is about to be placed: see that it can go on elsewhere."""
        if body.kind not in (Kind.COMPLETIONS, Kind.CHAT):
            found: Followed | str = "api"
        elif request.pin_worker is not None:
            found = "pinned"
        else:
            found = followed(inbound.body, body)
        if isinstance(found, str):
            self.unfollowed[found] += 1
            request.unfollowed = found
            return
        self.followed += 1
        if not found.asked:
            inbound.body = asking_for_ids(inbound.body, found.said)
        inbound.carry = Carry(
            raw=inbound.body,
            chat=body.kind is Kind.CHAT,
            strip=not found.asked,
            limit_bytes=self.settings.buffer_bytes,
            include_usage=body.include_usage,
            stops=found.stops,
            include_stop=found.include_stop,
        )

    def go_on(
        self, placer: Placer, inbound: Inbound, failed: RoutedLeg, outcome: Outcome
    ) -> Answer | Leg | Awaitable[Answer | Leg]:
        """Another leg for a stream that broke at `failed`, or a word that there is none."""
        carry, request = inbound.carry, failed.request
        assert carry is not None
        request.tried = request.tried | {failed.worker.id}
        why = carry.why if carry.why else "limit" if self._spent(carry) else ""
        if not why and not placer.may_retry(outcome):
            why = "retry_budget"
        if why:
            return self._over(failed, outcome, why)
        if carry.moving or not carry.begun:
            carry.move()
            return self._placed(placer, inbound, request, failed, outcome)
        if carry.needs_text or placer.looks_up:
            return self._later(placer, inbound, failed, outcome)
        return self._move(placer, inbound, failed, outcome)

    def _spent(self, carry: Carry) -> bool:
        return not carry.moving and carry.moves >= self.settings.limit

    async def _later(self, placer: Placer, inbound: Inbound, failed: RoutedLeg, outcome: Outcome) -> Answer | Leg:
        carry = inbound.carry
        assert carry is not None
        if carry.needs_text:
            await self._settle(carry, failed.request.model)
            if carry.why:
                return self._over(failed, outcome, carry.why)
        request = self._prepare(placer, inbound, failed, outcome)
        if isinstance(request, Answer):
            return request
        if placer.looks_up:
            await placer.look_up(request, self._body(carry, request))
        placed = self._placed(placer, inbound, request, failed, outcome)
        return await placed if isinstance(placed, Awaitable) else placed

    def _move(
        self, placer: Placer, inbound: Inbound, failed: RoutedLeg, outcome: Outcome
    ) -> Answer | Leg | Awaitable[Answer | Leg]:
        request = self._prepare(placer, inbound, failed, outcome)
        if isinstance(request, Answer):
            return request
        return self._placed(placer, inbound, request, failed, outcome)

    def _prepare(self, placer: Placer, inbound: Inbound, failed: RoutedLeg, outcome: Outcome) -> RouteRequest | Answer:
        """From here on the request is one for the rest of the stream."""
        carry, old = inbound.carry, failed.request
        assert carry is not None and carry.prompt is not None
        sent = carry.ids[: carry.clean]
        context = placer.context(old.model)
        room = None if context is None else context - len(carry.prompt) - len(sent)
        new = going_on(carry.raw, chat=carry.chat, prompt=carry.prompt, sent=sent, room=room)
        if new is None:
            return self._over(failed, outcome, "nothing_left")
        _path, mark, query = inbound.target.partition(b"?")
        inbound.target, inbound.body = _TARGET + mark + query, new
        carry.move()
        hints = old.hints
        if hints.osl is not None:
            hints = replace(hints, osl=max(hints.osl - len(sent), 1))
        migration = Migrated(failed.worker.id, failed.decision.id, str(outcome), len(sent), failed.first_at)
        request = RouteRequest(
            id=old.id,
            model=old.model,
            pin_rank=None,
            tried=old.tried,
            hints=hints,
            weights=old.weights,
            migration=migration,
        )
        try:
            placer.read(request, self._body(carry, request), failed.decision.mode)
        except RoutingError as error:
            return self._over(failed, outcome, error.code)
        return request

    @staticmethod
    def _body(carry: Carry, request: RouteRequest) -> Body:
        """What the extended prompt is to routing."""
        assert carry.prompt is not None
        ids = np.array(carry.prompt + carry.ids, np.uint32)
        return Body(Kind.COMPLETIONS, request.model, 0, ids=ids, cache_salt=salt_in(carry.raw))

    def _placed(
        self, placer: Placer, inbound: Inbound, request: RouteRequest, failed: RoutedLeg, outcome: Outcome
    ) -> Answer | Leg | Awaitable[Answer | Leg]:
        try:
            placed = placer.again(inbound, request, failed.decision.mode)
        except RoutingError as error:
            return self._over(failed, outcome, error.code)
        if isinstance(placed, Awaitable):
            return self._queued(placed, inbound, failed, outcome)
        return self._went(placed, inbound, failed, outcome)

    async def _queued(
        self, waiting: Awaitable[Answer | Leg], inbound: Inbound, failed: RoutedLeg, outcome: Outcome
    ) -> Answer | Leg:
        placed = await waiting
        if isinstance(placed, Answer):
            return self._over(failed, outcome, placed.code or "queue")
        return self._went(placed, inbound, failed, outcome)

    def _went(self, leg: Leg, inbound: Inbound, failed: RoutedLeg, outcome: Outcome) -> Leg:
        assert isinstance(leg, RoutedLeg) and inbound.carry is not None
        sent = inbound.carry.clean
        failed.decision.went_on = leg.decision.id
        self.outcomes["moved" if inbound.carry.begun else "restarted"] += 1
        self.carried_tokens += sent
        log.info(
            "Request %s: its stream broke at worker %s (%s) and goes on at %s behind %d tokens",
            failed.request.id,
            failed.worker.id,
            outcome,
            leg.worker.id,
            sent,
        )
        return leg

    def _over(self, failed: RoutedLeg, outcome: Outcome, why: str) -> Answer:
        """Nobody goes on. The answer is for nobody: the client has the beginning of another."""
        self.outcomes[why] += 1
        what = f"Request {failed.request.id}: its stream broke at worker {failed.worker.id} ({outcome})"
        log.warning("%s and does not go on: %s", what, why)
        return error_answer(502, what, why)

    def broke_unfollowed(self, leg: RoutedLeg, outcome: Outcome) -> None:
        """A stream broke that could not have gone on, for what it asked."""
        self._over(leg, outcome, leg.request.unfollowed)

    async def _settle(self, carry: Carry, model: str) -> None:
        """Finds out how much of the text of the tokens the client has. Sets `carry.why` where that cannot be known."""
        last = len(carry.ids) if carry.stops else carry.clean
        for count in range(last, max(last - _LONGEST_CHARACTER, 0), -1):
            ids = carry.ids[:count] if carry.compares else carry.ids[max(count - _WINDOW, 0) : count]
            found = self._tokens.text(model, ids.tolist())
            text = await found if isinstance(found, Awaitable) else found
            if text is None:
                carry.why = "no_detokenizer"
            elif carry.settle(count, text):
                return
            if carry.why:
                return
        carry.why = "text_differs"
