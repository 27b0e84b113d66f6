"""KV130 to KV132: HyperPod's metrics settings, with the CRD's defaults filled in. Pure functions of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator

from checks.evidence import at, shown
from checks.hyperpod import Endpoint, endpoints
from checks.model import Check, Finding, Group, Reason, Stack, Status, failed, passed, skipped, warned
from checks.snapshot import Snapshot

_NONE = "no custom resource was found"
_OFF = "metrics are switched off (KV130)"


def metrics_on(snapshot: Snapshot) -> Iterator[Finding]:
    if not endpoints(snapshot):
        yield skipped(Reason.NOT_APPLICABLE, _NONE)
    for endpoint in endpoints(snapshot):
        evidence = endpoint.shows("spec.metrics.enabled")
        if endpoint.metrics_enabled:
            yield passed("metrics are enabled", endpoint.target, evidence)
        else:
            message = "metrics are switched off: whether the cache is hit cannot be measured"
            yield warned(message, endpoint.target, evidence)


def metrics_port(snapshot: Snapshot) -> Iterator[Finding]:
    if not endpoints(snapshot):
        yield skipped(Reason.NOT_APPLICABLE, _NONE)
    for endpoint in endpoints(snapshot):
        yield _same_port(endpoint)


def _same_port(endpoint: Endpoint) -> Finding:
    evidence = (
        endpoint.shows("spec.metrics.modelMetrics.port"),
        endpoint.shows("spec.worker.modelInvocationPort.containerPort"),
    )
    if not endpoint.metrics_enabled:
        return skipped(Reason.DISABLED, _OFF, endpoint.target)
    if endpoint.invocation_port is None:
        return skipped(Reason.NO_DATA, "the resource names no container port", endpoint.target, *evidence)
    if endpoint.metrics_port == endpoint.invocation_port:
        return passed("metrics are scraped where the engine serves", endpoint.target, *evidence)
    message = (
        f"metrics are scraped from port {endpoint.metrics_port}, the engine serves on port {endpoint.invocation_port}"
    )
    return failed(message, endpoint.target, *evidence)


def metrics_state(snapshot: Snapshot) -> Iterator[Finding]:
    if not endpoints(snapshot):
        yield skipped(Reason.NOT_APPLICABLE, _NONE)
    for endpoint in endpoints(snapshot):
        yield _state(endpoint)


def _state(endpoint: Endpoint) -> Finding:
    if not endpoint.metrics_enabled:
        return skipped(Reason.DISABLED, _OFF, endpoint.target)
    error = str(at(endpoint.object, "status.metricsStatus.errorMessage") or "")
    state = str(at(endpoint.object, "status.metricsStatus.state") or "")
    path = endpoint.shows("spec.metrics.modelMetrics.path")
    if error:
        evidence = endpoint.shows("status.metricsStatus.errorMessage")
        return warned(f"the operator reports: {shown(error)}", endpoint.target, evidence)
    if any(word in state.lower() for word in ("fail", "error")):
        evidence = endpoint.shows("status.metricsStatus.state")
        return warned(f"the operator says that metrics are in state {shown(state)}", endpoint.target, evidence)
    if endpoint.metrics_path.rstrip("/") != "/metrics":
        message = f"the path is {shown(endpoint.metrics_path)}; vLLM serves its metrics at /metrics"
        return warned(message, endpoint.target, path)
    if at(endpoint.object, "status.metricsStatus") is None:
        message = "the operator has not reported a state of metrics"
        return skipped(Reason.NO_DATA, message, endpoint.target, path)
    return passed("the path is vLLM's and the operator reports no error", endpoint.target, path)


_HYPERPOD = frozenset({Stack.HYPERPOD})

CHECKS: tuple[Check, ...] = (
    Check(
        id="KV130",
        title="Metrics are enabled",
        group=Group.CONFIGURATION,
        worst=Status.WARN,
        reads="spec.metrics.enabled (default true)",
        rule="Warns where it is false: the checks of effectiveness (KV6xx) then have nothing to judge.",
        hint="set metrics.enabled: true",
        run=metrics_on,
        stacks=_HYPERPOD,
    ),
    Check(
        id="KV131",
        title="Metrics port is the engine's port",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="spec.metrics.modelMetrics.port (default 8080), spec.worker.modelInvocationPort.containerPort",
        rule="vLLM serves metrics on its only port. Fails where the two differ once defaults are filled in: "
        "samples with containerPort 8000 and no metrics port do.",
        hint="set metrics.modelMetrics.port to the value of worker.modelInvocationPort.containerPort",
        run=metrics_port,
        stacks=_HYPERPOD,
    ),
    Check(
        id="KV132",
        title="Metrics path and state",
        group=Group.CONFIGURATION,
        worst=Status.WARN,
        reads="spec.metrics.modelMetrics.path (default /metrics), status.metricsStatus",
        rule="Warns where the operator reports an error or a failed state, and for a path that is not vLLM's.",
        hint="leave the path at /metrics and correct what status.metricsStatus.errorMessage names",
        run=metrics_state,
        stacks=_HYPERPOD,
    ),
)
