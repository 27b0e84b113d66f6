"""The list of all checks: complete, unambiguous, and choosable by pattern."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest

import checks.catalogue
from checks.catalogue.registry import ALL, UnknownCheck, by_id, select
from checks.model import Check, Status
from tests.checks.diagnoses import check

FEW = (check("KV201"), check("KV202"), check("KV401"))


def test_every_check_of_every_catalogue_module_is_listed() -> None:
    found = {
        one.id
        for module in pkgutil.iter_modules(checks.catalogue.__path__)
        for one in vars(importlib.import_module(f"checks.catalogue.{module.name}")).get("CHECKS", ())
    }
    assert found == {one.id for one in ALL}


def test_ids_are_unique_sorted_and_well_formed() -> None:
    ids = [one.id for one in ALL]
    assert ids == sorted(set(ids))
    assert [id for id in ids if not re.fullmatch(r"KV\d{3}", id)] == []


def test_every_cause_is_a_check() -> None:
    known = {one.id for one in ALL}
    assert {(one.id, cause) for one in ALL for cause in one.caused_by if cause not in known} == set()


def test_causes_form_no_circle() -> None:
    causes = {one.id: one.caused_by for one in ALL}

    def reaches(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = list(causes[start])
        while ahead:
            name = ahead.pop()
            if name not in seen:
                seen.add(name)
                ahead += causes.get(name, ())
        return seen

    assert [id for id in causes if id in reaches(id)] == []


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.id)
def test_a_check_says_what_it_reads_how_it_judges_and_what_to_do(one: Check) -> None:
    assert one.title and one.reads and one.rule
    assert one.hint or one.worst is Status.PASS
    assert "\n" not in one.title + one.reads + one.hint


@pytest.mark.parametrize(
    ("include", "skip", "expected"),
    [
        ([], [], ["KV201", "KV202", "KV401"]),
        (["KV2*"], [], ["KV201", "KV202"]),
        (["kv2*,KV401"], [], ["KV201", "KV202", "KV401"]),
        (["KV2*", "KV401"], ["KV202"], ["KV201", "KV401"]),
        ([], ["KV2*"], ["KV401"]),
    ],
)
def test_checks_are_chosen_by_pattern(include: list[str], skip: list[str], expected: list[str]) -> None:
    assert [one.id for one in select(FEW, include, skip)] == expected


@pytest.mark.parametrize(("include", "skip"), [(["KV9*"], []), (["KV201,KV404"], []), ([], ["nonsense"])])
def test_a_pattern_that_matches_nothing_is_refused(include: list[str], skip: list[str]) -> None:
    with pytest.raises(UnknownCheck, match=r"no check matches (KV9\*|KV404|NONSENSE)"):
        select(FEW, include, skip)


def test_skipping_all_that_was_chosen_is_refused() -> None:
    with pytest.raises(UnknownCheck, match="no check is left"):
        select(FEW, ["KV2*"], ["KV*"])


def test_a_check_is_found_by_its_id_in_any_case() -> None:
    assert by_id("kv001").id == "KV001"
    with pytest.raises(UnknownCheck, match="KV000"):
        by_id("KV000")


def test_hints_say_what_to_do_in_one_style() -> None:
    """They follow `hint:` and `First:`, so they begin small unless with a name."""
    odd = [one.id for one in ALL if one.hint[:1].isupper() and one.hint.split()[0].rstrip(":,").istitle()]
    assert odd == []
