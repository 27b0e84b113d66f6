"""Effective environment and arguments of a container, as far as they can be known without reading a Secret.

Pure. References that were not read stay visible as `<from:secret/x>`, `<from:configmap/x>`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ConfigMaps = Mapping[tuple[str, str], Mapping[str, str]]
"""Data by (namespace, name), of those that were read."""

_REFERENCE = re.compile(r"\$\$|\$\((?P<name>[A-Za-z_][A-Za-z0-9_.-]*)\)")
_SHELL_REFERENCE = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*)\}|(?P<plain>[A-Za-z_]\w*))")
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh"})
_FIELD_KEY = re.compile(r"metadata\.(?P<of>labels|annotations)\['(?P<key>[^']+)'\]")
_EXPANDED = 64 << 10
"""Characters of one expanded value; references could multiply it without end."""


@dataclass(frozen=True, slots=True)
class Environment:
    values: Mapping[str, str]
    unread_sources: tuple[str, ...] = ()
    """`secret/x`, `configmap/x` of envFrom that were not read: they may set any name."""


def environment(container: Mapping[str, Any], pod: Mapping[str, Any], configmaps: ConfigMaps) -> Environment:
    """Of one container: envFrom first, then env in order, later entries and env winning, as the kubelet does."""
    namespace = str(_of(pod, "metadata").get("namespace") or "")
    values: dict[str, str] = {}
    unread: list[str] = []
    for source in container.get("envFrom") or ():
        prefix = str(source.get("prefix") or "")
        if (reference := source.get("configMapRef")) is not None:
            name = str(reference.get("name") or "")
            data = configmaps.get((namespace, name))
            if data is None:
                unread.append(f"configmap/{name}")
            else:
                values |= {prefix + key: value for key, value in data.items()}
        elif (reference := source.get("secretRef")) is not None:
            unread.append(f"secret/{reference.get('name') or ''}")
    for entry in container.get("env") or ():
        name = str(entry.get("name") or "")
        if "valueFrom" in entry:
            told = _referred(entry["valueFrom"] or {}, pod, namespace, configmaps)
            if told is not None:
                values[name] = told
        else:
            values[name] = expanded(str(entry.get("value") or ""), values)
    return Environment(values, tuple(unread))


def arguments(container: Mapping[str, Any], values: Mapping[str, str]) -> tuple[str, ...]:
    """Command and arguments, `$(NAME)` expanded; the script of `sh -c` is split into its words.

    Values that were not read are not put in: the reference then stays.
    """
    known = {name: value for name, value in values.items() if not value.startswith("<from:")}
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return tuple(_unwrapped([expanded(str(word), known) for word in words], known))


def referenced_configmaps(pod: Mapping[str, Any], *, mounted: bool) -> Iterator[tuple[str, frozenset[str] | None]]:
    """(name, keys) of the ConfigMaps that a pod's containers refer to; keys None: all of it.

    `mounted` adds those that are mounted as files.
    """
    spec = _of(pod, "spec")
    for container in spec.get("containers") or ():
        for source in container.get("envFrom") or ():
            if reference := source.get("configMapRef"):
                yield str(reference.get("name") or ""), None
        for entry in container.get("env") or ():
            if reference := (entry.get("valueFrom") or {}).get("configMapKeyRef"):
                yield str(reference.get("name") or ""), frozenset({str(reference.get("key") or "")})
    for volume in spec.get("volumes") or () if mounted else ():
        if reference := volume.get("configMap"):
            yield str(reference.get("name") or ""), None


def expanded(text: str, values: Mapping[str, str]) -> str:
    """`$(NAME)` replaced where NAME is known; `$$` stands for one `$`."""

    def put(match: re.Match[str]) -> str:
        name = match.group("name")
        return "$" if name is None else values.get(name, match.group(0))

    return _REFERENCE.sub(put, text)[:_EXPANDED]


def _unwrapped(words: list[str], values: Mapping[str, str]) -> Sequence[str]:
    """The words of the script where the command is a shell with -c."""
    if len(words) < 3 or words[0].rpartition("/")[2] not in _SHELLS:
        return words
    at = next((at for at, word in enumerate(words[1:], 1) if re.fullmatch(r"-[a-z]*c", word)), None)
    if at is None or at + 1 >= len(words):
        return words
    script = words[at + 1].replace("\\\n", " ")
    filled = _SHELL_REFERENCE.sub(
        lambda match: values.get(match.group("braced") or match.group("plain"), match.group(0)), script
    )[:_EXPANDED]
    try:
        split = shlex.split(filled, comments=True)
    except ValueError:
        split = filled.split()
    return [*words[: at + 1], *split, *words[at + 2 :]]


def _referred(source: Mapping[str, Any], pod: Mapping[str, Any], namespace: str, configmaps: ConfigMaps) -> str | None:
    """The value that `valueFrom` names; None where an optional one is missing or a field is not set."""
    if (field := source.get("fieldRef")) is not None:
        return _field(str(field.get("fieldPath") or ""), pod)
    if (reference := source.get("configMapKeyRef")) is not None:
        name, key = str(reference.get("name") or ""), str(reference.get("key") or "")
        data = configmaps.get((namespace, name))
        if data is None:
            return f"<from:configmap/{name}>"
        return data.get(key)
    if (reference := source.get("secretKeyRef")) is not None:
        return f"<from:secret/{reference.get('name') or ''}>"
    if (reference := source.get("resourceFieldRef")) is not None:
        return f"<from:resource/{reference.get('resource') or ''}>"
    return "<from:unknown>"


def _field(path: str, pod: Mapping[str, Any]) -> str | None:
    metadata, spec, status = (_of(pod, part) for part in ("metadata", "spec", "status"))
    if (match := _FIELD_KEY.fullmatch(path)) is not None:
        value = (metadata.get(match.group("of")) or {}).get(match.group("key"))
    elif path == "status.podIPs":
        value = ",".join(str(one.get("ip")) for one in status.get("podIPs") or ()) or None
    else:
        part, _, name = path.partition(".")
        value = {"metadata": metadata, "spec": spec, "status": status}.get(part, {}).get(name)
    return None if value is None else str(value)


def _of(pod: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    value = pod.get(part)
    return value if isinstance(value, Mapping) else {}
