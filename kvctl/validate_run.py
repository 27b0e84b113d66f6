"""The course of `kvctl validate`: request, collection, diagnosis, report, exit code; again and again with --wait.

Reads the system through `checks.collect`; writes the report to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from checks.catalogue.registry import ALL, UnknownCheck, ids, select
from checks.collect import collect
from checks.evidence import shown
from checks.model import Check, Diagnosis, Stack, Status
from checks.probe.options import ProbeError, ProbeOptions
from checks.probe.session import probed
from checks.report import json_, junit, sarif, yaml_
from checks.report.terminal import Form, show
from checks.request import CollectRequest, LogFile, LogPart, RequestError, Scrape
from checks.runner import Progress, diagnose
from checks.snapshot import Expectations
from checks.sources import files
from checks.sources.connection import Interrupted, SourceError
from checks.sources.deadline import SIGNALS
from checks.sources.recording import RecordingError, must_be_unused
from checks.sources.tape import Tape
from checks.suppress import SuppressionError, Suppressions, parse, read
from checks.verdict import Severity, exit_code
from kvctl import __version__
from kvctl.embedded import Plan, alone, embedded
from kvctl.errors import UNREACHABLE, Problem

_SIGNALLED = {why: 128 + number for number, why in SIGNALS.items()}
"""Exit codes: 130 after Ctrl-C, 143 after SIGTERM."""
AGAIN_S = 10.0
"""Between two tries of --wait."""

_MACHINE: dict[str, Callable[[Diagnosis, str, Severity], str]] = {
    "json": json_.render,
    "yaml": yaml_.render,
    "junit": junit.render,
    "sarif": sarif.render,
}


@dataclass(frozen=True, slots=True)
class Report:
    """How the result is shown and what it means for the exit code."""

    output: str
    """text · wide · short · json · yaml · junit · sarif"""
    fail_on: str
    strict: bool
    least: str
    no_color: bool
    quiet: bool


def request_of(
    *, stack: str, scrape: str, logs: str, log_files: tuple[str, ...], strategy: str, **same: Any
) -> CollectRequest:
    """The options as a CollectRequest. Raises Problem."""
    try:
        return CollectRequest(
            stack=None if stack == "auto" else Stack(stack),
            scrape=Scrape(scrape),
            logs=_parts(logs),
            log_files=tuple(LogFile.parse(one) for one in log_files),
            expectations=Expectations(strategy=strategy),
            **same,
        )
    except RequestError as error:
        raise Problem(str(error)) from None


def _parts(text: str) -> tuple[LogPart, ...]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    known = [part.value for part in LogPart]
    if names == ["none"]:
        return ()
    if wrong := [name for name in names if name not in known]:
        raise Problem(f"--logs: {wrong[0]!r} is none of {', '.join(known)}, none")
    if not names:
        raise Problem(f"--logs: give some of {', '.join(known)}, or none")
    return tuple(LogPart(name) for name in dict.fromkeys(names))


def probe_of(
    *, wanted: bool, endpoint: str, requests: int, heartbeat: bool, api_key: str, yes: bool, force: bool
) -> ProbeOptions | None:
    """The options of the probe as ProbeOptions; None without --probe. Raises Problem."""
    if not wanted:
        for flag, given in (("--probe-endpoint", endpoint), ("--probe-heartbeat", heartbeat), ("--probe-force", force)):
            if given:
                raise Problem(f"{flag} says how to probe: add --probe")
        return None
    try:
        return ProbeOptions(
            endpoint=endpoint, requests=requests, heartbeat=heartbeat, api_key=api_key, yes=yes, force=force
        )
    except ProbeError as error:
        raise Problem(str(error)) from None


def check_sources(request: CollectRequest, *, record: Path | None, replay: Path | None, wait_s: float | None) -> None:
    """Raises Problem where options exclude each other or cannot mean anything."""
    for name, urls in (("--router", request.routers), ("--worker", request.workers), ("--admin", (request.admin,))):
        for url in urls:
            if url and not url.startswith(("http://", "https://")):
                raise Problem(f"{name} is a URL such as http://10.0.0.1:8000, not {url!r}")
    for one in request.log_files:
        if why := files.why_no_log(Path(one.path)):
            raise Problem(f"--log {one.role}: {why}")
    direct = not request.cluster
    for flag, given in (
        ("--namespace", request.namespace),
        ("--all-namespaces", request.all_namespaces),
        ("--context", request.context),
        ("--kubeconfig", request.kubeconfig),
        ("--router-namespace", request.router_namespace),
        ("--router-selector", request.router_selector),
        ("--worker-selector", request.worker_selector),
        ("--router-container", request.router_container),
        ("--worker-container", request.worker_container),
        ("--in-cluster", request.in_cluster),
    ):
        if direct and given:
            raise Problem(
                f"{flag} looks into a cluster; --router, --worker, --admin and --log do without: leave one out"
            )
    if request.prometheus_auth not in ("", "none") and request.prometheus in ("", "auto", "none"):
        raise Problem("--prometheus-auth says how to ask a Prometheus by its URL: add --prometheus URL")
    if request.namespace and request.all_namespaces:
        raise Problem("--namespace and --all-namespaces exclude each other")
    if replay is not None and (record is not None or wait_s is not None or direct):
        other = "--record" if record is not None else "--wait" if wait_s is not None else "--router, --worker and --log"
        raise Problem(f"--replay judges a recording and contacts nothing: leave out {other}")
    if record is not None and wait_s is not None:
        raise Problem("--record keeps one run: leave out --wait")
    if record is not None:
        try:
            must_be_unused(record)
        except RecordingError as error:
            raise Problem(str(error)) from None


def run(
    request: CollectRequest,
    report: Report,
    *,
    include: tuple[str, ...],
    skip: tuple[str, ...],
    suppress: tuple[str, ...],
    suppress_file: Path | None,
    record: Path | None,
    replay: Path | None,
    wait_s: float | None,
    probe: ProbeOptions | None = None,
    plan: Plan | None = None,
) -> int:
    """Prints the report of the last try; returns the exit code. `plan`: of a system to start first. Raises Problem."""
    if plan is not None:
        alone(request, replay=replay is not None, wait=wait_s is not None)
    check_sources(request, record=record, replay=replay, wait_s=wait_s)
    if probe is not None and wait_s is not None:
        raise Problem("--probe would send its requests in every try: leave out --wait")
    try:
        if include and not any(part.strip() for text in include for part in text.split(",")):
            raise Problem("--checks names no check; such as KV2*,KV401")
        checks = select(ALL, include, skip)
        rules = parse((*(read(suppress_file) if suppress_file else ()), *suppress), ids())
    except (UnknownCheck, SuppressionError) as error:
        raise Problem(str(error)) from None
    until = None if wait_s is None else time.monotonic() + wait_s
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_leaving_on_sigterm())
        if plan is not None:
            request = stack.enter_context(embedded(plan, request, None if report.quiet else errors))
        once = partial(_once, request, checks, rules, record, replay, probe, errors, quiet=report.quiet)
        return _tries(once, request, report, checks, until, errors)


def _tries(
    once: Callable[[], Diagnosis],
    request: CollectRequest,
    report: Report,
    checks: tuple[Check, ...],
    until: float | None,
    errors: Console,
) -> int:
    """One try, or as many as fit before `until` (monotonic seconds), until the exit code is 0; prints the last."""
    while True:
        left = 0.0 if until is None else max(until - time.monotonic(), 0.0)
        try:
            diagnosis = once()
        except Interrupted as error:
            raise Problem(str(error), code=_SIGNALLED[error.why]) from None
        except SourceError as error:
            if not left:
                raise Problem(_with_way_out(shown(str(error)), request), code=UNREACHABLE) from None
            _again(errors, str(error), left, quiet=report.quiet)
            continue
        except (RecordingError, RequestError) as error:
            raise Problem(str(error)) from None
        code = _code(diagnosis, checks, report)
        if not code or not left or code in _SIGNALLED.values():
            _print(diagnosis, report)
            return code
        _again(errors, f"{diagnosis.verdict}: {diagnosis.why}", left, quiet=report.quiet)


def _once(
    request: CollectRequest,
    checks: tuple[Check, ...],
    rules: Suppressions,
    record: Path | None,
    replay: Path | None,
    probe: ProbeOptions | None,
    errors: Console,
    *,
    quiet: bool,
) -> Diagnosis:
    with _tape(request, record, replay) as tape, _progress(errors, quiet=quiet) as progress:
        if tape.replaying:
            asked, request = request, CollectRequest.of_options(tape.options)
            if asked.expectations != Expectations():
                request = replace(request, expectations=asked.expectations)
        snapshot = probed(collect(request, tape, progress), request, tape, probe, progress)
        known = rules.annotated(snapshot, ids())
        diagnosis = diagnose(snapshot, checks, suppressions=known, progress=progress)
    for one in known.unknown if not quiet else ():
        errors.print(f"kvctl: an annotation ignores {shown(one)}, which is no check", markup=False)
    return diagnosis


def _tape(request: CollectRequest, record: Path | None, replay: Path | None) -> Tape:
    if replay is not None:
        return Tape.replay(replay)
    return Tape.live() if record is None else Tape.record(record, options=request.options(), version=__version__)


@contextlib.contextmanager
def _progress(errors: Console, *, quiet: bool) -> Iterator[Progress]:
    """A line on stderr that says what is going on; nothing unless that is a terminal."""
    if quiet or not errors.is_terminal:
        yield lambda what, done, total: None
        return
    with errors.status("looking for routers and workers") as line:

        def told(what: str, done: int, total: int) -> None:
            line.update(f"{what}: {done} of {total}" if total else what)

        yield told


@contextlib.contextmanager
def _leaving_on_sigterm() -> Iterator[None]:
    """SIGTERM unwinds what is open (an unfinished recording, an embedded system) before the process ends with 143."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _with_way_out(message: str, request: CollectRequest) -> str:
    """Why nothing could be looked at, and what else to try."""
    if "--" in message:
        return message
    other = "another URL" if not request.cluster else "another --context or --kubeconfig, or --router URL --worker URL"
    context = f" (context {request.context})" if request.context else ""
    return f"{message.rstrip('.')}{context}; try {other}"


def _again(errors: Console, why: str, left: float, *, quiet: bool) -> None:
    if not quiet:
        errors.print(f"{shown(why)}; trying again for {left:.0f} s", markup=False)
    time.sleep(min(AGAIN_S, left))


def _code(diagnosis: Diagnosis, checks: tuple[Check, ...], report: Report) -> int:
    if (code := _SIGNALLED.get(diagnosis.cut_short)) is not None:
        return code
    fail_on = Status(report.fail_on)
    return exit_code(diagnosis.results, checks, diagnosis.verdict, fail_on=fail_on, strict=report.strict)


def _print(diagnosis: Diagnosis, report: Report) -> None:
    """A reader that went away (`| head`) changes nothing about the result. Raises Problem where writing fails."""
    if sys.stdout is None:  # closed before the start
        return
    machine = _MACHINE.get(report.output)
    try:
        if machine is not None:
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(encoding="utf-8")
            sys.stdout.write(machine(diagnosis, __version__, Severity(report.least)))
        else:
            form = Form.QUIET if report.quiet else Form(report.output)
            show(diagnosis, Console(no_color=report.no_color or None), form, least=Severity(report.least))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise Problem(f"the report cannot be written: {error.strerror}", code=UNREACHABLE) from None
