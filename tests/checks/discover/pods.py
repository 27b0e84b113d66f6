"""Pods as the API lists them, for the tests of discovery."""

from __future__ import annotations

from typing import Any


def container(name: str = "vllm", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "img:1", **more}


def pod(
    name: str = "w-0", *containers: dict[str, Any], labels: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    """A pod in `prod`; `more`: further keys of metadata, spec and status as `metadata=`, `spec=`, `status=`."""
    return {
        "metadata": {"name": name, "namespace": "prod", "labels": labels or {}, **more.get("metadata", {})},
        "spec": {"containers": list(containers or (container(),)), **more.get("spec", {})},
        "status": {"phase": "Running", **more.get("status", {})},
    }
