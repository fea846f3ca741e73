"""Fixtures for tests on a real Kubernetes. They need KUBECONFIG, WORKER_IMAGE and SHELL_IMAGE, and
never skip.
"""

import pytest

from tests.helpers.failure_dump import pytest_runtest_makereport as pytest_runtest_makereport
from tests.helpers.kube import Cluster, given_cluster
from tests.helpers.kube import namespace as namespace


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return given_cluster("test-e2e", "SHELL_IMAGE")


def pytest_itemcollected(item: pytest.Function):
    """Put the row of the plan, and its note, into the JUnit report: hack/gen/plan_table.py reads
    them there.
    """
    if marker := item.get_closest_marker("row"):
        item.user_properties += zip(
            ("row", "title", "note"), (*marker.args, item.function.__doc__ or ""), strict=True
        )
