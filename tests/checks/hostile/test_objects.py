"""Whatever stands in an object or an answer, collection ends well and no check fails by itself."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checks.collect import SourceError
from checks.model import Diagnosis, Reason, Stack, Status
from tests.checks.hostile.systems import MISSING, Key, Path, Script, cluster, places, printed, processes, with_at

ODD: list[Any] = [
    MISSING,
    None,
    "",
    "x",
    "9" * 5000,
    "http://[x",
    "http://h:99999/",
    7,
    -1.5,
    10**30,
    True,
    [],
    ["x"],
    [None],
    [7],
    [["x"]],
    {},
    {"x": "y"},
    {"name": 7},
    [{"name": None}],
]


@cache
def base(name: str) -> Script:
    return cluster() if name == "cluster" else processes()


@cache
def targets(name: str) -> list[tuple[Key, Path]]:
    """Every place in every JSON answer of a system; of many decisions the first."""
    return [
        (key, path)
        for key, value in base(name).answers.items()
        if not isinstance(value, str)
        for path in places(value)
        if path[0] != "decisions" or path[1:2] in ((), (0,))
    ]


def broken(data: st.DataObject, name: str) -> Script:
    """The system with one to three places changed."""
    script = base(name)
    for key, path in data.draw(st.lists(st.sampled_from(targets(name)), min_size=1, max_size=3)):
        odd = data.draw(st.sampled_from(ODD))
        try:
            script = script.changed(key, with_at(script.answers[key], path, odd))
        except (KeyError, IndexError, TypeError, AttributeError):  # an earlier change took the place away
            continue
    return script


def internal(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [(one.id, one.message) for one in diagnosis.results if one.reason is Reason.INTERNAL]


@pytest.mark.parametrize("name", ["cluster", "processes"])
def test_the_unbroken_system_is_judged_without_internal_errors(name: str) -> None:
    diagnosis = base(name).diagnosis()
    assert internal(diagnosis) == []
    assert sum(one.status is Status.PASS for one in diagnosis.results) >= 20


@pytest.mark.parametrize("name", ["cluster", "processes"])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_change_of_fields_makes_collection_raise_or_a_check_fail_by_itself(name: str, data: st.DataObject) -> None:
    script = broken(data, name)
    options = data.draw(st.sampled_from([{}, *({"stack": stack.value} for stack in Stack)]))
    try:
        diagnosis = script.diagnosis(**options)
    except SourceError:  # what answers is no Kubernetes at all
        return
    assert internal(diagnosis) == []
    assert all(printed(diagnosis))


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_result_of_prometheus_does(data: st.DataObject) -> None:
    script = cluster()
    path = data.draw(st.sampled_from([(), *places(script.prometheus)]))
    odd = data.draw(st.sampled_from(ODD if path else ODD[1:]))
    script.prometheus = with_at(script.prometheus, path, odd) if path else odd
    assert internal(script.diagnosis()) == []


@pytest.mark.parametrize("text", ["", "[", "null", "7", '"x"', "[" * 100_000, '{"items": 7}', "\x00", "<html>", "NaN"])
def test_any_text_may_stand_for_pods(text: str) -> None:
    diagnosis = cluster().changed(("kubernetes", "prod/pods"), text or None).diagnosis()
    assert internal(diagnosis) == []
    assert all(one.status is not Status.PASS for one in diagnosis.results if one.id == "KV003")


def test_a_field_that_was_left_out_is_told() -> None:
    script = cluster()
    pods = script.answers["kubernetes", "prod/pods"]
    snapshot = script.changed(("kubernetes", "prod/pods"), with_at(pods, ("items", 1, "spec", "volumes"), 7)).snapshot()
    (told,) = [one for one in snapshot.unread if "pods" in one.what]
    assert (told.what, told.reason) == ("a part of pods in prod", Reason.PARSE)
    assert "items[1].spec.volumes" in told.message
    assert len(snapshot.members) == 3
