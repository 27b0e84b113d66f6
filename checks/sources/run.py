"""What all phases of one collection share: the request, the tape, the clock, and the list of what could not be read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from checks.model import Reason
from checks.request import CollectRequest
from checks.snapshot import Unread
from checks.sources.deadline import Deadline, at_once
from checks.sources.tape import Tape

T = TypeVar("T")
Progress = Callable[[str, int, int], None]
"""(stage, done, total), called in the collecting thread."""


@dataclass(slots=True)
class Run:
    """One collection. Phases add to `unread`."""

    request: CollectRequest
    tape: Tape
    progress: Progress
    deadline: Deadline
    unread: list[Unread] = field(default_factory=list)

    def each(self, calls: Sequence[Callable[[], T]], stage: str) -> list[T]:
        """Results of the calls in their order, `concurrency` at a time."""
        return at_once(
            calls,
            threads=self.request.concurrency,
            deadline=self.deadline,
            done=lambda count: self.progress(stage, count, len(calls)),
        )

    def note(self, what: str, reason: Reason, message: str) -> None:
        self.unread.append(Unread(what, reason, message))

    def note_many(self, what: str, failures: Iterable[tuple[str, Reason, str]]) -> None:
        """One entry a reason for (where, reason, message): how many, and the first message."""
        by_reason: dict[Reason, list[tuple[str, str]]] = defaultdict(list)
        for where, reason, message in failures:
            by_reason[reason].append((where, message))
        for reason, rows in by_reason.items():
            where, message = rows[0]
            named = where if len(rows) == 1 else f"{len(rows)} members, the first {where}"
            self.note(f"{what} of {named}", reason, message)
