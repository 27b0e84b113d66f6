"""Which cluster, and as whom: kubeconfig (--kubeconfig, KUBECONFIG, the usual file) or the pod's service account.

Reads files only; the `kubernetes` package is imported when it is called.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checks.model import Reason

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

USUAL = "~/.kube/config"


class SourceError(Exception):
    """The system cannot be looked at at all: no configuration, no answer, no entry. One line, with the way out."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Interrupted(SourceError):
    """The user ended the collection before anything had answered; `why` is one of deadline.SIGNALS."""

    def __init__(self, why: str) -> None:
        super().__init__(Reason.TIMEOUT, f"{why} before anything had answered")
        self.why = why


@dataclass(frozen=True, slots=True)
class Connection:
    """A configured client; nothing was sent yet."""

    client: ApiClient
    server: str
    context: str
    """Name of the kubeconfig context; `in-cluster` with a service account."""
    namespace: str
    """The context's namespace, or the pod's own; '' where none is set."""
    in_cluster: bool


def connect(*, context: str = "", kubeconfig: str = "", in_cluster: bool = False, connections: int = 8) -> Connection:
    """Order: --in-cluster; --kubeconfig; KUBECONFIG; ~/.kube/config; the service account of the pod this runs in.

    Raises SourceError where none of them is there or the one that is cannot be read.
    """
    from kubernetes.client import ApiClient, Configuration

    configuration = Configuration()
    configuration.retries = False
    configuration.connection_pool_maxsize = connections
    files = kubeconfig or os.environ.get("KUBECONFIG", "") or USUAL
    if in_cluster or not (kubeconfig or context or _any_exists(files)):
        name, namespace = _service_account(configuration, asked=in_cluster)
        inside = True
    else:
        name, namespace = _kubeconfig(configuration, files, context)
        inside = False
    configuration.retries = False
    configuration.connection_pool_maxsize = connections
    return Connection(ApiClient(configuration), str(configuration.host), name, namespace, inside)


def _any_exists(files: str) -> bool:
    return any(Path(name).expanduser().is_file() for name in files.split(os.pathsep) if name)


def _kubeconfig(configuration: Any, files: str, context: str) -> tuple[str, str]:
    import kubernetes.config
    from yaml import YAMLError

    loader: Any = kubernetes.config
    if not _any_exists(files):
        raise SourceError(Reason.UNREACHABLE, f"no kubeconfig at {files}; name one with --kubeconfig")
    try:
        contexts, active = loader.list_kube_config_contexts(config_file=files)
        names = [str(one["name"]) for one in contexts]
        if context and context not in names:
            known = ", ".join(sorted(names)[:8])
            raise SourceError(Reason.UNREACHABLE, f"{files} has no context {context!r}; it has {known}")
        chosen = next((one for one in contexts if one["name"] == context), active)
        loader.load_kube_config(
            config_file=files,
            context=context or None,
            client_configuration=configuration,
            persist_config=False,
        )
    except (
        loader.ConfigException,
        YAMLError,
        OSError,
        UnicodeDecodeError,
        TypeError,
        KeyError,
        AttributeError,
    ) as error:
        reason = " ".join(str(error).split())[:200]
        raise SourceError(Reason.UNREACHABLE, f"cannot use the kubeconfig {files}: {reason}") from None
    return str(chosen["name"]), str((chosen.get("context") or {}).get("namespace") or "")


def _service_account(configuration: Any, *, asked: bool) -> tuple[str, str]:
    import kubernetes.config

    loader: Any = kubernetes.config.incluster_config
    try:
        loader.load_incluster_config(client_configuration=configuration)
    except (loader.ConfigException, OSError) as error:
        if asked:
            message = f"--in-cluster works only in a pod with a service account: {error}"
        else:
            message = (
                "no cluster to look at: no kubeconfig and not in a pod; set KUBECONFIG or --kubeconfig, "
                "or name the system with --router URL --worker URL"
            )
        raise SourceError(Reason.UNREACHABLE, message) from None
    beside = Path(loader.SERVICE_TOKEN_FILENAME).with_name("namespace")
    try:
        namespace = beside.read_text(encoding="utf-8").strip()
    except OSError:
        namespace = ""
    return "in-cluster", namespace
