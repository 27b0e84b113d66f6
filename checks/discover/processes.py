"""Members of a system without a cluster: URLs and log files, put together by name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from checks.numerals import whole
from checks.request import LogFile
from checks.snapshot import Member, Role


def process(role: Role, base: str, name: str = "") -> Member:
    """A process by its base URL, named HOST:PORT and path unless it has a name. Loopback is no address of its own."""
    parts = urlsplit(base)
    return Member(
        role=role,
        name=name or parts.netloc.rpartition("@")[2] + parts.path.rstrip("/"),
        kind="Process",
        url=base,
        ips=_ips(parts.hostname or ""),
    )


def told_workers(answer: Any) -> tuple[tuple[str, str], ...]:
    """(id, URL) of the workers that kvctl's GET /workers lists."""
    listed = answer.get("workers") if isinstance(answer, dict) else None
    rows = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return tuple((str(one["id"]), str(one["url"])) for one in rows if one.get("id") and one.get("url"))


def workers(urls: Sequence[str], told: Iterable[tuple[str, str]]) -> list[Member]:
    """One member a URL, under the id that the router gives it; without URLs the router's own list."""
    ids = {base.rstrip("/"): name for name, base in told}
    return [process(Role.WORKER, base, ids.get(base, "")) for base in (urls or ids)]


def distinct(members: Iterable[Member]) -> list[Member]:
    """The members, each under a name of its own: a router may give two workers the same, or that of itself."""
    found: list[Member] = []
    for member in members:
        found.append(replace(member, name=_free(member.name, found)))
    return found


@dataclass(frozen=True, slots=True)
class Paired:
    """Members, and the log file of each that has one (by key)."""

    members: tuple[Member, ...]
    files: dict[str, LogFile]


def with_files(members: Sequence[Member], files: Iterable[LogFile]) -> Paired:
    """Each file goes to the member of its name, or number (`worker:0`), or to the only one of its role that has none.

    What is left becomes a member without URL.
    """
    found, paired = list(members), dict[str, LogFile]()
    for file in files:
        rows = [member for member in members if member.role is file.role]
        same = [member for member in rows if file.name in (member.name, urlsplit(member.url).netloc)]
        if not same and (at := whole(file.name)) is not None:
            same = rows[at : at + 1]
        if not same and file.name == file.role.value and len(rows) == 1:
            same = rows
        if same and same[0].key not in paired:
            member = same[0]
        else:
            member = Member(role=file.role, name=_free(file.name, found), kind="Process")
            found.append(member)
        paired[member.key] = file
    return Paired(tuple(found), paired)


def reached(member: Member, ready: bool) -> Member:
    return replace(member, ready=ready, phase="Running" if ready else "Unknown")


def _free(name: str, members: Sequence[Member]) -> str:
    """The name, with a number where it is taken."""
    taken = {member.name for member in members}
    number, free = 2, name
    while free in taken:
        free = f"{name}-{number}"
        number += 1
    return free


def _ips(host: str) -> tuple[str, ...]:
    try:
        address = ip_address(host)
    except ValueError:
        return ()
    return () if address.is_loopback else (host,)
