"""Canonical metric names and every spelling of them, from data/metric_aliases.yaml. Pure data, read once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec
import yaml

Type = Literal["counter", "gauge", "histogram", "info"]
Owner = Literal[
    "engine",
    "lmcache",
    "controller",
    "lmcache-mp",
    "router",
    "epp",
    "llm-d",
    "dynamo",
    "sglang",
    "trtllm",
    "kvctl",
    "process",
]

HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")
COMMON_LABELS = ("model_name", "engine", "worker_id", "role", "pid")
"""Labels by which one member has several series of a name; the rest of what a Prometheus adds is dropped."""


class Alias(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of metric_aliases.yaml; `names` as exported, best first, without `_total`."""

    owner: Owner
    type: Type
    unit: str
    names: tuple[str, ...]
    note: str = ""
    labels: tuple[str, ...] = ()
    exact: bool = False
    canonical: str = ""

    @property
    def copied_by_routers(self) -> bool:
        """Routers export it again under the same name, with a `server` label: such series are not the engine's."""
        return self.owner in ("engine", "lmcache")

    @property
    def grows(self) -> bool:
        return self.type in ("counter", "histogram")

    def spellings(self, part: str = "") -> tuple[str, ...]:
        """Sample names in order of preference; `part` is one of HISTOGRAM_PARTS for a histogram, else ''."""
        return tuple(
            spelled
            for name in self.names
            for total in (("_total", "") if self.type == "counter" and not self.exact else ("",))
            for spelled in dict.fromkeys((f"{name}{total}{part}", f"{name}{total}{part}".replace(":", "_")))
        )

    @property
    def parts(self) -> tuple[str, ...]:
        """What is appended to the canonical name of its samples."""
        return HISTOGRAM_PARTS if self.type == "histogram" else ("",)


@dataclass(frozen=True, slots=True)
class Spelling:
    """What a sample name stands for."""

    alias: Alias
    part: str
    rank: int
    """Place among the spellings; 0 is preferred."""
    mangled: bool
    """`_` stands where the program writes `:`."""

    @property
    def canonical(self) -> str:
        """Name of the sample in `Metrics`."""
        return self.alias.canonical + self.part


class Aliases:
    """All aliases by canonical name, and all sample names. `Aliases.load()`."""

    def __init__(self, rows: Mapping[str, Alias]) -> None:
        self.by_name = rows
        self.by_spelling: dict[str, Spelling] = {}
        for alias in rows.values():
            for part in alias.parts:
                exported = {spelled for spelled in alias.spellings(part) if ":" in spelled}
                for rank, spelled in enumerate(alias.spellings(part)):
                    if spelled in self.by_spelling:
                        other = self.by_spelling[spelled].canonical
                        raise ValueError(f"metric_aliases.yaml: {spelled} belongs to {other} and {alias.canonical}")
                    mangled = bool(exported) and spelled not in exported
                    self.by_spelling[spelled] = Spelling(alias, part, rank, mangled)

    @staticmethod
    def load() -> Aliases:
        return _load()

    def __getitem__(self, canonical: str) -> Alias:
        return self.by_name[canonical]

    def __iter__(self) -> Iterator[Alias]:
        return iter(self.by_name.values())


@cache
def _load() -> Aliases:
    text = files("checks").joinpath("data/metric_aliases.yaml").read_text(encoding="utf-8")
    rows = {name: {**row, "canonical": name} for name, row in yaml.safe_load(text).items()}
    return Aliases(msgspec.convert(rows, dict[str, Alias]))
