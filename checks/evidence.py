"""Evidence of what is configured: constructors for environment, arguments, images and Kubernetes objects.

Pure. Every text is clean, redacted and at most 240 characters; the value of a variable or option whose name says that
it is secret is never shown. Evidence of logs comes from `LogView.evidence`, of metrics from `Reading.evidence`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from checks.logs.view import EVIDENCE_CHARACTERS
from checks.model import Evidence, Target
from checks.redact import clean, redact
from checks.snapshot import Member

_SECRET_NAME = re.compile(
    r"token(?!iz|s)|secret|passw|credential|api[-_]?key|access[-_]?key|private[-_]?key|auth$", re.I
)
_USER_IN_URL = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*://)[^@/\s]*@")
_MISSING = object()


def shown(text: str) -> str:
    """Any text as a report may print it: one line, clean, redacted, at most 240 characters."""
    safe = redact(clean(" ".join(text.split())))
    return _USER_IN_URL.sub(r"\g<scheme>", safe)[:EVIDENCE_CHARACTERS]


def env(member: Member, name: str) -> Evidence:
    """`NAME=value`, `NAME is not set`, `NAME=<from:secret/x>`; a secret value as `NAME=<set>`."""
    value = member.container.env.get(name)
    if value is None:
        return Evidence("env", member.key, f"{name} is not set")
    if _SECRET_NAME.search(name) and value and not value.startswith("<from:"):
        return Evidence("env", member.key, f"{name}=<set>")
    return Evidence("env", member.key, shown(f"{name}={value}"))


def lmcache_setting(member: Member, name: str, config: Mapping[str, Any]) -> Evidence:
    """Where a setting of LMCache stands: its variable, else the printed `config` (see `Snapshot.lmcache_config`)."""
    variable = f"LMCACHE_{name.upper()}"
    if variable in member.container.env or name not in config:
        return env(member, variable)
    return Evidence("log", member.key, shown(f"LMCache Configuration: {name} = {config[name]}"))


def args(member: Member, *names: str) -> Evidence:
    """`--name value` for the first of the names that is given, `--name is not given` where none is."""
    for name in names:
        value = member.arg(name)
        if value is not None:
            secret = bool(value) and _SECRET_NAME.search(name) is not None
            return Evidence("args", member.key, f"{name} <set>" if secret else shown(f"{name} {value}".rstrip()))
    return Evidence("args", member.key, f"{names[0]} is not given")


def image(member: Member) -> Evidence:
    return Evidence("pod", member.key, shown(f"image {member.container.image or 'unknown'}"))


def pod(member: Member, text: str) -> Evidence:
    """What the pod's own status says, in words."""
    return Evidence("pod", member.key, shown(text))


def resource(obj: Mapping[str, Any], path: str, *, kind: str = "") -> Evidence:
    """`path = value` of a Kubernetes object, path with dots (`spec.kvCacheSpec.enableL1Cache`); `path is not set`."""
    value = at(obj, path, _MISSING)
    leaf = path.rpartition(".")[2]
    if value is _MISSING:
        text = f"{path} is not set"
    elif _SECRET_NAME.search(leaf) and value:
        text = f"{path} = <set>"
    else:
        text = f"{path} = {value if isinstance(value, str) else json.dumps(value, default=str)}"
    return Evidence("resource", str(resource_target(obj, kind=kind)), shown(text))


def resource_target(obj: Mapping[str, Any], *, kind: str = "") -> Target:
    """The object as a target. Objects from a list often lack their kind: give it."""
    metadata = obj.get("metadata") or {}
    name = str(metadata.get("name") or "")
    return Target(str(obj.get("kind") or kind or "Resource"), str(metadata.get("namespace") or ""), name)


def at(obj: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """The value at a dotted path; `default` where a step is missing or is no mapping."""
    value: Any = obj
    for step in path.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return default
        value = value[step]
    return value
