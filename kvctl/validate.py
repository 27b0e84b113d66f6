"""`kvctl validate`: parse, wire, render. What it reads is `checks.collect`, what it judges the checks' catalogue."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kvctl.errors import Problem
from kvctl.options import ConfigFile, option

_WHERE = "Cluster"
_DIRECT = "Without a cluster"
_SOURCES = "What is read"
_CHECKS = "Which checks"
_PROBE = "Active probe"
_OUTPUT = "Report and exit code"


class StackName(StrEnum):
    AUTO = "auto"
    HYPERPOD = "hyperpod"
    PRODUCTION_STACK = "production-stack"
    LLM_D = "llm-d"
    DYNAMO = "dynamo"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    KVCTL = "kvctl"


class ScrapeName(StrEnum):
    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Output(StrEnum):
    TEXT = "text"
    WIDE = "wide"
    SHORT = "short"
    JSON = "json"
    YAML = "yaml"
    JUNIT = "junit"
    SARIF = "sarif"


class FailOn(StrEnum):
    FAIL = "fail"
    WARN = "warn"


class Least(StrEnum):
    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


def validate(
    namespace: Annotated[
        str,
        option("--namespace", "-n", rich_help_panel=_WHERE, help="Namespace of the workers. Default: the context's."),
    ] = "",
    all_namespaces: Annotated[
        bool, option("--all-namespaces", "-A", rich_help_panel=_WHERE, help="Look in every namespace.")
    ] = False,
    context: Annotated[str, option("--context", rich_help_panel=_WHERE, help="Context of the kubeconfig.")] = "",
    kubeconfig: Annotated[
        str, option("--kubeconfig", rich_help_panel=_WHERE, help="Default: $KUBECONFIG, then ~/.kube/config.")
    ] = "",
    in_cluster: Annotated[
        bool, option("--in-cluster", rich_help_panel=_WHERE, help="Use the service account of this pod.")
    ] = False,
    stack: Annotated[
        StackName, option("--stack", rich_help_panel=_WHERE, help="Whose system it is; auto finds out.")
    ] = StackName.AUTO,
    router_namespace: Annotated[
        str,
        option(
            "--router-namespace",
            rich_help_panel=_WHERE,
            help="Default: the workers', then hyperpod-inference-system where HyperPod is installed.",
        ),
    ] = "",
    router_selector: Annotated[
        str, option("--router-selector", rich_help_panel=_WHERE, metavar="LABELS", help="Which pods are routers.")
    ] = "",
    worker_selector: Annotated[
        str, option("--worker-selector", rich_help_panel=_WHERE, metavar="LABELS", help="Which pods are workers.")
    ] = "",
    router_container: Annotated[
        str, option("--router-container", rich_help_panel=_WHERE, help="Container of a router pod to read.")
    ] = "",
    worker_container: Annotated[
        str, option("--worker-container", rich_help_panel=_WHERE, help="Container of a worker pod to read.")
    ] = "",
    router: Annotated[
        list[str] | None,
        option("--router", rich_help_panel=_DIRECT, metavar="URL", help="A router's base URL. Repeatable."),
    ] = None,
    worker: Annotated[
        list[str] | None,
        option("--worker", rich_help_panel=_DIRECT, metavar="URL", help="A worker's base URL. Repeatable."),
    ] = None,
    admin: Annotated[
        str,
        option("--admin", rich_help_panel=_DIRECT, metavar="URL", help="Admin port, where the router is kvctl's."),
    ] = "",
    log: Annotated[
        list[str] | None,
        option(
            "--log",
            rich_help_panel=_DIRECT,
            metavar="ROLE=FILE",
            help="A log file; ROLE is router, worker or worker:NAME. Repeatable.",
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        option("--replay", rich_help_panel=_DIRECT, metavar="DIR", help="Judge a recording; nothing is contacted."),
    ] = None,
    sim: Annotated[
        int,
        option(
            "--sim",
            min=0,
            max=16,
            rich_help_panel=_DIRECT,
            metavar="N",
            help="Start N simulated engines and a router, look at them, and clean up: a first look.",
        ),
    ] = 0,
    fault: Annotated[
        list[str] | None,
        option(
            "--fault",
            rich_help_panel=_DIRECT,
            metavar="NAME[@K]",
            help="With --sim: what is wrong with every engine, or engine K (from 0): init-failure, l2-down, "
            "heartbeat-lost, none-hash-differs, registration-failed, no-lmcache-metrics; or with the system: "
            "no-kv-events, router-random. Repeatable.",
        ),
    ] = None,
    log_style: Annotated[
        str,
        option(
            "--log-style",
            rich_help_panel=_DIRECT,
            metavar="STYLE",
            help="With --sim: whose logs it writes: lmcache-0.3.14, lmcache-0.4.3, lmcache-0.5.6 or hyperpod.",
        ),
    ] = "",
    record: Annotated[
        Path | None,
        option(
            "--record",
            rich_help_panel=_SOURCES,
            metavar="DIR",
            help="Keep every answer, redacted, in a new folder: to replay it, or to send with a report.",
        ),
    ] = None,
    prometheus: Annotated[
        str, option("--prometheus", rich_help_panel=_SOURCES, help="A URL, auto (found in the cluster), or none.")
    ] = "auto",
    prometheus_auth: Annotated[
        str,
        option("--prometheus-auth", rich_help_panel=_SOURCES, help="sigv4:REGION, bearer:FILE, or none."),
    ] = "none",
    window: Annotated[
        str, option("--window", rich_help_panel=_SOURCES, help="Span of the metrics that are judged.")
    ] = "15m",
    scrape: Annotated[
        ScrapeName,
        option("--scrape", rich_help_panel=_SOURCES, help="Read /metrics pages; auto: where Prometheus is not."),
    ] = ScrapeName.AUTO,
    logs: Annotated[
        str, option("--logs", rich_help_panel=_SOURCES, help="Parts of each log to read, by commas; none reads no log.")
    ] = "head,tail,previous",
    since: Annotated[str, option("--since", rich_help_panel=_SOURCES, help="How far back the tail of a log goes.")] = (
        "1h"
    ),
    log_limit_bytes: Annotated[
        str, option("--log-limit-bytes", rich_help_panel=_SOURCES, help="Limit of each part of each log.")
    ] = "4Mi",
    max_log_pods: Annotated[
        int,
        option("--max-log-pods", min=1, rich_help_panel=_SOURCES, help="Logs of at most so many ready workers."),
    ] = 50,
    concurrency: Annotated[
        int, option("--concurrency", min=1, max=64, rich_help_panel=_SOURCES, help="Requests under way at a time.")
    ] = 8,
    timeout: Annotated[
        str, option("--timeout", rich_help_panel=_SOURCES, help="Of the whole reading; what is there is then judged.")
    ] = "5m",
    checks: Annotated[
        list[str] | None,
        option("--checks", rich_help_panel=_CHECKS, metavar="IDS", help="Only these: KV2*,KV401. Repeatable."),
    ] = None,
    skip: Annotated[
        list[str] | None,
        option("--skip", rich_help_panel=_CHECKS, metavar="IDS", help="Not these: KV6*. Repeatable."),
    ] = None,
    suppress: Annotated[
        list[str] | None,
        option(
            "--suppress",
            rich_help_panel=_CHECKS,
            metavar="RULE",
            help="Do not count a finding: KV313, or 'KV312=Pod engine-*.prod'. Repeatable.",
        ),
    ] = None,
    suppress_file: Annotated[
        Path | None,
        option("--suppress-file", rich_help_panel=_CHECKS, help="Such rules, one a line."),
    ] = None,
    expect_strategy: Annotated[
        str,
        option("--expect-strategy", rich_help_panel=_CHECKS, help="Fail KV120 unless this routing strategy runs."),
    ] = "",
    list_checks: Annotated[
        bool, option("--list-checks", rich_help_panel=_CHECKS, help="List all checks (-o json for programs) and end.")
    ] = False,
    explain: Annotated[
        str | None,
        option("--explain", rich_help_panel=_CHECKS, metavar="ID", help="Explain one check and end."),
    ] = None,
    probe: Annotated[
        bool,
        option(
            "--probe",
            rich_help_panel=_PROBE,
            help="Also send a few requests of kvctl's own (at most 24, one at a time, one token each) and see where "
            "the router takes them.",
        ),
    ] = False,
    probe_endpoint: Annotated[
        str,
        option(
            "--probe-endpoint",
            rich_help_panel=_PROBE,
            metavar="PATH|URL",
            help="Where to send them: a path, or the URL of a gateway. Default: the router, /v1/completions.",
        ),
    ] = "",
    probe_requests: Annotated[
        int, option("--probe-requests", min=6, max=24, rich_help_panel=_PROBE, help="Requests at most.")
    ] = 24,
    probe_heartbeat: Annotated[
        bool,
        option(
            "--probe-heartbeat",
            rich_help_panel=_PROBE,
            help="Also wait until LMCache's controller would have dropped silent workers (45 s), and ask again.",
        ),
    ] = False,
    probe_api_key: Annotated[
        str,
        option(
            "--probe-api-key",
            rich_help_panel=_PROBE,
            help="Bearer key for the requests; better given by its variable.",
            show_default=False,
        ),
    ] = "",
    yes: Annotated[
        bool,
        option(
            "--yes",
            rich_help_panel=_PROBE,
            help="Send although requests wait or a KV cache is 90 % full.",
        ),
    ] = False,
    probe_force: Annotated[
        bool, option("--probe-force", rich_help_panel=_PROBE, help="Send without looking at the load.")
    ] = False,
    output: Annotated[Output, option("--output", "-o", rich_help_panel=_OUTPUT, help="Form of the report.")] = (
        Output.TEXT
    ),
    fail_on: Annotated[
        FailOn, option("--fail-on", rich_help_panel=_OUTPUT, help="Exit code 1 from this state on.")
    ] = FailOn.FAIL,
    strict: Annotated[
        bool,
        option(
            "--strict", rich_help_panel=_OUTPUT, help="Exit code 4 where the verdict, or a required check, is open."
        ),
    ] = False,
    min_severity: Annotated[
        Least,
        option("--min-severity", rich_help_panel=_OUTPUT, help="Show less: only results of this severity and above."),
    ] = Least.NONE,
    wait: Annotated[
        str | None,
        option("--wait", rich_help_panel=_OUTPUT, metavar="TIME", help="Try again until the exit code is 0: 10m."),
    ] = None,
    no_color: Annotated[
        bool, option("--no-color", rich_help_panel=_OUTPUT, help="No colours; also by the NO_COLOR variable.")
    ] = False,
    quiet: Annotated[
        bool, option("--quiet", "-q", rich_help_panel=_OUTPUT, help="Only the verdict; no progress.")
    ] = False,
    config: ConfigFile = None,
) -> None:
    """Does KV-aware routing really work here, and if not, why? Reads only (--probe sends): no writes, Secrets or exec.

    Verdict: working (proven), degraded, broken, or inconclusive (nothing proves either).

    Exit codes: 0 nothing at or above --fail-on; 1 a finding; 2 usage; 3 could not be evaluated (no cluster, denied);
    4 with --strict: inconclusive; 130 interrupted (143 by SIGTERM), what was read by then is reported.

    Examples:

      kvctl validate --namespace prod

      kvctl validate --router http://10.0.0.1:8000 --worker http://10.0.0.2:8000 --worker http://10.0.0.3:8000

      kvctl validate -n prod --probe  # sends a few requests of its own and sees where they go

      kvctl validate --log worker=engine.log

      kvctl validate --sim 2 --fault heartbeat-lost  # a system of its own, broken on purpose

      kvctl validate -n prod --record bundle

      kvctl validate --replay bundle -o wide  # what was recorded, later and anywhere

      kvctl validate --explain KV401
    """
    if list_checks or explain is not None:
        from kvctl.catalogue import explain_check, show_checks

        if list_checks and explain is not None:
            raise Problem("--list-checks lists all checks, --explain ID explains one: leave one out")
        if output not in (Output.TEXT, Output.WIDE, Output.JSON):
            raise Problem(f"--list-checks and --explain print text or json, not {output}")
        as_json = output is Output.JSON
        if explain is not None:
            explain_check(explain, namespace=namespace, as_json=as_json)
        else:
            show_checks(checks or [], skip or [], as_json=as_json)
        return
    from kvctl.embedded import plan_of
    from kvctl.quantities import seconds, size
    from kvctl.validate_run import Report, probe_of, request_of, run

    request = request_of(
        namespace=namespace,
        all_namespaces=all_namespaces,
        context=context,
        kubeconfig=kubeconfig,
        in_cluster=in_cluster,
        stack=stack.value,
        router_namespace=router_namespace,
        router_selector=router_selector,
        worker_selector=worker_selector,
        router_container=router_container,
        worker_container=worker_container,
        prometheus=prometheus,
        prometheus_auth=prometheus_auth,
        window_s=seconds(window, "--window", least=1),
        scrape=scrape.value,
        logs=logs,
        since_s=seconds(since, "--since", least=1),
        log_limit_bytes=size(log_limit_bytes, "--log-limit-bytes"),
        max_log_pods=max_log_pods,
        concurrency=concurrency,
        routers=tuple(router or ()),
        workers=tuple(worker or ()),
        admin=admin,
        log_files=tuple(log or ()),
        strategy=expect_strategy,
        timeout_s=seconds(timeout, "--timeout", least=1),
    )
    report = Report(
        output=output.value,
        fail_on=fail_on.value,
        strict=strict,
        least=min_severity.value,
        no_color=no_color,
        quiet=quiet,
    )
    code = run(
        request,
        report,
        probe=probe_of(
            wanted=probe,
            endpoint=probe_endpoint,
            requests=probe_requests,
            heartbeat=probe_heartbeat,
            api_key=probe_api_key,
            yes=yes,
            force=probe_force,
        ),
        include=tuple(checks or ()),
        skip=tuple(skip or ()),
        suppress=tuple(suppress or ()),
        suppress_file=suppress_file,
        record=record,
        replay=replay,
        wait_s=seconds(wait, "--wait") if wait is not None else None,
        plan=plan_of(sim, fault or [], log_style),
    )
    if code:
        raise typer.Exit(code)
