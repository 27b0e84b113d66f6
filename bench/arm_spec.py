"""What a user says of a router that runs already: `NAME=URL[,key=value]...`, as `--url` takes it. Pure parsing."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bench.client.connection import Target
from bench.cold import Engine
from router.fleet.spec import SpecError, parse_spec

KEYS = ("engines", "admin", "reset", "version")
NONE = "none"
MOST_ENGINES = 1024
_VERSION = re.compile(r"[ -~]{1,128}")


class ArmSpelling(ValueError):
    """An arm that is not written as it has to be. The message quotes it."""


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """A running router.

    Args:
        name: of the arm.
        url: where requests go.
        engines: those behind it, that can be asked and reset directly, `[ID@]URL`; empty if unknown. The id is what the
            router names them by in its answers; by default the one that kvctl gives to such a URL.
        admin: admin port, if the router is kvctl.
        resets: whether its engines may be reset before a block.
        reset_url: POSTed to before each block, beside the reset of the engines: what the router itself keeps.
        version: of the router, where it cannot be asked.
    """

    name: str
    url: str
    engines: tuple[Engine, ...] = ()
    admin: str | None = None
    resets: bool = True
    reset_url: str | None = None
    version: str | None = None


def parse_arm(text: str) -> ArmSpec:
    """`smg=http://h:30000,engines=http://h:8000+http://h:8001,reset=http://h:30000/flush_cache,version=smg 1.13.0`.

    Raises:
        ArmSpelling: names the arm, what was not understood and what is wanted.
    """
    name, equals, rest = text.strip().partition("=")
    if not equals or not name or "/" in name or "," in name:
        raise ArmSpelling(f"--url {text!r}: NAME=http://HOST:PORT wanted, then ,key=value of {', '.join(KEYS)}")
    url, *parts = (part.strip() for part in rest.split(","))
    fields: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if key not in KEYS or not equals or not value:
            raise ArmSpelling(f"--url {text!r}: {part!r} is not key=value; the keys are {', '.join(KEYS)}")
        if key in fields:
            raise ArmSpelling(f"--url {text!r}: {key} is given twice")
        fields[key] = value
    reset, version = fields.get("reset"), fields.get("version")
    if version is not None and not _VERSION.fullmatch(version):
        raise ArmSpelling(f"--url {text!r}: version: at most 128 printable characters wanted")
    return ArmSpec(
        name,
        _address(text, url),
        _engines(text, fields.get("engines")),
        _address(text, fields["admin"]) if "admin" in fields else None,
        reset != NONE,
        _address(text, reset) if reset not in (None, NONE) else None,
        version,
    )


def _address(text: str, url: str) -> str:
    try:
        Target.parse(url)
    except ValueError as error:
        raise ArmSpelling(f"--url {text!r}: {error}") from error
    return url.rstrip("/")


def _engines(text: str, value: str | None) -> tuple[Engine, ...]:
    if value is None:
        return ()
    found = []
    for part in value.split("+"):
        name, at, url = part.rpartition("@")
        address = _address(text, url)
        try:
            spec = parse_spec(f"{address},id={name}" if at else address)
        except SpecError as error:
            raise ArmSpelling(f"--url {text!r}: engines: {error}") from error
        found.append(Engine(spec.id, spec.url))
    if len(found) > MOST_ENGINES:
        raise ArmSpelling(f"--url {text!r}: engines: {MOST_ENGINES} at most")
    if len({engine.url for engine in found}) != len(found) or len({engine.id for engine in found}) != len(found):
        raise ArmSpelling(f"--url {text!r}: engines: one is named twice")
    return tuple(found)
