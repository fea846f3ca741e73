"""Fixtures for tests that break the local cluster: those after them start it anew."""

from __future__ import annotations

import os

import pytest

from hack import test_cluster
from tests.helpers.failure_dump import pytest_runtest_makereport as pytest_runtest_makereport
from tests.helpers.kube import Cluster
from tests.helpers.kube import namespace as namespace


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    os.environ |= test_cluster.prepare()
    return Cluster(os.environ["WORKER_IMAGE"])
