"""Parameters of a workload as a user writes them: `NAME:key=value,...`, typed and bounded by a frozen dataclass.

A field made with `number` or `choice` says its bounds and its help; its default says its type (bool, int, float, a
range of two numbers, or text). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from math import isfinite
from typing import Any, TypeVar

from bench.workload.model import WorkloadError

Spec = TypeVar("Spec")
Value = bool | int | float | str | tuple[int, int] | tuple[float, float]
TEXT_LIMIT = 1024
"""Characters of a text parameter."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter as `kvctl bench workload list` shows it. `wanted`: its type and bounds in words."""

    name: str
    default: str
    wanted: str
    help: str


def number(default: Value, low: float, high: float, text: str) -> Any:
    """A field whose value (each end of a range) lies in `low` to `high`, both inclusive."""
    return field(default=default, metadata={"low": low, "high": high, "help": text})


def flag(default: bool, text: str) -> Any:
    """A field that is yes or no."""
    return field(default=default, metadata={"help": text})


def text(default: str, wanted: str, help: str) -> Any:
    """A field of free text; `wanted` says what it should be."""
    return field(default=default, metadata={"wanted": wanted, "help": help})


def split(written: str) -> tuple[str, dict[str, str]]:
    """`zipf:groups=8,zipf=1` -> the name and what is set.

    Raises:
        WorkloadError: something that is not key=value, or a key twice.
    """
    name, colon, rest = written.partition(":")
    found: dict[str, str] = {}
    for part in rest.split(",") if colon else ():
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise WorkloadError(f"--workload {written!r}: {part!r} is not key=value; write NAME:key=value,key=value")
        key = key.strip().replace("-", "_")
        if key in found:
            raise WorkloadError(f"--workload {written!r}: {key!r} is given twice")
        found[key] = value.strip()
    return name.strip(), found


def read(kind: type[Spec], name: str, given: Mapping[str, str]) -> Spec:
    """The parameters of workload `name`, defaults where nothing is given.

    Raises:
        WorkloadError: an unknown parameter, or a value of another type or out of bounds.
    """
    known = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]
    values = {}
    for key, value in given.items():
        if key not in known:
            raise WorkloadError(f"workload {name} has no parameter {key!r}: it has {', '.join(known)}")
        values[key] = _value(known[key], value, name)
    return kind(**values)


def parameters(kind: type[Any]) -> list[Parameter]:
    """All parameters of a workload."""
    return [
        Parameter(one.name, shown(one.default), _wanted(one), one.metadata["help"])  # type: ignore[arg-type]
        for one in fields(kind)
    ]


def shown(value: Value) -> str:
    """A value as it is written."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return f"{value[0]:g}-{value[1]:g}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _wanted(one: Field[Any]) -> str:
    default, limits = one.default, one.metadata
    if isinstance(default, bool):
        return "yes or no"
    if isinstance(default, str):
        return str(limits["wanted"])
    bounds = f"from {limits['low']:g} to {limits['high']:g}"
    if isinstance(default, tuple):
        whole = "whole " if isinstance(default[0], int) else ""
        return f"LOW-HIGH or one {whole}number, {bounds}"
    return f"a whole number {bounds}" if isinstance(default, int) else f"a number {bounds}"


def _value(one: Field[Any], written: str, name: str) -> Value:
    default: Value = one.default  # type: ignore[assignment]
    try:
        if isinstance(default, bool):
            return {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}[written.lower()]
        if isinstance(default, str):
            if len(written) > TEXT_LIMIT:
                raise ValueError
            return written
        if isinstance(default, tuple):
            low, dash, high = written.partition("-")
            ends = _number(default[0], low, one), _number(default[1], high if dash else low, one)
            if ends[0] > ends[1]:
                raise ValueError
            return ends
        value: Value = _number(default, written, one)
        return value
    except (ValueError, KeyError):
        raise WorkloadError(f"workload {name}: {one.name}: {_wanted(one)} wanted, got {written[:60]!r}") from None


def _number(like: float, written: str, one: Field[Any]) -> Any:
    value = int(written) if isinstance(like, int) else float(written)
    if not isfinite(value) or not one.metadata["low"] <= value <= one.metadata["high"]:
        raise ValueError
    return value
