"""Two readings of every member's /metrics, some time apart, and where each member answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from checks.discover.urls import url
from checks.metrics.aliases import Aliases
from checks.metrics.scrape import PageText, from_pages
from checks.metrics.view import Metrics
from checks.snapshot import Member
from checks.sources.deadline import Deadline, at_once
from checks.sources.pages import Reader, page_text

PATH = "/metrics"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a member's metrics are."""

    member: Member
    ports: tuple[int, ...] = ()
    """To try in order; of a pod."""
    admin: str = ""
    """Base URL of kvctl's admin port, for a process whose metrics are there."""
    admin_port: int = 0
    """The same for a pod; 0 for what is not kvctl."""
    data_ports: tuple[int, ...] = ()
    """Of a pod whose requests go to other ports than its metrics are on."""

    @property
    def admin_key(self) -> str:
        return f"{self.member.key} admin"


@dataclass(slots=True)
class Scrapes:
    """The two rounds. `ports` holds, after the first one, the port on which each pod answered."""

    reader: Reader
    places: Sequence[Place]
    threads: int
    deadline: Deadline
    ports: dict[str, int] = field(default_factory=dict)
    first: dict[str, PageText] = field(default_factory=dict)
    second: dict[str, PageText] = field(default_factory=dict)

    def start(self, done: Callable[[int], None]) -> None:
        """The first round; tries the ports of each pod in order."""
        found = self._round([partial(self._search, place) for place in self.places], done)
        for place, (port, page) in zip(self.places, found, strict=True):
            self.first[place.member.key] = page
            if page.problem is None:
                self.ports[place.member.key] = port

    def again(self, done: Callable[[int], None]) -> None:
        """The second round, of those that answered in the first."""
        places = [place for place in self.places if self.first[place.member.key].problem is None]
        found = self._round([partial(self._known, place) for place in places], done)
        self.second = {place.member.key: page for place, (_, page) in zip(places, found, strict=True)}

    def hits(self) -> Metrics:
        """The engines' own hit counters after the first round; parsing whole pages of a large fleet takes seconds."""
        few = {
            key: replace(page, text="\n".join(line for line in page.text.split("\n") if "prefix_cache_" in line))
            for key, page in self.first.items()
        }
        return from_pages(few, {})

    def metrics(self) -> Metrics:
        return from_pages(self.first, self.second)

    def _round(
        self, calls: Sequence[Callable[[], tuple[int, PageText]]], done: Callable[[int], None]
    ) -> list[tuple[int, PageText]]:
        return at_once(calls, threads=self.threads, deadline=self.deadline, done=done)

    def _search(self, place: Place) -> tuple[int, PageText]:
        if place.admin or place.member.kind == "Process":
            return self._known(place)
        port, answer = self.reader.first(place.member, place.ports, PATH)
        return port, page_text(answer, self._address(place, port), Aliases.load().by_spelling)

    def _known(self, place: Place) -> tuple[int, PageText]:
        port = self.ports.get(place.member.key, 0)
        if place.admin:
            answer = self.reader.base(place.admin, place.admin_key, PATH)
        else:
            answer = self.reader.get(place.member, port, PATH)
        return port, page_text(answer, self._address(place, port), Aliases.load().by_spelling)

    def _address(self, place: Place, port: int) -> str:
        base = place.admin or place.member.url or url(place.member, port)
        return f"{base}{PATH}"
