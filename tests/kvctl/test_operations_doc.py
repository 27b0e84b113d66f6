"""docs/operations.md names every timeout and limit of the data plane, each with its true default and its option."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from kvctl.quantities import size
from kvctl.serve import serve
from router.admission import AdmissionSettings
from router.proxy import bodies, downstream, sockets
from router.proxy.interface import Limits, Timeouts
from router.server import ServeSettings

TEXT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
SECTION = TEXT.partition("\n## Timeouts and limits\n")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if line.startswith("|")]
BY_KEY = {row[1].strip("`"): row for row in ROWS if len(row) == 4 and row[1].startswith("`")}
FIXED = {row[0]: row[1] for row in ROWS if len(row) == 3}
_UNITS = {"": 1, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20}

FIELDS = {
    f"{group}.{field.name}": field.default
    for group, kind in (("timeouts", Timeouts), ("limits", Limits))
    for field in dataclasses.fields(kind)
}
OTHERS = {
    "dispatch.admission.timeout_s": AdmissionSettings().timeout_s,
    "drain_timeout": ServeSettings().drain_timeout,
}


def number(text: str) -> float:
    """`64 MiB` -> 67108864"""
    match = re.fullmatch(r"([0-9.,]+) ?([A-Za-z]*)", text)
    assert match is not None, text
    return float(match[1].replace(",", "")) * _UNITS[match[2]]


def test_every_timeout_and_limit_has_a_row_and_there_are_no_others() -> None:
    assert BY_KEY.keys() == FIELDS.keys() | OTHERS.keys()


@pytest.mark.parametrize("key", sorted(FIELDS | OTHERS))
def test_the_default_is_the_true_one(key: str) -> None:
    assert number(BY_KEY[key][2]) == (FIELDS | OTHERS)[key]


@pytest.mark.parametrize("key", sorted(FIELDS | OTHERS))
def test_the_option_exists_and_has_the_same_default(key: str) -> None:
    option = BY_KEY[key][0]
    if option == "(fixed)":
        assert key in ("limits.write_high_water", "limits.idle_per_endpoint")
        return
    default = inspect.signature(serve).parameters[option.strip("`-").replace("-", "_")].default
    assert (size(default, option) if isinstance(default, str) else default) == (FIELDS | OTHERS)[key]


@pytest.mark.parametrize("key", sorted(FIELDS | OTHERS))
def test_every_row_says_why(key: str) -> None:
    assert len(BY_KEY[key][3]) > 20


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("Pipelined bytes kept", downstream._PIPELINE_BYTES),
        ("Empty lines", downstream._MOST_EMPTY_LINES),
        ("Line of a chunk's size", bodies._LONGEST_LINE),
        ("Trailers", bodies._LONGEST_TRAILERS),
        ("Time for a refused client", downstream._LINGER),
    ],
)
def test_what_is_fixed_has_its_true_value(what: str, value: float) -> None:
    (found,) = [shown for name, shown in FIXED.items() if name.startswith(what)]
    assert number(found) == value


def test_the_tcp_keep_alive_is_the_true_one() -> None:
    idle, interval, probes = sockets._IDLE, sockets._INTERVAL, sockets._PROBES
    assert FIXED["TCP keep-alive"] == f"{idle} s, then {probes} probes {interval} s apart"


def test_a_body_gets_a_second_more_for_what_the_row_says() -> None:
    assert f"one second more for each {downstream._BODY_RATE >> 10} KiB" in BY_KEY["timeouts.request"][3]
