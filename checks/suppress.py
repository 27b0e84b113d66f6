"""Findings that the operator has decided to live with: by flag, by file, or by annotation of a pod or custom resource.

A rule is `ID` or `ID=TARGET`: `KV313`, `KV3*`, `KV312=Pod engine-*.prod`; both sides are globs, and the target is
compared as reports print it, with and without its container. A suppressed finding stays in every report, marked; it
counts for no exit code and no verdict, and explains no other finding. Pure, except for reading the file that is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from checks.model import Result, Status, Target
from checks.snapshot import Snapshot

ANNOTATION = "kvctl.io/ignore"
"""Annotation whose value is a list of ids by commas."""
MAX_RULES = 1000
MAX_FILE_BYTES = 1 << 20

_CUSTOM_RESOURCES = ("inferenceendpointconfigs", "jumpstartmodels", "vllmrouters", "vllmruntimes", "inferencepools")
_STATES = frozenset({Status.WARN, Status.FAIL, Status.ERROR})


class SuppressionError(ValueError):
    """A rule that cannot mean anything. The message names it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; `targets` None: any target."""

    ids: str
    targets: str | None = None

    def covers(self, check: str, target: Target) -> bool:
        return fnmatchcase(check, self.ids) and (self.targets is None or self._at(target))

    def _at(self, target: Target) -> bool:
        wanted = self.targets or ""
        return fnmatchcase(str(target), wanted) or fnmatchcase(str(target.place), wanted)


@dataclass(frozen=True, slots=True)
class Ignored:
    """Ids that an annotation names, and what they are ignored for."""

    ids: frozenset[str]
    targets: frozenset[Target]
    """Without containers."""


@dataclass(frozen=True, slots=True)
class Suppressions:
    """Everything that is suppressed in one run."""

    rules: tuple[Rule, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    unknown: tuple[str, ...] = ()
    """`KV999 (Pod w-0.prod)`: ids in annotations that no check has."""

    def covers(self, result: Result) -> bool:
        if result.status not in _STATES:
            return False
        place = result.target.place
        return any(rule.covers(result.id, result.target) for rule in self.rules) or any(
            result.id in one.ids and place in one.targets for one in self.ignored
        )

    def annotated(self, snapshot: Snapshot, known: Collection[str]) -> Suppressions:
        """These, and those that the annotations of the snapshot's members and custom resources ask for.

        A member's annotation covers findings about it. A custom resource's covers findings about the resource, the
        members that it made, and the fleet as a whole.
        """
        ignored: list[Ignored] = []
        unknown: list[str] = []
        for text, about, targets in _annotations(snapshot):
            ids = {part.strip() for part in text.split(",") if part.strip()}
            unknown += [f"{one} ({about})" for one in sorted(ids.difference(known))]
            ignored.append(Ignored(frozenset(ids), targets))
        return replace(self, ignored=(*self.ignored, *ignored), unknown=(*self.unknown, *unknown))


NONE = Suppressions()


def parse(rules: Iterable[str], known: Collection[str]) -> Suppressions:
    """Rules as the command line or a file gives them. Raises SuppressionError where an id is none of `known`."""
    found: list[Rule] = []
    for text in rules:
        ids, equals, targets = (part.strip() for part in text.partition("="))
        if not ids or (equals and not targets):
            raise SuppressionError(f"{text!r}: a check, or CHECK=TARGET, wanted, such as 'KV312=Pod engine-*.prod'")
        if not any(fnmatchcase(one, ids) for one in known):
            raise SuppressionError(f"{text!r}: no check is called {ids}; `kvctl validate --list-checks` lists them")
        found.append(Rule(ids, targets if equals else None))
        if len(found) > MAX_RULES:
            raise SuppressionError(f"more than {MAX_RULES} rules; use globs, such as KV3* or 'KV312=Pod engine-*'")
    return Suppressions(tuple(found))


def read(path: Path) -> list[str]:
    """Rules of a file, one a line; `#` begins a comment. Raises SuppressionError."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SuppressionError(f"cannot read {path}: {reason}") from None
    if len(text) > MAX_FILE_BYTES:
        raise SuppressionError(f"{path}: more than {MAX_FILE_BYTES >> 20} MiB is no list of suppressions")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def _annotations(snapshot: Snapshot) -> Iterator[tuple[str, str, frozenset[Target]]]:
    """Each annotation's text, who carries it, and what it covers."""
    for member in snapshot.members:
        if text := member.annotations.get(ANNOTATION):
            place = member.target.place
            yield text, str(place), frozenset({place})
    for plural in _CUSTOM_RESOURCES:
        for resource in snapshot.resources.all(plural):
            metadata = resource.get("metadata") or {}
            text = (metadata.get("annotations") or {}).get(ANNOTATION)
            if isinstance(text, str) and text:
                place = Target(
                    str(resource.get("kind") or plural), metadata.get("namespace", ""), metadata.get("name", "")
                )
                yield text, str(place), frozenset({place, Target(), *_made_by(resource, place, snapshot)})


def _made_by(resource: Mapping[str, Any], place: Target, snapshot: Snapshot) -> Iterator[Target]:
    status = resource.get("status") or {}
    names = {place.name, (status.get("deploymentStatus") or {}).get("name")}
    for member in snapshot.members:
        owner = member.owner.partition("/")[2]
        if member.namespace == place.namespace and (owner in names or member.labels.get("app") == place.name):
            yield member.target.place
