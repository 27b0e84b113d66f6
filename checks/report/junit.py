"""`-o junit`: a suite a section, a test case a check and target, for CI systems.

A failure is a failure, an error an error. A warning passes and stands in `system-out`. What is skipped, suppressed, or
folded under its cause is skipped, with the reason.
"""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from checks.model import Diagnosis, Group, Result, Status
from checks.report.grouping import at_least
from checks.report.shape import page
from checks.verdict import Severity

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(diagnosis: Diagnosis, version: str, least: Severity = Severity.NONE) -> str:
    root = Element("testsuites", name="kvctl validate")
    totals = [0, 0, 0, 0]
    shown = at_least(diagnosis.results, least)
    for group in Group:
        results = [one for one in shown if one.group is group]
        if not results:
            continue
        suite = SubElement(root, "testsuite", name=group.value, timestamp=diagnosis.generated_at.rstrip("Z"))
        properties = SubElement(suite, "properties")
        for name, value in (
            ("kvctl", version),
            ("stack", str(diagnosis.stack)),
            ("verdict", str(diagnosis.verdict)),
            ("why", diagnosis.why),
        ):
            SubElement(properties, "property", name=name, value=_text(value))
        outcomes = [_case(suite, one) for one in results]
        counted = [len(results), *(outcomes.count(name) for name in ("failure", "error", "skipped"))]
        _count(suite, counted)
        totals = [one + other for one, other in zip(totals, counted, strict=True)]
    _count(root, totals)
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _case(suite: Element, result: Result) -> str:
    """Adds the test case; returns what became of it."""
    case = SubElement(suite, "testcase", classname=result.id, name=_text(f"{result.title} [{result.target}]"), time="0")
    if result.status is not Status.SKIP and (result.suppressed or result.caused_by):
        why = "suppressed" if result.suppressed else f"caused by {result.caused_by}"
        SubElement(case, "skipped", message=_text(f"{why}: {result.message}"))
        return "skipped"
    if result.status is Status.SKIP:
        SubElement(case, "skipped", message=_text(f"{result.reason or 'skipped'}: {result.message}"))
        return "skipped"
    if result.status in (Status.FAIL, Status.ERROR):
        kind = "failure" if result.status is Status.FAIL else "error"
        shown = SubElement(case, kind, message=_text(result.message), type=str(result.reason or result.id))
        shown.text = _text(_story(result))
        return kind
    if result.status is Status.WARN:
        SubElement(case, "system-out").text = _text(f"warning: {result.message}\n{_story(result)}")
    return "passed"


def _story(result: Result) -> str:
    told = [f"{one.source} {one.where}: {one.text}" for one in result.evidence]
    return "\n".join([*told, *([f"hint: {result.hint}"] if result.hint else []), f"see {page(result.id)}"])


def _count(element: Element, counted: list[int]) -> None:
    for name, number in zip(("tests", "failures", "errors", "skipped"), counted, strict=True):
        element.set(name, str(number))


def _text(text: str) -> str:
    """Without what XML 1.0 cannot hold."""
    return _NOT_XML.sub("", text)
