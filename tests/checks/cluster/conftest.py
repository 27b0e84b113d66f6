"""Fixtures: an empty emulated cluster that is being served, and a client on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.sources.connection import connect
from checks.sources.deadline import Deadline
from checks.sources.kubernetes import Cluster as Client
from checks.sources.pace import Pace
from tests.checks.cluster.emulated import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster().serving(tmp_path) as served:
        yield served


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    connection = connect(kubeconfig=str(cluster.kubeconfig))
    made = Client(connection, Pace(concurrency=4, per_second=1e4, burst=1000), Deadline(60), timeout_s=5)
    yield made
    made.close()
