"""Versions, and which go together, from data/compatibility.yaml: support matrix, LMCache's epochs, router pins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, total_ordering
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from checks.logs.view import LogView

# After a dash only words that no commit hash can begin with: `0.4.3-a1f2e3d` is 0.4.3 of some commit.
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(post|rc|dev|a|b)\.?(\d+)(?![0-9a-f]*[a-f])|-(post|rc)\.?(\d+))?")
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
        major, minor, patch, *stages = match.groups()
        stage, number = stages[0] or stages[2], stages[1] or stages[3]
        parts = (int(major), int(minor), int(patch or 0), _STAGE[stage or ""], int(number or 0))
        return Version(parts, match.group(0))

    @property
    def coarse(self) -> bool:
        """Only major and minor are told (an image tag `v3.1`): it may be any patch of them."""
        return self.exact and re.fullmatch(r"\d+\.\d+", self.text) is not None

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

    def may_hold(self, version: Version) -> bool:
        """As `holds`, where a lower bound stands for any version from there on."""
        return self.holds(version) or (not version.exact and version <= self.first)


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One row of HyperPod's support matrix for kvaware; each entry is `>=V`, `<V` or `==V`."""

    operator: str
    addon: str
    lmcache: str
    vllm: str


@dataclass(frozen=True, slots=True)
class Need:
    """What vLLM's connector needs of LMCache; `vllm` and `lmcache` are bounds (`>=V`), `see` the thread that tells."""

    vllm: str
    lmcache: str
    see: str


@dataclass(frozen=True, slots=True)
class InstanceId:
    """What LMCache calls an instance whose id nobody set, from version `first` to `last`."""

    first: Version
    last: Version | None
    default: str
    """constant: all pods share it · process: a new one in each process · none: LMCache refuses to start."""

    def holds(self, version: Version) -> bool:
        return self.first <= version and (self.last is None or version <= self.last)


@dataclass(frozen=True, slots=True)
class Compatibility:
    """compatibility.yaml."""

    matrix: tuple[MatrixRow, ...]
    vllm_needs: tuple[Need, ...]
    recommended_operator: Version
    wire: tuple[Epoch, ...]
    hash: tuple[Epoch, ...]
    hash_other_algorithms: tuple[Epoch, ...]
    """Epochs that only exist with a hash algorithm other than `builtin`; they go before those of `hash`."""
    instance_ids: tuple[InstanceId, ...]
    fingerprints: tuple[tuple[str, Version], ...]
    """Pattern ids that prove a lower bound of LMCache's version, newest first."""
    router_pins: tuple[dict[str, str], ...]
    router_images: tuple[str, ...]
    lmcache_images: tuple[str, ...]
    vllm_images: tuple[str, ...]
    gated_models: tuple[str, ...]
    """Beginnings of repository names that need a token to be downloaded; not all there are."""

    @staticmethod
    def load() -> Compatibility:
        return _load()

    def lmcache_of(self, log: LogView | None, image: str) -> Version | None:
        """LMCache's version from its own line, the image tag, a router image's pin, else a bound from a newer line."""
        if log is not None and (match := log.last("lmcache-initialized")) is not None:
            return Version.find(match["version"])
        if (tagged := _tagged(image, self.lmcache_images)) is not None:
            return tagged
        if (pinned := self.router_pin(image)) is not None:
            return Version.parse(pinned["lmcache"])
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

    def router_pin(self, image: str) -> Mapping[str, str] | None:
        """What a released router image carries (`tag`, `lmcache`, `vllm`); None for others, `latest` and dev builds."""
        name, _, tag = image.partition("@")[0].rpartition(":")
        if not any(name.endswith(one) for one in self.router_images):
            return None
        return next((row for row in self.router_pins if row["tag"] == tag.removeprefix("v")), None)

    def wire_epoch(self, version: Version) -> Epoch | None:
        return next((epoch for epoch in self.wire if epoch.holds(version)), None)

    def wire_epochs(self, version: Version) -> frozenset[str]:
        """Names of all epochs the version may belong to: several for a lower bound, none for an unreleased version."""
        return frozenset(epoch.name for epoch in self.wire if epoch.may_hold(version))

    def hash_epoch(self, version: Version, algorithm: str = "builtin") -> Epoch | None:
        """`algorithm` is LMCache's pre_caching_hash_algorithm; some changes of the keys concern only some of them."""
        return next((epoch for epoch in self._hash(algorithm) if epoch.holds(version)), None)

    def hash_epochs(self, version: Version, algorithm: str = "builtin") -> frozenset[str]:
        """Names of all hash epochs the version may belong to."""
        if version.exact:
            epoch = self.hash_epoch(version, algorithm)
            return frozenset() if epoch is None else frozenset({epoch.name})
        return frozenset(epoch.name for epoch in self._hash(algorithm) if epoch.may_hold(version))

    def default_instance_id(self, version: Version) -> str:
        """constant, process or none, as in `InstanceId`; '' where the version was not read."""
        return next((row.default for row in self.instance_ids if row.holds(version)), "")

    def _hash(self, algorithm: str) -> tuple[Epoch, ...]:
        return self.hash if algorithm == "builtin" else (*self.hash_other_algorithms, *self.hash)


def may_satisfy(version: Version, bounds: str) -> bool | None:
    """As `satisfies`, but None where the version is known too roughly to say (a lower bound, or `v3.1` for 3.1.x)."""
    if version.exact and not version.coarse:
        return satisfies(version, bounds)
    major, minor = version.parts[:2]
    end = Version((major, minor + 1, 0, _STAGE["dev"], 0), "") if version.exact else None
    verdicts: set[bool | None] = set()
    for bound in bounds.split(","):
        sign, other = _bound(bound)
        beyond = end is not None and end <= other
        if sign == "==":
            verdicts.add(False if other < version or beyond else None)
        elif version >= other or beyond:
            verdicts.add((sign == ">=") is not beyond)
        else:
            verdicts.add(None)
    return False if False in verdicts else (None if None in verdicts else True)


def satisfies(version: Version, bounds: str) -> bool:
    """`bounds` is a comma-separated list of `>=V`, `<V`, `==V`, all of which must hold."""
    for bound in bounds.split(","):
        sign, other = _bound(bound)
        holds = {">=": version >= other, "<": version < other, "==": version == other}[sign]
        if not holds:
            return False
    return True


def _bound(text: str) -> tuple[str, Version]:
    match = re.fullmatch(r"\s*(>=|<|==)\s*(\S+)\s*", text)
    if match is None:
        raise ValueError(f"{text!r} is not a version bound")
    return match.group(1), Version.parse(match.group(2))


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
        vllm_needs=tuple(Need(**row) for row in data["vllm_needs"]),
        recommended_operator=Version.parse(data["recommended_operator"]),
        wire=_epochs(data["wire_epochs"]),
        hash=_epochs(data["hash_epochs"]),
        hash_other_algorithms=_epochs(data["hash_epochs_other_algorithms"]),
        instance_ids=tuple(
            InstanceId(Version.parse(row["first"]), Version.parse(row["last"]) if row["last"] else None, row["default"])
            for row in data["default_instance_ids"]
        ),
        fingerprints=tuple((row["pattern"], Version.parse(row["at_least"])) for row in data["fingerprints"]),
        router_pins=tuple({key: str(value) for key, value in row.items()} for row in data["router_pins"]),
        router_images=tuple(data["router_images"]),
        lmcache_images=tuple(data["lmcache_images"]),
        vllm_images=tuple(data["vllm_images"]),
        gated_models=tuple(data["gated_models"]),
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
