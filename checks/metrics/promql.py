"""The texts of the queries that fill `Metrics` from a Prometheus. Pure.

Two queries for each spelling that exists, value and increase, each for all members at once; ratios are never formed
here. Series are added up over what does not tell them apart for a check, so that an answer stays small.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from checks.metrics.aliases import COMMON_LABELS, Aliases, Spelling
from checks.metrics.scope import INSTANCE, PLACE_LABELS, Scope

SCRAPER_LABELS = ("job", "prometheus", "prometheus_replica")
"""The same page scraped twice differs in one of these: such series must not be added up."""
ANCHORS = (
    "requests_running",
    "kvctl_open_requests",
    "controller_registered_workers",
    "router_healthy_pods",
    "router_incoming_requests",
    "sglang_running_requests",
    "trtllm_requests_running",
    "lmcache_lookup_tokens",
    "mp_lookup_requested_tokens",
    "epp_index_size",
    "epp_requests",
    "llmd_admissions",
    "dynamo_router_requests",
    "dynamo_block_size",
)
"""One name for each kind of program, exported from its start where there is such: who is scraped, and when."""
RESTART_COUNTERS = (
    "prompt_tokens",
    "lmcache_lookup_tokens",
    "kvctl_requests",
    "sglang_prompt_tokens",
    "trtllm_prompt_tokens",
    "router_incoming_requests",
    "epp_requests",
)
"""Counters whose resets tell that the process of a member began anew."""
INTERVAL_SPAN = "5m"
_FIRST_WORD = re.compile(r"[a-z]+")


def places(aliases: Aliases) -> str:
    """Where engines and routers are scraped: one row for each combination of PLACE_LABELS."""
    names = [spelled for name in ANCHORS for spelled in aliases[name].spellings()]
    return f'count by ({", ".join(PLACE_LABELS)}) ({{__name__=~"{"|".join(names)}"}})'


def target_places() -> str:
    """The same of all scrape targets, up or down."""
    return f"count by ({', '.join(PLACE_LABELS)}) (up)"


def present(aliases: Aliases, scope: Scope) -> str:
    """Which names of interest exist in the scope: `__name__` of each."""
    words = sorted({match[0] for name in aliases.by_spelling if (match := _FIRST_WORD.match(name))} - {"process"})
    names = f"({'|'.join(words)})[:_].+|{'|'.join(aliases['process_start'].names)}"
    wanted = f'__name__=~"{names}"'
    return f"count by (__name__) ({scope.selector(wanted)})"


def value(spelled: str, spelling: Spelling, scope: Scope) -> str:
    how = "max" if spelling.alias.type == "info" else "sum"
    return f"{how} by ({_kept(spelling, scope)}) ({spelled}{_selector(spelling, scope)})"


def increase(spelled: str, spelling: Spelling, scope: Scope, window: str) -> str:
    return f"sum by ({_kept(spelling, scope)}) (increase({spelled}{_selector(spelling, scope)}[{window}]))"


def up(scope: Scope) -> str | None:
    """State of the scrape targets; None where the members' labels are not those of targets."""
    if not scope.place or any(label.startswith("exported_") for label in scope.place):
        return None
    return f"max by ({', '.join(dict.fromkeys((*scope.place, 'job', INSTANCE)))}) (up{scope.selector()})"


def ages(names: Iterable[str], scope: Scope) -> str | None:
    """Seconds since the newest sample of each member; None without a name."""
    by = ", ".join(scope.place)
    stamps = [f"max by ({by}) (timestamp({name}{scope.selector()}))" for name in names]
    return f"time() - ({' or '.join(stamps)})" if stamps else None


def restarts(name: str, scope: Scope, window: str) -> str:
    """How often a counter of each member began anew in the window."""
    return f"max by ({', '.join(scope.place)}) (resets({name}{scope.selector()}[{window}]))"


def recent(name: str, scope: Scope, labels: Iterable[str]) -> str:
    """The raw samples of the last minutes of one place: their distance is the scrape interval."""
    return f"{name}{scope.selector(*labels)}[{INTERVAL_SPAN}]"


def spelled_as(canonical: Iterable[str], aliases: Aliases, existing: Container[str]) -> list[str]:
    """The best existing spelling of each name that has one."""
    found = (next((one for one in aliases[name].spellings() if one in existing), None) for name in canonical)
    return [name for name in found if name is not None]


def _kept(spelling: Spelling, scope: Scope) -> str:
    le = ("le",) if spelling.part == "_bucket" else ()
    return ", ".join(dict.fromkeys((*scope.place, *SCRAPER_LABELS, *COMMON_LABELS, *spelling.alias.labels, *le)))


def _selector(spelling: Spelling, scope: Scope) -> str:
    return scope.selector('server=""' if spelling.alias.copied_by_routers else "")
