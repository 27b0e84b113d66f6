"""One check in words, for `--explain`, `--list-checks` and its page in docs/checks. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from checks.metrics.queries import expressions
from checks.model import Check, Group
from checks.report.shape import page

WHY = {
    Group.ACCESS: "What cannot be seen cannot be judged, and a router without workers, or workers without a router, "
    "have nothing to route.",
    Group.CONFIGURATION: "Most systems whose cache is never hit were configured so: a flag, a port or a version that "
    "does not go with the others. Requests succeed all the same, so nothing else tells.",
    Group.REGISTRATION: "A router that asks a controller for the holder of a prefix knows only workers that "
    "registered and are still registered. All others are never chosen for their cache.",
    Group.LMCACHE: "An engine whose LMCache did not start, or lost its backend, goes on serving and computes every "
    "prompt again. Only its log tells.",
    Group.IDENTITY: "A cached chunk is found by a hash. If two processes hash the same tokens differently, no lookup "
    "ever hits, without any error.",
    Group.ROUTING: "The router's own decisions show whether the cache chose the worker, or a fallback did.",
    Group.EFFECT: "Routing by cache is worth what the engines then need not compute. The counters of engine and "
    "LMCache tell how much that is.",
    Group.METRICS: "Numbers that are missing, stale or renamed look like a cache that is never hit. These checks say "
    "whether the others can be believed.",
    Group.PROBE: "Real traffic may not repeat itself, so its numbers can be low although all is well. Requests that "
    "are known to share a prefix settle it.",
    Group.OTHER_STACKS: "Other routers tell of their cache in metrics and logs of their own.",
}
"""Why a section's checks matter, a paragraph each."""


def stacks(check: Check) -> str:
    return "all" if check.stacks is None else ", ".join(sorted(check.stacks))


def explains(check: Check, among: Iterable[Check]) -> list[str]:
    """Ids of the checks whose failure this one explains."""
    return [one.id for one in among if check.id in one.caused_by]


def in_order(checks: Iterable[Check]) -> list[Check]:
    """By section, then id."""
    sections = list(Group)
    return sorted(checks, key=lambda check: (sections.index(check.group), check.id))


def parts(check: Check, among: Iterable[Check], namespace: str = "prod") -> list[tuple[str, str]]:
    """Headings and their text, in order; paragraphs are separated by empty lines. `namespace` is that of examples."""
    found = [
        ("Why it matters", WHY[check.group]),
        ("What it reads", _sentence(check.reads)),
        ("When it passes, warns or fails", _sentence(check.rule.replace("{namespace}", namespace))),
        ("What to do", _sentence(check.hint)),
    ]
    related = []
    if check.caused_by:
        related.append(
            f"A failure of {', '.join(check.caused_by)} explains one of this check and is shown in its place."
        )
    if below := explains(check, among):
        related.append(f"Its own failure explains one of {', '.join(below)}.")
    if related:
        found.append(("Related checks", " ".join(related)))
    return [(heading, text) for heading, text in found if text]


def row(check: Check) -> dict[str, Any]:
    """A check as JSON types."""
    return {
        "id": check.id,
        "title": check.title,
        "group": str(check.group),
        "worst": str(check.worst),
        "stacks": None if check.stacks is None else sorted(str(one) for one in check.stacks),
        "reads": check.reads,
        "rule": check.rule,
        "hint": check.hint,
        "caused_by": list(check.caused_by),
        "promql": {one.title: one.promql for one in expressions(check.id)},
        "required": check.required,
        "proves": check.proves,
        "needs_probe": check.needs_probe,
        "docs": page(check.id),
    }


def _sentence(text: str) -> str:
    """With a capital and, unless it ends in a file, a full stop."""
    text = text.strip()
    if not text:
        return ""
    first = text.split(None, 1)[0]
    text = text[0].upper() + text[1:] if first.isalpha() and first.islower() else text
    return text if "\n" in text or text.endswith(".") else text + "."
