"""Members' own HTTP pages: /metrics and small JSON answers, through the API server, straight to the pod, or by URL.

One place decides how a member is reached. A page of metrics is cut down to what is used as soon as it is there: of a
thousand engines the whole text would not fit in memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from checks.discover.urls import https, url
from checks.metrics.scrape import PageText
from checks.model import Reason
from checks.numerals import loads
from checks.request import CollectRequest
from checks.snapshot import Member
from checks.sources.http import Pages
from checks.sources.keep import without_secrets
from checks.sources.kubernetes import Cluster
from checks.sources.tape import Answer, Tape

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)[ {]", re.ASCII)
_UNUSED = ("# HELP", "#HELP")


def admin_token(request: CollectRequest) -> str:
    """The token for kvctl's admin port from KVCTL_ADMIN_TOKEN; "" where that port was not given by the user: a guessed
    address gets no token."""
    return os.environ.get("KVCTL_ADMIN_TOKEN", "").strip() if request.admin else ""


@dataclass(frozen=True, slots=True)
class Reader:
    """GETs of members, by way of the tape. Thread-safe."""

    tape: Tape
    cluster: Cluster | None = None
    http: Pages | None = None
    """With a cluster: only where pods are reached by their address."""
    admin_token: str = field(default="", repr=False)
    """Of kvctl's admin port, where that has one; sent there alone."""

    def get(self, member: Member, port: int, path: str) -> Answer:
        """`port` is left out of account for a process that is known by its URL."""
        if member.kind == "Process":
            return self.tape.ask("page", f"{member.key}{path}", partial(self._direct, member.url + path))
        return self.tape.ask("page", f"{member.key}:{port}{path}", partial(self._pod, member, port, path))

    def base(self, base: str, key: str, path: str) -> Answer:
        """GET below a base URL that is no member's own (kvctl's admin port)."""
        return self.tape.ask("page", f"{key}{path}", partial(self._direct, base + path, self.admin_token))

    def first(self, member: Member, ports: Sequence[int], path: str) -> tuple[int, Answer]:
        """The first port that answers, and its answer; else the first port and the first failure that says why."""
        failed: tuple[int, Answer] | None = None
        for port in ports or (0,):
            answer = self.get(member, port, path)
            if answer.ok:
                return port, answer
            if failed is None or failed[1].error is Reason.NO_DATA:
                failed = port, answer
        assert failed is not None
        return failed

    def _direct(self, address: str, token: str = "") -> Answer:
        if self.http is None:
            return Answer(error=Reason.NO_DATA, message="no way to reach it")
        return self.http.get(address, token)

    def _pod(self, member: Member, port: int, path: str) -> Answer:
        if self.http is not None and (address := url(member, port)):
            answer = self.http.get(address + path)
            if answer.ok or answer.status or self.cluster is None:
                return answer
        if self.cluster is None:
            return Answer(error=Reason.NO_DATA, message="no way to reach it")
        return self.cluster.page(member.namespace, member.name, port, path, https=https(member.container))


def page_text(answer: Answer, address: str, wanted: Container[str]) -> PageText:
    """The answer of a /metrics page without what nobody reads."""
    page = PageText.of(answer, address)
    return replace(page, text=slim(page.text, wanted)) if page.text else page


def slim(text: str, wanted: Container[str]) -> str:
    """TYPE lines, samples whose names are wanted, one sample of each other name, and whatever is no sample at all."""
    kept: list[str] = []
    seen: set[str] = set()
    for line in text.split("\n"):
        if line.startswith(_UNUSED):
            continue
        match = _SAMPLE.match(line)
        if match is not None and match[1] not in wanted:
            if match[1] in seen:
                continue
            seen.add(match[1])
        kept.append(line)
    return "\n".join(kept)


def decoded(answer: Answer) -> Any:
    """JSON of a small answer without secrets; None where there is none."""
    if not answer.ok:
        return None
    try:
        return without_secrets(loads(answer.text))
    except ValueError:
        return None
