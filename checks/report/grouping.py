"""Results as lines of a report for people: one check and state a line, however many targets share it. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from checks.model import Group, Reason, Result, Status, Target
from checks.verdict import Severity, counts, severity

_NAMED = 3
_PLURALS = {"Pod": "pods", "Process": "processes", "Service": "services"}
_ORDER = (Status.FAIL, Status.ERROR, Status.WARN, Status.PASS, Status.SKIP)
_SEVERITIES = tuple(Severity)


@dataclass(frozen=True, slots=True)
class Line:
    """All results of one check that share their state."""

    id: str
    title: str
    group: Group
    status: Status
    results: tuple[Result, ...]
    of: int
    """How many targets of the same kinds the check looked at."""
    suppressed: bool = False
    caused_by: str = ""

    @property
    def hints(self) -> list[str]:
        return list(dict.fromkeys(one.hint for one in self.results if one.hint))

    def messages(self) -> list[tuple[str, list[Target]]]:
        """Different messages, most frequent first, with who they are about."""
        found: dict[str, list[Target]] = defaultdict(list)
        for one in self.results:
            found[one.message].append(one.target)
        return sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))

    def share(self) -> str:
        """`12 of 50 pods`; '' for a single target that is all there is."""
        targets = {one.target for one in self.results}
        if len(targets) == 1 and self.of <= 1:
            return ""
        kinds = {target.kind for target in targets}
        noun = _PLURALS.get(next(iter(kinds)), "targets") if len(kinds) == 1 else "targets"
        return f"all {self.of} {noun}" if len(targets) == self.of else f"{len(targets)} of {self.of} {noun}"


def lines(results: Iterable[Result]) -> list[Line]:
    """One line for each check and state (and each cause it is folded under), by section, then id, the worst first."""
    grouped: dict[tuple[str, Status, bool, str], list[Result]] = defaultdict(list)
    looked_at: dict[tuple[str, str], set[Target]] = defaultdict(set)
    for one in results:
        grouped[one.id, one.status, one.suppressed, one.caused_by].append(one)
        if one.status is not Status.SKIP:
            looked_at[one.id, one.target.kind].add(one.target)
    found = []
    for (check, status, suppressed, cause), members in grouped.items():
        kinds = {one.target.kind for one in members}
        mine = {one.target for one in members}
        of = len(mine.union(*(looked_at[check, kind] for kind in kinds)))
        first = members[0]
        found.append(Line(check, first.title, first.group, status, tuple(members), of, suppressed, cause))
    groups = list(Group)
    return sorted(found, key=lambda one: (groups.index(one.group), one.id, _ORDER.index(one.status), one.suppressed))


def consequences(listed: Iterable[Line]) -> dict[str, list[str]]:
    """What is folded under each cause: `KV203 (12)`."""
    folded: dict[str, Counter[str]] = defaultdict(Counter)
    for one in listed:
        if one.caused_by:
            folded[one.caused_by][one.id] += len(one.results)
    return {
        cause: [check + (f" ({count})" if count > 1 else "") for check, count in sorted(counted.items())]
        for cause, counted in folded.items()
    }


def skips(listed: Iterable[Line]) -> dict[Reason | None, list[str]]:
    """Ids of the checks that were skipped for each reason, most frequent reason first."""
    found: dict[Reason | None, dict[str, None]] = defaultdict(dict)
    for one in listed:
        if one.status is Status.SKIP:
            for result in one.results:
                found[result.reason][one.id] = None
    ranked = sorted(found.items(), key=lambda item: (-len(item[1]), str(item[0])))
    return {reason: list(checks) for reason, checks in ranked}


def at_least(results: Iterable[Result], least: Severity) -> tuple[Result, ...]:
    """Results of that severity or worse; errors always stay."""
    limit = _SEVERITIES.index(least)
    return tuple(one for one in results if _SEVERITIES.index(severity(one)) <= limit or one.status is Status.ERROR)


def names(targets: list[Target], home: str) -> str:
    """`w-0, w-1, w-2.other and 9 more`, with namespaces other than `home`; '' for the fleet."""
    places = sorted({target.place for target in targets if target.kind != "Fleet"})
    shown = [one.name if one.namespace in ("", home) else f"{one.name}.{one.namespace}" for one in places]
    if len(shown) <= _NAMED:
        return ", ".join(shown)
    return f"{', '.join(shown[:_NAMED])} and {len(shown) - _NAMED} more"


def shown_counts(results: Iterable[Result]) -> dict[str, int]:
    """How many results there are of each state that counts, and how many are suppressed or folded."""
    listed = list(results)
    found = {str(status): sum(1 for one in listed if one.status is status and counts(one)) for status in Status}
    found["suppressed"] = sum(one.suppressed for one in listed)
    found["folded"] = sum(bool(one.caused_by) for one in listed)
    return found
