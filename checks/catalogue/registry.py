"""The list of all checks, and how some of them are chosen. Pure; importing it loads every catalogue module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from checks.catalogue import (
    access,
    backends,
    cache_config,
    chunks,
    effect,
    engine_config,
    heartbeats,
    identity,
    llmd,
    lmcache,
    loads,
    metrics_config,
    own,
    own_decisions,
    pipeline,
    plumbing,
    pods,
    pressure,
    probe_effects,
    probes,
    prompts,
    registration,
    routing,
    routing_config,
    routing_errors,
    stacks,
    stores,
    versions,
)
from checks.model import Check

ALL: tuple[Check, ...] = tuple(
    sorted(
        (
            *access.CHECKS,
            *backends.CHECKS,
            *cache_config.CHECKS,
            *chunks.CHECKS,
            *effect.CHECKS,
            *engine_config.CHECKS,
            *heartbeats.CHECKS,
            *identity.CHECKS,
            *llmd.CHECKS,
            *lmcache.CHECKS,
            *loads.CHECKS,
            *metrics_config.CHECKS,
            *own.CHECKS,
            *own_decisions.CHECKS,
            *pipeline.CHECKS,
            *plumbing.CHECKS,
            *pods.CHECKS,
            *pressure.CHECKS,
            *probe_effects.CHECKS,
            *probes.CHECKS,
            *prompts.CHECKS,
            *registration.CHECKS,
            *routing.CHECKS,
            *routing_config.CHECKS,
            *routing_errors.CHECKS,
            *stacks.CHECKS,
            *stores.CHECKS,
            *versions.CHECKS,
        ),
        key=lambda check: check.id,
    )
)
"""Every check, sorted by id; ids are unique and never reused."""


class UnknownCheck(ValueError):
    """A pattern that no check matches. The message names it."""


def ids() -> frozenset[str]:
    return frozenset(check.id for check in ALL)


def by_id(name: str) -> Check:
    """The check of that id, in any case. Raises UnknownCheck."""
    found = next((check for check in ALL if check.id == name.strip().upper()), None)
    if found is None:
        raise UnknownCheck(f"no check is called {name.strip()!r}; `kvctl validate --list-checks` lists them")
    return found


def select(checks: Sequence[Check], include: Iterable[str], skip: Iterable[str]) -> tuple[Check, ...]:
    """The checks whose id matches a pattern of `include` (all if it is empty) and none of `skip`.

    Patterns are globs in any case (`KV2*`, `kv401`); each string may hold several by commas. Raises UnknownCheck for a
    pattern that matches none of `checks`, and where nothing is left.
    """
    wanted, unwanted = _patterns(checks, include), _patterns(checks, skip)
    chosen = tuple(
        check for check in checks if (not wanted or _matches(check, wanted)) and not _matches(check, unwanted)
    )
    if not chosen:
        raise UnknownCheck("no check is left to run: the patterns to skip cover all that were chosen")
    return chosen


def _patterns(checks: Sequence[Check], texts: Iterable[str]) -> tuple[str, ...]:
    found = tuple(part.strip().upper() for text in texts for part in text.split(",") if part.strip())
    for pattern in found:
        if not any(fnmatchcase(check.id, pattern) for check in checks):
            raise UnknownCheck(f"no check matches {pattern}; `kvctl validate --list-checks` lists them")
    return found


def _matches(check: Check, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(check.id, pattern) for pattern in patterns)
