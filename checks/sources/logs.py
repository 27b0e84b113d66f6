"""One container's log: its oldest bytes, its newest, and those of its last instance, as LogViews.

HEAD is the oldest bytes that the kubelet still has. TAIL is read only when HEAD stopped at the limit: otherwise HEAD is
the whole log. PREVIOUS is the end of the log of an instance that ended. The text is dropped once it was parsed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from checks.logs.patterns import Patterns
from checks.logs.read import merge, read_log
from checks.logs.view import LogView
from checks.model import Reason
from checks.request import CollectRequest, LogFile, LogPart
from checks.snapshot import Member
from checks.sources import files
from checks.sources.deadline import Deadline
from checks.sources.kubernetes import Cluster
from checks.sources.tape import Answer, Tape

FILE_S = 30.0
PREVIOUS_BYTES = 1 << 20
LINE_BYTES = 150
"""Of a usual line; tells how many lines make a tail of so many bytes."""


@dataclass(frozen=True, slots=True)
class Logs:
    """What could be read of one member; `missing` says why the log is None."""

    log: LogView | None = None
    missing: Reason | None = None
    message: str = ""
    previous: LogView | None = None


@dataclass(frozen=True, slots=True)
class LogReader:
    """Reads logs through the tape. Thread-safe."""

    cluster: Cluster | None
    """None in a replay, and without a cluster."""
    tape: Tape
    request: CollectRequest
    patterns: Patterns
    deadline: Deadline | None = None
    """For files; a cluster has its own."""

    def of_pod(self, member: Member, init_containers: tuple[str, ...] = ()) -> Logs:
        """`init_containers`: of a pod that is not ready, in order. The newest that logged stands in for a container
        that has not started."""
        name, limit, wanted = member.container.name, self.request.log_limit_bytes, self.request.logs
        head = Answer(error=Reason.DISABLED, message="not asked for (--logs)")
        if LogPart.HEAD in wanted:
            head = self._ask(member, name, "head", limit_bytes=limit)
        text, cut = head.text, not head.ok or _full(head.text, limit)
        failure = None if head.ok else head
        if LogPart.TAIL in wanted and cut and head.error not in (Reason.RBAC, Reason.GONE, Reason.TIMEOUT):
            lines, since = max(1000, limit // LINE_BYTES), max(1, int(self.request.since_s))
            tail = self._ask(member, name, "tail", limit_bytes=limit, tail_lines=lines, since_s=since)
            if tail.ok:
                text, failure = merge(text, tail.text), None
        previous = self._previous(member) if LogPart.PREVIOUS in wanted and member.container.restarts > 0 else None
        if not text and (stand_in := self._init(member, init_containers)) is not None:
            return Logs(stand_in, previous=previous)
        if failure is not None:
            return Logs(None, failure.error, failure.message, previous)
        view = read_log(
            text,
            where=f"{member.key}/{name}",
            started_at=member.container.started_at,
            patterns=self.patterns,
            limit_reached=cut,
        )
        return Logs(view if head.ok else replace(view, head_complete=False), previous=previous)

    def of_file(self, file: LogFile) -> Logs:
        """A log given with --log."""
        path, limit = Path(file.path), self.request.log_limit_bytes
        where = f"{file.role}:{file.name}"
        head = self.tape.ask("log", f"{where} head", partial(self._from_file, files.head, path))
        if not head.ok:
            return Logs(None, head.error, head.message)
        text, cut = head.text, _full(head.text, limit)
        if cut:
            tail = self.tape.ask("log", f"{where} tail", partial(self._from_file, files.tail, path))
            text = merge(text, tail.text if tail.ok else "")
        return Logs(read_log(text, where=where, started_at=None, patterns=self.patterns, limit_reached=cut))

    def _from_file(self, part: Callable[[Path, int], Answer], path: Path) -> Answer:
        """A pipe that nobody writes to is not waited for without end."""

        def unread(why: str) -> Answer:
            return Answer(0, "", Reason.TIMEOUT, f"{path} could not be read to its end: {why}")

        read = partial(part, path, self.request.log_limit_bytes)
        return read() if self.deadline is None else self.deadline.bounded(read, unread, within_s=FILE_S)

    def _previous(self, member: Member) -> LogView | None:
        lines, name = PREVIOUS_BYTES // LINE_BYTES, member.container.name
        answer = self._ask(member, name, "previous", limit_bytes=PREVIOUS_BYTES, tail_lines=lines, previous=True)
        if not answer.ok or not answer.text:
            return None
        where = f"{member.key}/{name} (previous)"
        view = read_log(answer.text, where=where, started_at=None, patterns=self.patterns)
        return replace(view, head_complete=False)

    def _init(self, member: Member, names: tuple[str, ...]) -> LogView | None:
        """The newest init container's log; never complete, so that no absence is concluded from it."""
        for name in reversed(names):
            answer = self._ask(member, name, "head", limit_bytes=PREVIOUS_BYTES)
            if answer.ok and answer.text:
                where = f"{member.key}/{name}"
                view = read_log(answer.text, where=where, started_at=None, patterns=self.patterns)
                return replace(view, head_complete=False)
        return None

    def _ask(self, member: Member, container: str, part: str, **how: Any) -> Answer:
        """`how`: as `Cluster.log` takes it."""
        cluster = self.cluster
        if cluster is None:
            return self.tape.ask("log", f"{member.key}/{container} {part}", _no_cluster)
        fetch = partial(cluster.log, member.namespace, member.name, container, **how)
        return self.tape.ask("log", f"{member.key}/{container} {part}", fetch)


def _no_cluster() -> Answer:
    return Answer(error=Reason.NO_DATA, message="no cluster")


def _full(text: str, limit: int) -> bool:
    """The text is as long as the limit lets it be; a letter cut in two may miss a few bytes."""
    return len(text) + 4 >= limit or len(text.encode()) + 4 >= limit
