"""Fixtures for tests that break the local cluster: those after them start it anew."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
from kube import Cluster, Namespace
from tools import target


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    os.environ |= target.prepare()
    return Cluster(os.environ["WORKER_IMAGE"])


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    space = Namespace(cluster, f"disrupted-{uuid.uuid4().hex[:8]}")
    cluster.kubectl("create", "namespace", space.name)
    yield space
    cluster.kubectl("delete", "namespace", space.name, "--wait=false")
