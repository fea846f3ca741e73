"""Fixtures for tests on a real Kubernetes. They need KUBECONFIG, WORKER_IMAGE and SHELL_IMAGE, and never skip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.failure_dump import pytest_runtest_makereport as pytest_runtest_makereport
from tests.helpers.kube import Cluster, given_cluster
from tests.helpers.kube import namespace as namespace


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--plan-results", type=Path, help="write the results of the rows of the test plan to this file")


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return given_cluster("test-e2e", "SHELL_IMAGE")


@pytest.fixture(autouse=True)
def row(request: pytest.FixtureRequest, record_property) -> None:
    """Record the row of the plan, and its note, in the report of a test."""
    marker = request.node.get_closest_marker("row")
    if marker:
        number, title = marker.args
        record_property("row", {"row": number, "title": title, "note": request.function.__doc__ or ""})


class PlanResults:
    """Results of all rows; with several workers only their controller has all reports."""

    def __init__(self, file: Path):
        self.file, self.rows = file, []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, row in report.user_properties:
            if name == "row" and (report.when == "call" or report.failed):
                self.rows.append({**row, "test": report.nodeid, "passed": report.passed})

    def pytest_sessionfinish(self) -> None:
        self.file.write_text(json.dumps(self.rows, indent=1))


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--plan-results")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(PlanResults(file))
