"""A pod as the `Member` that checks see: effective values of the container that speaks for it, state, addresses.

Pure. Odd or missing fields leave the member's defaults; nothing is raised for a strange pod.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from checks.discover.environment import ConfigMaps, arguments, environment
from checks.discover.owners import Owners, key_of, labels_of
from checks.discover.roles import Chosen
from checks.evidence import shown
from checks.network import address
from checks.snapshot import Container, LastExit, Member

_UNITS = {
    "": 1,
    "m": 1e-3,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}
_QUANTITY = re.compile(r"(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?P<unit>[A-Za-z]*)")
_MODEL_LABELS = ("model", "inference.sagemaker.aws.amazon.com/model-name", "llm-d.ai/model")


def member_of(chosen: Chosen, configmaps: ConfigMaps, owners: Owners) -> Member:
    """Without log, URL and answers; those are read later."""
    pod = chosen.pod
    metadata, spec, status = (pod.get(part) or {} for part in ("metadata", "spec", "status"))
    namespace, name = key_of(pod)
    container = _container(chosen, configmaps)
    member = Member(
        role=chosen.role,
        name=name,
        namespace=namespace,
        uid=str(metadata.get("uid") or ""),
        container=container,
        ips=_ips(status),
        host_network=bool(spec.get("hostNetwork")),
        labels=dict(labels_of(pod)),
        annotations=dict(metadata.get("annotations") or {}),
        owner=owners.of(pod),
        node=str(spec.get("nodeName") or ""),
        phase=str(status.get("phase") or "Unknown"),
        why=shown(": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))),
        ready=_ready(metadata, status),
        created_at=epoch(metadata.get("creationTimestamp")),
    )
    return replace(member, model=model_of(member))


def epoch(text: Any) -> float | None:
    """Epoch seconds of an RFC 3339 time; None where it is none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else None
    except ValueError:
        return None


def quantity(text: Any) -> float | None:
    """A Kubernetes quantity (`512Mi`, `2G`, `1e9`) in units; None where it is none."""
    match = _QUANTITY.fullmatch(str(text).strip()) if text is not None else None
    unit = None if match is None else _UNITS.get(match.group("unit"))
    if match is None or unit is None:
        return None
    value = float(match.group("number")) * unit
    return value if math.isfinite(value) else None


def model_of(member: Member) -> str:
    """The served model: `--served-model-name`, the model argument, a label; '' where none tells."""
    if told := member.arg("--served-model-name"):
        return told.split()[0]
    if told := member.arg("--model", "--model-path", "--model-name"):
        return told
    args = member.container.args
    for at, word in enumerate(args):
        following = args[at + 1] if at + 1 < len(args) else ""
        if word == "serve" and following and not following.startswith("-"):
            return following
    return next((value for label in _MODEL_LABELS if (value := member.labels.get(label))), "")


def _container(chosen: Chosen, configmaps: ConfigMaps) -> Container:
    spec, pod = chosen.container, chosen.pod
    name = str(spec.get("name") or "")
    found = environment(spec, pod, configmaps)
    states = (pod.get("status") or {}).get("containerStatuses") or ()
    status: Mapping[str, Any] = next((one for one in states if one.get("name") == name), {})
    state, started = _state(status.get("state") or {})
    limit = quantity(((spec.get("resources") or {}).get("limits") or {}).get("memory"))
    return Container(
        name=name,
        image=str(spec.get("image") or ""),
        args=arguments(spec, found.values),
        env=found.values,
        unread_env=found.unread_sources,
        ports=_ports(spec),
        started_at=started,
        restarts=int(status.get("restartCount") or 0),
        ready=bool(status.get("ready", False)),
        state=state,
        last_exit=_last_exit(status.get("lastState") or {}),
        memory_limit=None if limit is None else int(limit),
        volume_mounts=_mounts(spec, pod),
    )


def _state(state: Mapping[str, Any]) -> tuple[str, float | None]:
    if "running" in state:
        return "running", epoch((state["running"] or {}).get("startedAt"))
    for kind in ("waiting", "terminated"):
        if kind in state:
            told = state[kind] or {}
            return f"{kind}:{told.get('reason') or 'unknown'}", epoch(told.get("startedAt"))
    return "unknown", None


def _last_exit(state: Mapping[str, Any]) -> LastExit | None:
    told = state.get("terminated")
    if not told:
        return None
    return LastExit(str(told.get("reason") or ""), int(told.get("exitCode") or 0), epoch(told.get("finishedAt")) or 0.0)


def _ports(spec: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in spec.get("ports") or ():
        number = one.get("containerPort")
        if isinstance(number, int):
            found[str(one.get("name") or number)] = number
    return found


def _mounts(spec: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, str]:
    kinds = {
        str(volume.get("name")): next((key for key in volume if key != "name"), "emptyDir")
        for volume in (pod.get("spec") or {}).get("volumes") or ()
    }
    mounts = spec.get("volumeMounts") or ()
    return {str(one.get("mountPath") or ""): kinds.get(str(one.get("name")), "unknown") for one in mounts}


def _ips(status: Mapping[str, Any]) -> tuple[str, ...]:
    many = [str(one.get("ip")) for one in status.get("podIPs") or ()] or [str(status.get("podIP"))]
    return tuple(one for one in many if address(one) is not None)


def _ready(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    if metadata.get("deletionTimestamp"):
        return False
    conditions = status.get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
