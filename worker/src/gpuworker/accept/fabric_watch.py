"""Watch the network ports of this node while the checks run: ports that go down, counters of errors that grow."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from gpuworker.accept import check_spec, fabric
from gpuworker.accept.publish import log_check
from gpuworker.accept.report import FAIL, WARN, Check, Problem, Report

FAULT = "port-errors"  # injected: what a bad cable does


@contextlib.contextmanager
def watch_fabric(report: Report) -> Iterator[None]:
    """Add what the ports counted during the checks to the report."""
    before = fabric.ports()
    try:
        yield
    finally:
        after = fabric.ports()
        if report.injected == FAULT:
            before = [fabric.Port("mlx5_0/1", True, errors={"symbol_error": 3})]
            after = [dataclasses.replace(before[0], errors={"symbol_error": 15})]
        failures, warnings = fabric.new_errors(before, after)
        problems = [Problem(verdict, text) for verdict, texts in ((FAIL, failures), (WARN, warnings)) for text in texts]
        if problems:
            reason = "; ".join(problem.reason for problem in problems)
            check = Check("fabric", problems[0].verdict, reason, problems=problems)
            report.checks.append(check)
            log_check(check_spec.TAGS[0], check)
