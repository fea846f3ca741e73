"""Fixtures for tests on a real Kubernetes. They need KUBECONFIG and WORKER_IMAGE, and skip nothing without them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
from kube import Cluster, Namespace


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    missing = [name for name in ("KUBECONFIG", "WORKER_IMAGE") if not os.environ.get(name)]
    if missing:
        pytest.fail(f"{' and '.join(missing)} not set; run these tests with: make test-e2e", pytrace=False)
    return Cluster(os.environ["WORKER_IMAGE"])


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    """A namespace that enforces the restricted Pod Security Standard; gone after the test."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    space = Namespace(cluster, name)
    try:
        yield space
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=false")
