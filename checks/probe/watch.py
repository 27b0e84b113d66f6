"""What the probe reads while it runs: pages and newest log lines of members, decisions of kvctl's router.

The same sources as the collection's, by way of the tape. Costs a page a member and reading, at most 1 MiB of each log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from checks.discover.processes import with_files
from checks.discover.programs import Program
from checks.discover.urls import admin_port, ports
from checks.logs.patterns import Patterns
from checks.logs.read import read_log
from checks.logs.view import LogView
from checks.metrics.aliases import Aliases
from checks.metrics.scrape import PageText, from_pages
from checks.metrics.view import Metrics
from checks.model import Reason, Stack
from checks.request import CollectRequest, LogFile
from checks.snapshot import Member, Role, Snapshot
from checks.sources import files
from checks.sources.deadline import Deadline, at_once
from checks.sources.kubernetes import Cluster
from checks.sources.pages import Reader, decoded, page_text
from checks.sources.phases import ADMIN_PATHS
from checks.sources.tape import Answer

METRICS = "/metrics"
LOG_BYTES = 1 << 20
LOG_LINES = 8_000
LOG_SINCE_S = 900

Readings = Mapping[str, PageText]
"""Pages of one moment, by member key."""


@dataclass(slots=True)
class Watch:
    """Fresh readings of the members of a snapshot."""

    snapshot: Snapshot
    request: CollectRequest
    reader: Reader
    deadline: Deadline
    _files: dict[str, LogFile] = field(init=False)

    def __post_init__(self) -> None:
        known = [member for member in self.snapshot.members if member.kind == "Process" and member.url]
        self._files = dict(with_files(known, self.request.log_files).files)

    # -- metrics -------------------------------------------------------------------------------------------------

    def pages(self, members: Iterable[Member]) -> dict[str, PageText]:
        """What each member's /metrics says now; members that have no known port are left out."""
        asked = [member for member in members if member.url or self._admin_base(member)]
        calls = [partial(self._page, member) for member in asked]
        found = at_once(calls, threads=self.request.concurrency, deadline=self.deadline)
        return {member.key: page for member, page in zip(asked, found, strict=True)}

    @staticmethod
    def between(first: Readings, second: Readings) -> Metrics:
        """Growth from one moment to another."""
        return from_pages(first, second)

    def _page(self, member: Member) -> PageText:
        if self.is_kvctl(member):
            answer, address = self._admin(member, METRICS), f"{member.key} admin{METRICS}"
        else:
            answer, address = self.reader.get(member, _port(member), METRICS), f"{member.url}{METRICS}"
        return page_text(answer, address, Aliases.load().by_spelling)

    # -- kvctl's router ------------------------------------------------------------------------------------------

    def is_kvctl(self, member: Member) -> bool:
        """A router of ours whose admin port can be asked."""
        if member.role is not Role.ROUTER or "/workers" not in member.answers:
            return False
        return member.kind == "Pod" or bool(self._admin_base(member))

    def decision(self, router: Member, request_id: str) -> Mapping[str, Any] | None:
        """What kvctl's router says of one request; None where it is another router or does not know it."""
        if not self.is_kvctl(router):
            return None
        told = decoded(self._admin(router, f"/decisions/{quote(request_id, safe='')}"))
        return told if isinstance(told, dict) else None

    def answers(self, router: Member) -> dict[str, Any]:
        """What the router told the collection, with what its admin port says now."""
        found = dict(router.answers)
        for path in ADMIN_PATHS if self.is_kvctl(router) else ():
            if (told := decoded(self._admin(router, path))) is not None:
                found[path] = told
        return found

    def _admin(self, router: Member, path: str) -> Answer:
        if router.kind == "Pod":
            return self.reader.get(router, admin_port(router), path)
        return self.reader.base(self._admin_base(router), f"{router.key} admin", path)

    def _admin_base(self, member: Member) -> str:
        """Where the collection asked its admin port; '' for what is not kvctl's router."""
        if member.kind != "Process" or member.role is not Role.ROUTER or "/workers" not in member.answers:
            return ""
        page = self.snapshot.metrics.pages.get(member.key)
        return self.request.admin.rstrip("/") or ("" if page is None else page.url.removesuffix(METRICS))

    # -- logs ----------------------------------------------------------------------------------------------------

    def has_log(self, member: Member) -> bool:
        return member.key in self._files or (member.kind == "Pod" and bool(self.request.logs))

    def log(self, member: Member) -> LogView | None:
        """The newest lines of the member's log; None where it cannot be read."""
        if not self.has_log(member):
            return None
        file = self._files.get(member.key)
        if file is not None:
            where = f"{file.role}:{file.name}"
            answer = self.reader.tape.ask("log", f"{where} probe", partial(_newest, Path(file.path)))
        else:
            where = f"{member.key}/{member.container.name}"
            answer = self.reader.tape.ask("log", f"{where} probe", partial(_pod_log, self.reader.cluster, member))
        if not answer.ok:
            return None
        return read_log(answer.text, where=where, started_at=None, patterns=Patterns.load())


def data_port(snapshot: Snapshot, router: Member) -> int:
    """Where a router's pod takes requests; kvctl's own answers its metrics on another one."""
    if snapshot.stack is Stack.KVCTL or "/workers" in router.answers:
        admin = admin_port(router)
        return next(port for port in (*ports(router, Program.KVCTL), 8000) if port != admin)
    return _port(router)


def _port(member: Member) -> int:
    return urlsplit(member.url).port or (443 if member.url.startswith("https:") else 80)


def _newest(path: Path) -> Answer:
    """The last bytes of a file, the whole of a small one."""
    end = files.tail(path, LOG_BYTES)
    return files.head(path, LOG_BYTES) if end.ok and not end.text else end


def _pod_log(cluster: Cluster | None, member: Member) -> Answer:
    if cluster is None:
        return Answer(error=Reason.NO_DATA, message="no cluster")
    return cluster.log(
        member.namespace,
        member.name,
        member.container.name,
        limit_bytes=LOG_BYTES,
        tail_lines=LOG_LINES,
        since_s=LOG_SINCE_S,
    )
