"""The reports for programs: JSON and YAML by their schema, JUnit and SARIF by what their readers require."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from jsonschema import Draft202012Validator

from checks.model import Evidence, Group, Reason, Stack, Status, Verdict, failed
from checks.report import json_, junit, sarif, yaml_
from checks.report.shape import plain
from checks.runner import diagnose
from checks.verdict import Severity
from tests.checks.build import snapshot, worker
from tests.checks.diagnoses import check, diagnosis, mixed, pod, result

SCHEMA = json.loads(files("checks").joinpath("data/report.schema.json").read_text("utf-8"))


def of_a_run(*messages: str) -> Any:
    """A diagnosis as the runner makes it."""
    seen = Evidence("log", "prod/w-0", "line", "2026-08-01T10:00:01Z")
    checks = [check(f"KV40{at}", failed(text, pod("w-0"), seen)) for at, text in enumerate(messages)]
    return diagnose(snapshot(worker("w-0", version_line="0.4.3")), checks)


@pytest.mark.parametrize("report", [json_.render, yaml_.render])
def test_json_and_yaml_fit_the_schema(report: Any) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    data = yaml.safe_load(report(of_a_run("a", "b"), "1.0"))
    Draft202012Validator(SCHEMA).validate(data)
    assert len(data["results"]) == 2


def test_the_schema_refuses_another_shape() -> None:
    data = plain(of_a_run("a"), "1.0")
    data["results"][0]["status"] = "bad"
    assert not Draft202012Validator(SCHEMA).is_valid(data)


def test_the_schema_knows_every_state_stack_and_reason() -> None:
    one = SCHEMA["$defs"]["result"]["properties"]
    assert set(one["status"]["enum"]) == set(Status)
    assert set(one["reason"]["enum"]) == {None, *Reason}
    assert set(SCHEMA["properties"]["target"]["properties"]["stack"]["enum"]) == set(Stack)
    assert set(SCHEMA["properties"]["summary"]["properties"]["verdict"]["enum"]) == set(Verdict)


def test_keys_are_sorted_and_the_time_stands_only_at_the_top() -> None:
    text = json_.render(of_a_run("a"), "1.0")
    data = json.loads(text)
    assert text == json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    assert text.count(data["generated_at"]) == 1


def test_counts_leave_out_what_is_suppressed_or_folded() -> None:
    summary = plain(mixed(), "1.0")["summary"]
    assert {key: summary[key] for key in ("pass", "warn", "fail", "skip", "error", "suppressed", "folded")} == {
        "pass": 1,
        "warn": 1,
        "fail": 2,
        "skip": 2,
        "error": 1,
        "suppressed": 1,
        "folded": 1,
    }


def test_what_is_suppressed_or_folded_stays_in_json_and_is_marked() -> None:
    by_id = {one["id"]: one for one in plain(mixed(), "1.0")["results"]}
    assert by_id["KV312"]["suppressed"] is True
    assert by_id["KV203"]["caused_by"] == "KV152"
    assert by_id["KV152"]["severity"] == "high"
    assert by_id["KV302"]["severity"] == "medium"
    assert by_id["KV152"]["docs"] == "docs/checks/KV152.md"


def test_results_below_the_wanted_severity_are_left_out_but_counted() -> None:
    data = plain(mixed(), "1.0", Severity.HIGH)
    assert [one["id"] for one in data["results"]] == ["KV152", "KV203", "KV704"]
    assert data["summary"] == plain(mixed(), "1.0")["summary"]
    assert junit.render(mixed(), "1.0", Severity.HIGH).count("<testcase") == 3
    assert len(run_of(sarif.render(mixed(), "1.0", Severity.HIGH))["results"]) == 3


def suites(text: str) -> dict[str, ElementTree.Element]:
    return {suite.attrib["name"]: suite for suite in ElementTree.fromstring(text).iter("testsuite")}


def test_junit_has_a_suite_a_section_and_a_case_a_check_and_target() -> None:
    found = suites(junit.render(mixed(), "1.0"))
    assert set(found) == {
        "Access and discovery",
        "Configuration and versions",
        "Registration",
        "LMCache initialisation and backends",
        "Routing decisions",
        "Trust in the metrics",
        "Other stacks",
    }
    cases = [case.attrib["name"] for case in found["LMCache initialisation and backends"].iter("testcase")]
    assert cases == ["title of KV302 [Pod w-0.prod/vllm]", "title of KV312 [Pod w-0.prod/vllm]"]


def test_junit_counts_failures_errors_and_skips() -> None:
    root = ElementTree.fromstring(junit.render(mixed(), "1.0"))
    assert {key: root.attrib[key] for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "9",
        "failures": "2",
        "errors": "1",
        "skipped": "4",
    }
    assert len(root.findall(".//failure")) == 2
    assert len(root.findall(".//error")) == 1
    assert len(root.findall(".//skipped")) == 4


def test_junit_says_why_a_case_was_skipped() -> None:
    root = ElementTree.fromstring(junit.render(mixed(), "1.0"))
    skipped = {case.attrib["classname"]: case.find("skipped") for case in root.iter("testcase")}
    messages = {name: one.attrib["message"] for name, one in skipped.items() if one is not None}
    assert messages["KV203"].startswith("caused by KV152")
    assert messages["KV312"].startswith("suppressed")
    assert messages["KV501"] == "no_traffic: 3 requests"


def test_a_warning_passes_junit_and_stands_in_the_output() -> None:
    root = ElementTree.fromstring(junit.render(mixed(), "1.0"))
    (case,) = [case for case in root.iter("testcase") if case.attrib["classname"] == "KV004"]
    assert case.find("failure") is None
    assert "restarted 3 times" in str(case.findtext("system-out"))


def test_junit_leaves_out_what_xml_cannot_hold() -> None:
    text = junit.render(diagnosis(result("KV401", Status.FAIL, Group.IDENTITY, message="a\x0bb\ufffe<&>")), "1.0")
    assert ElementTree.fromstring(text).find(".//failure").attrib["message"] == "ab<&>"  # type: ignore[union-attr]


def run_of(text: str) -> dict[str, Any]:
    log = json.loads(text)
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    return run


def test_sarif_has_what_the_standard_requires() -> None:
    run = run_of(sarif.render(mixed(), "1.0"))
    driver = run["tool"]["driver"]
    assert driver["name"] == "kvctl"
    for one in run["results"]:
        assert one["message"]["text"]
        assert one["level"] in ("error", "warning", "note", "none")
        assert driver["rules"][one["ruleIndex"]]["id"] == one["ruleId"]
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])


def test_sarif_holds_failures_warnings_and_errors_only() -> None:
    levels = {one["ruleId"]: one["level"] for one in run_of(sarif.render(mixed(), "1.0"))["results"]}
    assert levels == {
        "KV004": "warning",
        "KV152": "error",
        "KV203": "error",
        "KV302": "error",
        "KV312": "error",
        "KV704": "note",
    }


def test_sarif_locates_by_namespace_pod_and_container() -> None:
    found = {one["ruleId"]: one for one in run_of(sarif.render(mixed(), "1.0"))["results"]}
    names = {
        name: found[name]["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] for name in ("KV302", "KV152")
    }
    assert names == {"KV302": "prod/w-0/vllm", "KV152": "fleet"}


def test_sarif_marks_what_is_suppressed() -> None:
    found = {one["ruleId"]: one for one in run_of(sarif.render(mixed(), "1.0"))["results"]}
    assert found["KV312"]["suppressions"][0]["status"] == "accepted"
    assert "suppressions" not in found["KV302"]


def test_a_sarif_fingerprint_is_of_check_and_target_not_of_the_message() -> None:
    def fingerprint(message: str, name: str) -> str:
        one = result("KV401", Status.FAIL, Group.IDENTITY, pod(name), message=message)
        run = run_of(sarif.render(diagnosis(one), "1.0"))
        return str(run["results"][0]["partialFingerprints"])

    assert fingerprint("3 failures", "w-0") == fingerprint("4 failures", "w-0")
    assert fingerprint("3 failures", "w-0") != fingerprint("3 failures", "w-1")


@pytest.mark.parametrize("report", [json_.render, yaml_.render, junit.render, sarif.render])
def test_no_report_lets_a_terminal_escape_through(report: Any) -> None:
    text = report(of_a_run("\x1b]0;owned\x07 red \x1b[31m"), "1.0")
    assert "\x1b" not in text
    assert "u001b" not in text
    assert "red" in text
