"""Fixtures for tests that break the local cluster: those after them start it anew."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from failures import pytest_runtest_makereport as pytest_runtest_makereport
from kube import Cluster, Namespace, new_namespace
from tools import target


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    os.environ |= target.prepare()
    return Cluster(os.environ["WORKER_IMAGE"])


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    with new_namespace(cluster) as space:
        yield space
