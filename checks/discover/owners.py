"""Whose a pod is: the topmost controller that can be known, and label selectors as the API server applies them.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Objects = Iterable[Mapping[str, Any]]


class Owners:
    """Owners of pods, through the ReplicaSets that were listed."""

    def __init__(self, replicasets: Objects = ()) -> None:
        self._above = {key_of(one): found for one in replicasets if (found := controller(one))}

    def of(self, pod: Mapping[str, Any]) -> str:
        """`Deployment/x`, `StatefulSet/x`, …; '' where nothing controls it.

        A ReplicaSet that was not listed is put to the Deployment that its name tells by the pod-template-hash.
        """
        found = controller(pod)
        if found is None:
            return ""
        kind, name = found
        if kind == "ReplicaSet":
            above = self._above.get((_namespace(pod), name))
            if above is not None:
                kind, name = above
            elif (hashed := labels_of(pod).get("pod-template-hash")) and name.endswith(f"-{hashed}"):
                kind, name = "Deployment", name.removesuffix(f"-{hashed}")
        return f"{kind}/{name}"


def controller(obj: Mapping[str, Any]) -> tuple[str, str] | None:
    """(kind, name) of the owner that controls the object."""
    references = (obj.get("metadata") or {}).get("ownerReferences") or ()
    chosen = next((one for one in references if one.get("controller")), None)
    return None if chosen is None else (str(chosen.get("kind") or ""), str(chosen.get("name") or ""))


def key_of(obj: Mapping[str, Any]) -> tuple[str, str]:
    """(namespace, name)."""
    return _namespace(obj), str((obj.get("metadata") or {}).get("name") or "")


def labels_of(obj: Mapping[str, Any]) -> Mapping[str, str]:
    labels = (obj.get("metadata") or {}).get("labels")
    return labels if isinstance(labels, Mapping) else {}


def selects(selector: Any, labels: Mapping[str, str]) -> bool:
    """Whether a selector takes these labels: a plain map, `matchLabels` and `matchExpressions`, or `a=b,c=d` as text.

    An empty or unreadable selector takes nothing here: nothing may be concluded from it.
    """
    if isinstance(selector, str):
        pairs = [part.partition("=") for part in selector.split(",") if part]
        return bool(pairs) and all(eq and labels.get(name.strip()) == value.strip("= ") for name, eq, value in pairs)
    if not isinstance(selector, Mapping) or not selector:
        return False
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        return all(labels.get(str(name)) == value for name, value in selector.items())
    exact, rules = selector.get("matchLabels") or {}, selector.get("matchExpressions") or ()
    if not exact and not rules:
        return False
    return all(labels.get(name) == value for name, value in exact.items()) and all(_fits(one, labels) for one in rules)


def _fits(rule: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, wanted = labels.get(str(rule.get("key"))), rule.get("values") or ()
    fits = {
        "In": value in wanted,
        "NotIn": value not in wanted,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }
    return fits.get(str(rule.get("operator")), False)


def _namespace(obj: Mapping[str, Any]) -> str:
    return str((obj.get("metadata") or {}).get("namespace") or "")
