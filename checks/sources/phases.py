"""The phases of a collection that look alike with and without a cluster: metrics, logs, small answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from checks.discover.sampling import sample
from checks.discover.urls import url
from checks.metrics.view import Metrics, Page
from checks.model import Reason
from checks.numerals import whole
from checks.request import Scrape
from checks.snapshot import Member, Role
from checks.sources.deadline import INTERRUPTED
from checks.sources.logs import Logs
from checks.sources.pages import Reader, decoded
from checks.sources.run import Run
from checks.sources.scrapes import Place, Scrapes
from checks.sources.tape import Answer

ROUTER_PATHS = ("/version", "/engines", "/v1/models", "/health")
WORKER_PATHS = ("/version", "/v1/models")
ADMIN_PATHS = ("/workers", "/index", "/loads", "/config", "/decisions")
LMCACHE_PATHS = ("/conf", "/controller/workers")
"""Safe answers of LMCache's internal server; its other paths give secrets away or change things."""
LMCACHE_PORT = 6999


@dataclass(slots=True)
class Measurement:
    """Metrics from a Prometheus where it answers, else from two readings of the members' pages."""

    run: Run
    reader: Reader
    places: Sequence[Place]
    server: Callable[[], Metrics | None]
    """Asks the Prometheus; None where there is none to ask."""
    _told: Metrics | None = None
    _scrapes: Scrapes | None = None
    _begun: float = 0.0

    def begin(self) -> Metrics:
        """What is known after the first reading: of the members' own pages only what sampling the logs looks at."""
        run = self.run
        try:
            self._told = self.server()
        except KeyboardInterrupt:
            run.deadline.stop(INTERRUPTED)
        wanted = {Scrape.ALWAYS: True, Scrape.NEVER: False}
        if wanted.get(run.request.scrape, self._told is None or not self._told.samples):
            places = [place for place in self.places if place.ports or place.admin or place.member.url]
            self._scrapes = Scrapes(self.reader, places, run.request.concurrency, run.deadline)
            self._scrapes.start(lambda count: run.progress("metrics", count, len(places)))
            self._begun = time.monotonic()
        if self._told is not None and self._told.samples:
            return self._told
        return Metrics() if self._scrapes is None else self._scrapes.hits()

    @property
    def ports(self) -> Mapping[str, int]:
        """The port on which each pod answered, by member key."""
        return {} if self._scrapes is None else self._scrapes.ports

    def end(self) -> Metrics:
        """After the second reading, which comes `scrape_interval_s` after the first."""
        run, scrapes = self.run, self._scrapes
        if scrapes is not None and self.ports:
            if not run.tape.replaying:
                run.progress("waiting for the metrics to move", 0, 0)
                run.deadline.sleep(self._begun + run.request.scrape_interval_s - time.monotonic())
            scrapes.again(lambda count: run.progress("metrics again", count, len(self.ports)))
        found = self._sum()
        run.note_many(
            "metrics",
            (
                (page.member, page.problem, page.message)
                for page in found.pages.values()
                if page.problem not in (None, Reason.NO_DATA) and not self._may_be_absent(page)
            ),
        )
        return found

    def _may_be_absent(self, page: Page) -> bool:
        """Nothing listens where a router's page was looked for: not every router exports metrics."""
        routers = {place.member.key for place in self.places if place.member.role is Role.ROUTER}
        return page.problem is Reason.UNREACHABLE and page.member in routers

    def _sum(self) -> Metrics:
        if self._scrapes is None:
            return self._told or Metrics(missing=Reason.DISABLED)
        scraped = self._scrapes.metrics()
        if self._told is None or not self._told.samples:
            return replace(scraped, targets={} if self._told is None else self._told.targets)
        return replace(self._told, pages=scraped.pages)


@dataclass(slots=True)
class Reading:
    """Members with their logs and answers."""

    run: Run
    reader: Reader
    places: Sequence[Place]
    sampled: str = ""
    _picked: frozenset[str] = field(default_factory=frozenset)

    def logs(self, metrics: Metrics, read: Callable[[Member], Logs | None]) -> list[Member]:
        """All members, with the logs of those that are picked; `read` gives None where there is no log to read."""
        members = [place.member for place in self.places]
        picked = sample(members, metrics, self.run.request.max_log_pods)
        self.sampled, self._picked = picked.text, picked.keys
        if not self.run.request.logs:
            self.sampled = ""
            return [replace(member, log_missing=Reason.DISABLED) for member in members]
        chosen = [member for member in members if member.key in picked.keys]
        found = dict(
            zip(
                (member.key for member in chosen),
                self.run.each([partial(read, member) for member in chosen], "logs"),
                strict=True,
            )
        )
        failures = [
            (key, logs.missing, logs.message)
            for key, logs in found.items()
            if logs is not None and logs.missing not in (None, Reason.NO_DATA, Reason.DISABLED)
        ]
        self.run.note_many("log", failures)
        return [_with_logs(member, found.get(member.key)) for member in members]

    def answers(self, members: Sequence[Member], ports: Mapping[str, int]) -> list[Member]:
        """The members with their URL, their small JSON answers, and the model where only the answer tells it."""
        if self.run.request.scrape is Scrape.NEVER and self.run.request.cluster:
            return list(members)
        asked = [
            partial(self._ask, member, place, ports.get(member.key))
            for member, place in zip(members, self.places, strict=True)
        ]
        return self.run.each(asked, "answers")

    def _ask(self, member: Member, place: Place, port: int | None) -> Member:
        searched = place.data_ports or place.ports
        if place.data_ports:
            port = None
        if member.kind == "Pod" and port:
            member = replace(member, url=url(member, port))
        paths: tuple[str, ...] = ROUTER_PATHS if member.role is Role.ROUTER else WORKER_PATHS
        if member.role is Role.CACHE_SERVER or member.key not in self._picked or not (searched or member.url):
            return member
        found: dict[str, Any] = dict(member.answers)
        if port is None:
            port, first = self.reader.first(member, searched, paths[0])
            self._keep(found, paths[0], first)
            paths = paths[1:] if first.status else ()
            if member.kind == "Pod" and first.ok:
                member = replace(member, url=url(member, port))
        for path in paths:
            self._keep(found, path, self.reader.get(member, port, path))
        for path in ADMIN_PATHS if place.admin or place.admin_port else ():
            self._keep(found, path, self._admin(place, path))
        if (member.env("LMCACHE_INTERNAL_API_SERVER_ENABLED") or "").lower() in ("true", "1"):
            start = whole(member.env("LMCACHE_INTERNAL_API_SERVER_PORT_START"))
            for path in LMCACHE_PATHS:
                self._keep(found, path, self.reader.get(member, LMCACHE_PORT if start is None else start, path))
        return replace(member, answers=found, model=member.model or _first_model(found.get("/v1/models")))

    def _admin(self, place: Place, path: str) -> Answer:
        if place.admin:
            return self.reader.base(place.admin, place.admin_key, path)
        return self.reader.get(place.member, place.admin_port, path)

    @staticmethod
    def _keep(found: dict[str, Any], path: str, answer: Answer) -> None:
        value = decoded(answer)
        if value is not None:
            found[path] = value


def _with_logs(member: Member, logs: Logs | None) -> Member:
    if logs is None:
        return replace(member, log_missing=Reason.NO_DATA)
    return replace(member, log=logs.log, log_missing=logs.missing, previous=logs.previous)


def _first_model(answer: Any) -> str:
    """Id of the first model of /v1/models; '' where there is none."""
    try:
        return str(answer["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        return ""
