"""Versions, and which go together, from data/compatibility.yaml: support matrix, LMCache's epochs, router pins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, total_ordering
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from checks.logs.view import LogView

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:[.-]?(post|rc|dev|a|b)\.?(\d+))?")
_STAGE = {"dev": -4, "a": -3, "b": -2, "rc": -1, "": 0, "post": 1}


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """A version as images and logs spell it: `0.3.9.post2`, `v0.3.9post2`, `0.4.3-<commit>`, `1.2.1-eksbuild.1`.

    `exact` is False where only a bound is known from a fingerprint; `text` then says `>=0.3.12`.
    """

    parts: tuple[int, int, int, int, int]
    text: str
    exact: bool = True

    @staticmethod
    def parse(text: str) -> Version:
        """Raises ValueError where there is no version in the text."""
        if (found := Version.find(text)) is None:
            raise ValueError(f"{text!r} is not a version")
        return found

    @staticmethod
    def find(text: str) -> Version | None:
        """The first version in a text, leniently; None if there is none."""
        match = _VERSION.search(text)
        if match is None:
            return None
        major, minor, patch, stage, number = match.groups()
        parts = (int(major), int(minor), int(patch or 0), _STAGE[stage or ""], int(number or 0))
        return Version(parts, match.group(0))

    def at_least(self) -> Version:
        """This version as a lower bound."""
        return Version(self.parts, f">={self.text}", exact=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __lt__(self, other: Version) -> bool:
        return self.parts < other.parts

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Epoch:
    """Versions of LMCache that understand each other on the wire, or compute equal keys."""

    name: str
    first: Version
    last: Version | None
    what: str

    def holds(self, version: Version) -> bool:
        return self.first <= version and (self.last is None or version <= self.last)


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One row of HyperPod's support matrix for kvaware; each entry is `>=V`, `<V` or `==V`."""

    operator: str
    addon: str
    lmcache: str
    vllm: str


@dataclass(frozen=True, slots=True)
class Compatibility:
    """compatibility.yaml."""

    matrix: tuple[MatrixRow, ...]
    recommended_operator: Version
    wire: tuple[Epoch, ...]
    hash: tuple[Epoch, ...]
    fingerprints: tuple[tuple[str, Version], ...]
    """Pattern ids that prove a lower bound of LMCache's version, newest first."""
    router_pins: tuple[dict[str, str], ...]
    lmcache_images: tuple[str, ...]
    vllm_images: tuple[str, ...]

    @staticmethod
    def load() -> Compatibility:
        return _load()

    def lmcache_of(self, log: LogView | None, image: str) -> Version | None:
        """LMCache's version from its own line, else the image tag, else a bound from a line that only newer print."""
        if log is not None and (match := log.last("lmcache-initialized")) is not None:
            return Version.find(match["version"])
        if (tagged := _tagged(image, self.lmcache_images)) is not None:
            return tagged
        if log is not None:
            for pattern, version in self.fingerprints:
                if log.has(pattern):
                    return version.at_least()
        return None

    def vllm_of(self, log: LogView | None, image: str, told: str | None) -> Version | None:
        """vLLM's version from GET /version, LMCache's line, vLLM's banner, else the image tag."""
        if told and (version := Version.find(told)) is not None:
            return version
        if log is not None and (match := log.last("lmcache-initialized")) is not None:
            return Version.find(match["vllm"])
        if log is not None and (match := log.last("vllm-version")) is not None:
            return Version.find(match["version"])
        return _tagged(image, self.vllm_images)

    def wire_epoch(self, version: Version) -> Epoch | None:
        return next((epoch for epoch in self.wire if epoch.holds(version)), None)

    def hash_epoch(self, version: Version) -> Epoch | None:
        return next((epoch for epoch in self.hash if epoch.holds(version)), None)


def satisfies(version: Version, bounds: str) -> bool:
    """`bounds` is a comma-separated list of `>=V`, `<V`, `==V`, all of which must hold."""
    for bound in bounds.split(","):
        match = re.fullmatch(r"\s*(>=|<|==)\s*(\S+)\s*", bound)
        if match is None:
            raise ValueError(f"{bound!r} is not a version bound")
        other = Version.parse(match.group(2))
        holds = {">=": version >= other, "<": version < other, "==": version == other}[match.group(1)]
        if not holds:
            return False
    return True


def _tagged(image: str, known: tuple[str, ...]) -> Version | None:
    """Version in the tag of a known image; None for `latest`, dates and others' images."""
    name, _, tag = image.partition("@")[0].rpartition(":")
    if not name or "/" in tag or not any(name.endswith(one) for one in known):
        return None
    return Version.find(tag) if re.match(r"v?\d+\.\d+", tag) else None


@cache
def _load() -> Compatibility:
    data: dict[str, Any] = yaml.safe_load(files("checks").joinpath("data/compatibility.yaml").read_text("utf-8"))
    return Compatibility(
        matrix=tuple(MatrixRow(**row) for row in data["hyperpod_matrix"]),
        recommended_operator=Version.parse(data["recommended_operator"]),
        wire=_epochs(data["wire_epochs"]),
        hash=_epochs(data["hash_epochs"]),
        fingerprints=tuple((row["pattern"], Version.parse(row["at_least"])) for row in data["fingerprints"]),
        router_pins=tuple({key: str(value) for key, value in row.items()} for row in data["router_pins"]),
        lmcache_images=tuple(data["lmcache_images"]),
        vllm_images=tuple(data["vllm_images"]),
    )


def _epochs(rows: list[dict[str, str]]) -> tuple[Epoch, ...]:
    return tuple(
        Epoch(
            row["name"],
            Version.parse(row["first"]),
            Version.parse(row["last"]) if row.get("last") else None,
            row["what"],
        )
        for row in rows
    )
