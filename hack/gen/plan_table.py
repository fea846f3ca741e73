"""Run the rows of the JobGroup test plan and write tests/e2e/TEST_PLAN.md: python3 -m
hack.gen.plan_table
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from hack import test_cluster
from hack.paths import REPO, ToolError, between, main

PAGE = REPO / "tests/e2e/TEST_PLAN.md"
MARKS = ("<!-- plan-results: written by `make plan-table` -->", "<!-- end of plan-results -->")


def table(rows: list[dict]) -> str:
    """One line per row of the plan; a row passes if each of its tests passes."""
    lines = ["| Test | Status | Notes |", "|---|---|---|"]
    by_row: dict[str, list[dict]] = {}
    for row in rows:
        by_row.setdefault(row["row"], []).append(row)
    for number, tests in sorted(by_row.items()):
        passed = sum(test["passed"] for test in tests)
        count = f" ({len(tests)} tests)" if len(tests) > 1 else ""
        status = (
            f"passed{count}"
            if passed == len(tests)
            else f"**failed** ({len(tests) - passed} of {len(tests)})"
        )
        notes = " ".join(
            dict.fromkeys(
                re.sub(r"\s+", " ", test["note"]).strip() for test in tests if test["note"]
            )
        )
        lines.append(f"| {number} {tests[0]['title']} | {status} | {notes} |")
    return "\n".join(lines)


def results(report: Path) -> list[dict]:
    """Row, title and note of every test in a JUnit report, and whether it passed."""
    tests = ElementTree.parse(report).iter("testcase")
    found = [
        (test, {each.get("name"): each.get("value") for each in test.iter("property")})
        for test in tests
    ]
    failed = [
        test
        for test, _ in found
        if test.find("failure") is not None or test.find("error") is not None
    ]
    return [{**row, "passed": test not in failed} for test, row in found if row]


def run() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            "python",
            "-m",
            "pytest",
            "-q",
            "-n",
            "4",
            "-m",
            "row",
            "tests/e2e",
            f"--junitxml={report}",
        ]
        subprocess.run(command, cwd=REPO, env=test_cluster.prepare())
        rows = results(report)
    if not rows:
        raise ToolError("no row of the plan was run")
    PAGE.write_text(between(PAGE.read_text(), *MARKS, f"\n{table(rows)}\n"))
    failed = sorted({row["row"] for row in rows if not row["passed"]})
    if failed:
        raise ToolError(f"rows that failed: {', '.join(failed)}")


if __name__ == "__main__":
    main(run)
