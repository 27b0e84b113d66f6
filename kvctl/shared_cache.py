"""`--shared-cache`: what the router is told of the store that all engines share. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvctl.errors import Problem

if TYPE_CHECKING:
    from router.shared.lookup import LookupSettings

EVENTS = "events"


def lookup_of(text: str | None, timeout: float) -> LookupSettings | None:
    """How to ask the Redis that `text` names; None for `events` and for no store at all.

    Raises:
        Problem: `text` is neither, or redis-py is not installed.
    """
    from router.redis_url import REDIS_MISSING, RedisUrl, redis_installed
    from router.shared.lookup import LookupSettings

    if text is None or text == EVENTS:
        return None
    try:
        settings = LookupSettings(RedisUrl(text), timeout=timeout)
    except ValueError as error:
        raise Problem(f"--shared-cache: {error}; or events, to learn from the engines' KV events alone") from None
    if not redis_installed():
        raise Problem(f"--shared-cache: {REDIS_MISSING}")
    return settings
