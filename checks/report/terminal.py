"""The report for a person: the verdict and what to do first, then sections with a line a check, then the verdict again.

Fits 80 columns. On a terminal states are √ ‼ ×, elsewhere (and where the encoding lacks them) plain words. `text` shows
what passed as single lines and folds skips into one line a reason; `wide` shows every target with its evidence; `short`
only what did not pass; `quiet` the verdict alone. Texts come clean from the runner; nothing here is read as markup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from itertools import groupby

from rich.console import Console
from rich.text import Text

from checks.model import Diagnosis, Group, Reason, Result, Status, Verdict
from checks.report.grouping import Line, at_least, consequences, lines, names, shown_counts, skips
from checks.report.shape import page
from checks.verdict import Severity, counts, first_cause

_SIGNS = {Status.PASS: "√", Status.WARN: "‼", Status.FAIL: "×", Status.ERROR: "×", Status.SKIP: "-"}
_WORDS = {Status.PASS: "ok", Status.WARN: "warn", Status.FAIL: "FAIL", Status.ERROR: "err", Status.SKIP: "skip"}
_COLOURS = {
    Status.PASS: "green",
    Status.WARN: "yellow",
    Status.FAIL: "red",
    Status.ERROR: "magenta",
    Status.SKIP: "dim",
}
_VERDICTS = {
    Verdict.WORKING: "green",
    Verdict.DEGRADED: "yellow",
    Verdict.BROKEN: "red",
    Verdict.INCONCLUSIVE: "magenta",
}
_REASONS = {
    "no_data": "no data",
    "log_truncated": "the beginning of the log is gone",
    "log_level_hides": "hidden by the log level",
    "no_traffic": "too little traffic",
    "version_unknown": "version unknown",
    "disabled": "switched off",
    "gone": "gone during the run",
}
_MISSING = {
    Reason.NO_TRAFFIC: "First: send some traffic and run it again, or let it send a little itself with --probe.",
    Reason.LOG_TRUNCATED: "First: restart one worker and run it again within five minutes: the lines that tell are "
    "gone from the logs.",
}
"""What to do about an open verdict, by what was missing most."""
_UNKNOWN = "First: give it more to read: the cluster, or --router, --worker and --log for each process."
_ERRORS = {
    "rbac": "permission denied",
    "unreachable": "unreachable",
    "timeout": "no answer in time",
    "parse": "the answer cannot be read",
}
_SHOWN = 3
_LISTED = 6
_INDENT = 4
_NARROWEST = 20
"""Columns; a terminal that says it has none has 80."""
_AT_ONCE = 200
"""Lines that are printed together: printing has a price of its own."""


class Form(StrEnum):
    TEXT = "text"
    WIDE = "wide"
    SHORT = "short"
    QUIET = "quiet"


def show(diagnosis: Diagnosis, console: Console, form: Form = Form.TEXT, *, least: Severity = Severity.NONE) -> None:
    """Prints the report; `least` leaves out results of lower severity (they still count for the verdict)."""
    console.width = max(console.width or 80, _NARROWEST)
    out = _Printer(console, signs=console.is_terminal and console.encoding.lower().startswith("utf"))
    if form is not Form.QUIET:
        out.put(_heading(diagnosis))
    _verdict(out, diagnosis)
    if form is not Form.QUIET:
        listed = lines(at_least(diagnosis.results, least))
        many = _many_errors(listed) if form in (Form.TEXT, Form.SHORT) else {}
        hidden = {check for checks in many.values() for check in checks}
        _sections(out, [line for line in listed if not _error_of(line, hidden)], form, diagnosis.namespace)
        _errors(out, many)
        if form is Form.TEXT:
            _skips(out, listed)
        _ending(out, diagnosis)
    out.flush()


class _Printer:
    """Lines for a console, folded with a hanging indent and without trailing spaces."""

    def __init__(self, console: Console, *, signs: bool) -> None:
        self._console = console
        self._lines: list[Text] = []
        self._marks = _SIGNS if signs else _WORDS
        self.underline = "─" if signs else "-"

    def put(self, text: Text, indent: int = 0, first: Text | None = None) -> None:
        """`first` stands before the first line, within the indent."""
        room = max(self._console.width - indent, _NARROWEST)
        if "\n" not in text.plain and text.cell_len <= room:
            folded = [text]
        else:
            folded = [line for part in text.split() for line in part.wrap(self._console, room, overflow="fold")]
        for at, line in enumerate(folded or [text]):
            line.rstrip()
            lead = first if first is not None and at == 0 else Text(" " * indent)
            self._lines.append(lead + line if line.plain else Text(""))
        if len(self._lines) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        if self._lines:
            self._console.print(Text("\n").join(self._lines), highlight=False, soft_wrap=True)
            self._lines.clear()

    def marked(self, status: Status, text: Text, style: str) -> int:
        """A line behind its mark; returns the indent of what belongs to it."""
        width = max(len(mark) for mark in self._marks.values()) + 1
        self.put(text, width, Text.assemble((self._marks[status].ljust(width), style)))
        return width + _INDENT


def _heading(diagnosis: Diagnosis) -> Text:
    told = [f"stack {diagnosis.stack}"]
    told += [f"namespace {diagnosis.namespace}"] if diagnosis.namespace else []
    told += [f"context {diagnosis.context}"] if diagnosis.context else []
    told += [diagnosis.sampled] if diagnosis.sampled else []
    return Text(", ".join(told), style="dim")


def _sections(out: _Printer, listed: list[Line], form: Form, home: str) -> None:
    explained = consequences(listed)
    for group, members in groupby(listed, key=lambda line: line.group):
        visible = [line for line in members if _visible(line, form)]
        if not visible:
            continue
        out.put(Text(f"\n{group}\n{out.underline * len(group)}", style="bold"))
        for line in visible:
            style = "dim" if line.suppressed or line.caused_by else _COLOURS[line.status]
            indent = out.marked(line.status, _headline(line, form, home), style)
            for detail in _every_target(line) if form is Form.WIDE else _details(line, home):
                out.put(detail, indent)
            if line.id in explained and line.status in (Status.FAIL, Status.WARN) and not line.caused_by:
                out.put(Text("explains " + ", ".join(explained[line.id]), style="dim"), indent)


def _visible(line: Line, form: Form) -> bool:
    if form is Form.WIDE:
        return True
    if line.caused_by or line.status is Status.SKIP:
        return False
    return form is Form.TEXT or (line.status is not Status.PASS and not line.suppressed)


def _headline(line: Line, form: Form, home: str) -> Text:
    """`KV302 LMCache init failure: w-0: message`; of several targets `12 of 50 pods`, and details below."""
    told = [f"{line.id} {line.title}"]
    told += [line.share()] if line.share() else []
    messages = line.messages()
    alone = len(line.results) == 1
    if form is not Form.WIDE and len(messages) == 1 and (alone or line.status is Status.PASS):
        message, targets = messages[0]
        told += [who] if alone and (who := names(targets, home)) else []
        told += [message] if message.casefold() != line.title.casefold() else []
    text = Text(": ".join(told))
    text.stylize("bold", 0, len(line.id))
    if line.suppressed:
        text.append(" (suppressed)", style="dim")
    if line.caused_by:
        text.append(f" (caused by {line.caused_by})", style="dim")
    return text


def _details(line: Line, home: str) -> list[Text]:
    if line.status is Status.PASS or line.suppressed:
        return []
    found: list[Text] = []
    messages = line.messages()
    if len(line.results) > 1:
        for message, targets in messages[:_SHOWN]:
            who = names(targets, home)
            found.append(Text(f"{who}: {message}" if who else message))
        if len(messages) > _SHOWN:
            found.append(Text(f"and {len(messages) - _SHOWN} other messages; -o wide shows them", style="dim"))
    if evidence := next((one.evidence[0] for one in line.results if one.evidence), None):
        found.append(Text(f"{evidence.source} {evidence.where}: {evidence.text}", style="dim"))
    found += [Text(f"hint: {hint}") for hint in line.hints[:_SHOWN]]
    found.append(Text(f"see {page(line.id)}", style="dim"))
    return found


def _every_target(line: Line) -> list[Text]:
    found: list[Text] = []
    for one in line.results:
        found.append(Text(f"{one.target}: {one.message}" + (f" [{one.reason}]" if one.reason else "")))
        found += [
            Text(
                f"  {evidence.source} {evidence.where}: {' '.join((evidence.time, evidence.text)).strip()}", style="dim"
            )
            for evidence in one.evidence
        ]
    if line.status in (Status.FAIL, Status.WARN, Status.ERROR):
        found += [Text(f"hint: {hint}") for hint in line.hints]
        found.append(Text(f"see {page(line.id)}", style="dim"))
    return found


def _many_errors(listed: list[Line]) -> dict[Reason | None, list[str]]:
    """Checks that could not be evaluated for a reason that many share: what it is, access tells once."""
    found: dict[Reason | None, list[str]] = {}
    for line in listed:
        if line.status is Status.ERROR and line.group is not Group.ACCESS:
            for reason in dict.fromkeys(one.reason for one in line.results):
                found.setdefault(reason, []).append(line.id)
    return {reason: checks for reason, checks in found.items() if len(checks) > _SHOWN}


def _error_of(line: Line, hidden: set[str]) -> bool:
    return line.status is Status.ERROR and line.group is not Group.ACCESS and line.id in hidden


def _errors(out: _Printer, many: dict[Reason | None, list[str]]) -> None:
    if many:
        out.put(Text(""))
    for reason, checks in many.items():
        told = f"{len(checks)} checks could not be evaluated, {_ERRORS.get(str(reason), str(reason))}: {_some(checks)}"
        out.marked(Status.ERROR, Text(told), _COLOURS[Status.ERROR])


def _some(checks: list[str]) -> str:
    more = f" and {len(checks) - _LISTED} more" if len(checks) > _LISTED else ""
    return ", ".join(checks[:_LISTED]) + more


def _skips(out: _Printer, listed: list[Line]) -> None:
    """A line for each reason that somebody can do something about; last, how many checks are for other systems."""
    skipped = skips(listed)
    others = skipped.pop(Reason.NOT_APPLICABLE, [])
    if skipped or others:
        out.put(Text(""))
    for reason, checks in skipped.items():
        told = f"{len(checks)} skipped, {_REASONS.get(str(reason), str(reason))}: {_some(checks)}"
        out.marked(Status.SKIP, Text(told, style="dim"), "dim")
    if others:
        told = f"{len(others)} skipped, not for this system (-o wide lists them)"
        out.marked(Status.SKIP, Text(told, style="dim"), "dim")


def _verdict(out: _Printer, diagnosis: Diagnosis) -> None:
    rest = Text(f" (confidence {diagnosis.confidence}). {diagnosis.why.rstrip('.')}.")
    out.put(Text.assemble(_word(diagnosis), rest))
    if todo := next_step(diagnosis):
        out.put(Text(todo))
    if diagnosis.cut_short:
        out.put(Text(f"The run ended early ({diagnosis.cut_short}): what was not read is not judged.", style="yellow"))


def _ending(out: _Printer, diagnosis: Diagnosis) -> None:
    """The verdict again, where a long report has scrolled its first lines away."""
    out.put(Text(""))
    first = _first(diagnosis)
    told = f": {_tally(diagnosis.results)}"
    told += "" if first is None else f". {_lead(diagnosis)}: {first.id} ({page(first.id)})"
    out.put(Text.assemble(_word(diagnosis), told))


def _lead(diagnosis: Diagnosis) -> str:
    return "Worth a look" if diagnosis.verdict is Verdict.WORKING else "First"


def _word(diagnosis: Diagnosis) -> Text:
    return Text(str(diagnosis.verdict).upper(), style=f"bold {_VERDICTS[diagnosis.verdict]}")


def next_step(diagnosis: Diagnosis) -> str:
    """What to do first; '' if nothing is to be done."""
    cause = _first(diagnosis)
    if diagnosis.verdict is not Verdict.INCONCLUSIVE or cause is not None:
        return "" if cause is None else f"{_lead(diagnosis)}: {_brief(cause)} ({page(cause.id)})."
    missing = Counter(one.reason for one in diagnosis.results if counts(one) and one.reason in _MISSING)
    most = max(_MISSING, key=lambda reason: missing[reason])
    return _MISSING[most] if missing[most] else _UNKNOWN


def _first(diagnosis: Diagnosis) -> Result | None:
    """What to look at first: the worst of what was found; where nothing can be said, what hid it."""
    if diagnosis.verdict is not Verdict.INCONCLUSIVE:
        return first_cause(diagnosis.results)
    unread = next((one for one in diagnosis.results if one.status is Status.ERROR and one.hint), None)
    return unread or first_cause(one for one in diagnosis.results if one.status is Status.FAIL)


def _brief(result: Result) -> str:
    """The first line of a hint."""
    return result.hint.strip().split("\n", 1)[0].rstrip(".:") or f"see what {result.id} found"


def _tally(results: Iterable[Result]) -> str:
    counted = shown_counts(results)
    told = [
        f"{counted['fail']} failed",
        f"{counted['warn']} warned",
        f"{counted['pass']} passed",
        f"{counted['skip']} skipped",
        f"{counted['error']} could not be evaluated",
    ]
    told += [f"{counted['suppressed']} suppressed"] if counted["suppressed"] else []
    told += [f"{counted['folded']} folded under their cause"] if counted["folded"] else []
    return ", ".join(told)
