"""Watch links of this node while the checks run: ports that go down, errors that links count."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from gpuworker.accept import check_spec, fabric, pcie_errors
from gpuworker.accept.publish import log_check
from gpuworker.accept.verdict import of_problems
from gpuworker.judgement.report import Evidence, Report

FAULT, PCIE_FAULT = "port-errors", "pcie-errors"  # injected: what a bad cable, a bad riser does


@contextlib.contextmanager
def watch_fabric(report: Report) -> Iterator[None]:
    """Add what the links counted during the checks to the report."""
    before, pcie_before = fabric.ports(), pcie_errors.counts()
    try:
        yield
    finally:
        after, pcie_after = fabric.ports(), pcie_errors.counts()
        if report.requested.inject == FAULT:
            before = [fabric.Port("mlx5_0/1", True, errors={"symbol_error": 3})]
            after = [dataclasses.replace(before[0], errors={"symbol_error": 15})]
        if report.requested.inject == PCIE_FAULT:
            pcie_before, pcie_after = (
                {"0000:3b:00.0": {"correctable": count}} for count in (7, 5007)
            )
        facts = {"ports": [port.name for port in after], "pcie_links": list(pcie_after)}
        found = Evidence(facts=facts, name="fabric")
        fabric.new_errors(before, after, found)
        pcie_errors.grown(pcie_before, pcie_after, found)
        if found.problems:
            report.checks.append(found)
            log_check(check_spec.TAGS[0], of_problems(found.name, found))
