"""Run the tests: python3 -m hack.test [PART…] [--quick].

PART: lint, unit, charts, browser, tracking, differential, fuzz, package, e2e, matrix, gang, ipv6,
values, argocd, flux, lifecycle, cluster. Without a name, these run: lint to fuzz, e2e and cluster.
What waits runs beside what computes: one thread builds and starts the cluster, one runs the unit
tests, and one the other parts that need no cluster, of which two come at the end, beside the tests
that break the cluster. The last line has the form "N passed, N failed, N skipped"; every command of
lint counts as one test.
"""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hack import test_cluster
from hack.cluster_mode import Mode, mode
from hack.deps import debian, go_tools
from hack.deps.venv import TRACK, VENV
from hack.paths import BIN, REPO, ToolError, main

CHARTS = ("ddp-run", "gpu-accept", "job-group")
QUICK = "--quick" in sys.argv  # without the tests that take seconds each
CHOSEN = "not matrix and not trainers" + (" and not slow" if QUICK else "")
HELM_UNITTEST = ("helm-unittest", "--strict", "--output-type", "JUnit", "--output-file", "REPORT")
LINT = [
    "ruff check .",
    "ruff format --check .",
    "yamllint --strict .",
    "shellcheck hack/local_cluster/node.sh charts/job-group/files/entry.sh charts/job-group/files/askpass.sh .ci/run",
    "python -m hack.gen.generate --check",
    "ct lint --config .ct.yaml --all",
    "actionlint",
]

IPV6 = [
    "test_ipv6.py",
    "test_ddp_run.py::test_a_world_forms[2]",
    "test_ddp_run.py::test_a_bare_torchrun_forms_a_world[c10d]",
    "test_gpu_accept.py::test_every_node_passes_and_hands_out_its_report",
    "test_gpu_accept.py::test_a_job_tests_each_node_once_and_ends_with_the_verdict",
    "test_group_features.py::test_example_tasks_find_each_other",
    "test_group_launcher.py::test_the_ranks_of_a_task_form_a_world",
    "test_isolation.py",
]


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped
        )

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def lint() -> Counts:
    counts = Counts()
    for command in LINT:
        ok = call("lint", *command.split())
        counts += Counts(passed=ok, failed=not ok)
    return counts


def unit() -> Counts:
    return pytest("unit", "tests/generator", "tests/worker", "tests/repo", "-n", "4", "-m", CHOSEN)


def charts() -> Counts:
    counts = Counts()
    for chart in CHARTS:
        counts += with_report("charts", *HELM_UNITTEST, f"charts/{chart}")
    return counts + pytest("charts", "tests/charts", "tests/package", "-n", "3", "-m", CHOSEN)


def values_fuzz() -> Counts:
    """Thousands of random sets of values, rendered: 20 minutes on two cores."""
    return pytest(
        "values-fuzz", "tests/charts/test_charts_fuzz.py", "-s", "-n", "3", "--timeout", "0"
    )


def tracking() -> Counts:
    """The real clients of experiment trackers, in a separate virtual environment."""
    if not call("tracking", sys.executable, "-m", "hack.deps.venv", "track"):
        return Counts(failed=1)
    python = str(TRACK / "bin/python")
    arguments = (
        "-m",
        "pytest",
        "-q",
        "--junitxml=REPORT",
        "tests/tracking",
        "-n",
        "2",
        "-m",
        CHOSEN,
    )
    return with_report("tracking", python, *arguments)


def browser() -> Counts:
    """The pages of a fleet in a real browser."""
    debian.browser()
    return pytest("browser", "tests/browser", "-n", "2")


def differential() -> Counts:
    return pytest("differential", "tests/differential")


def fuzz() -> Counts:
    return pytest("fuzz", "tests/fuzz")


def e2e(environment: dict[str, str]) -> Counts:
    return pytest(
        "e2e", "tests/e2e", "-n", "4", "-m", "not matrix and not lifecycle", environment=environment
    )


def matrix(environment: dict[str, str]) -> Counts:
    """Every injected fault of a torchrun world, with processes and with pods: half an hour on two
    cores.
    """
    processes = sorted(map(str, REPO.glob("tests/worker/test_launch_*.py")))
    pods = [
        *map(str, REPO.glob("tests/e2e/test_ddp_*.py")),
        "tests/e2e/test_from.py",
        "tests/e2e/test_train_pods.py",
    ]
    counts = pytest("matrix", *processes, "-n", "3") + pytest(
        "matrix", *pods, "-n", "4", environment=environment
    )
    return counts + (
        pytest("matrix", "tests/cluster", "-m", "matrix") if mode() is Mode.LOCAL else Counts()
    )


def gang(environment: dict[str, str]) -> Counts:
    """What needs features that Kubernetes leaves off by default: FEATURES=gang."""
    return pytest("gang", "tests/e2e/test_gang.py", "-n", "2", environment=environment)


def ipv6(environment: dict[str, str]) -> Counts:
    """A slice of each chart on nodes, pods and Services that have IPv6 only: IP_FAMILY=ipv6."""
    names = [f"tests/e2e/{name}" for name in IPV6]
    return pytest("ipv6", *names, "-n", "3", environment=environment)


def values(environment: dict[str, str]) -> Counts:
    """Thousands of sets of values, and invalid pods, against the API server: 25 minutes on two
    cores.
    """
    files = ("tests/e2e/test_values_on_a_server.py", "tests/e2e/test_invalid_pods.py")
    return pytest("values", *files, "-s", "-n", "2", "--timeout", "0", environment=environment)


def lifecycle(environment: dict[str, str]) -> Counts:
    """Every example with Helm 4 and 3, and chart-testing: installed, upgraded, rolled back,
    removed.
    """
    for module in ("helm", "helm3", "chart-testing"):
        go_tools.build(module)
    files = ("tests/e2e/test_lifecycle.py", "tests/e2e/test_chart_testing.py")
    return pytest("lifecycle", *files, "-n", "3", environment=environment)


def argocd(environment: dict[str, str]) -> Counts:
    """Argo CD on the cluster, with a git repository of its own: four minutes to build it on two
    cores.
    """
    for module in ("argocd", "miniredis", "helm3"):
        go_tools.build(module)
    return pytest("argocd", "tests/gitops", environment=environment)


def flux(environment: dict[str, str]) -> Counts:
    """Flux on the cluster, with a git repository of its own: four minutes to build it on two cores."""
    go_tools.build("flux")
    return pytest("flux", "tests/flux", environment=environment)


def package() -> Counts:
    """The charts as signed packages in an OCI registry: ten minutes to build registry and cosign on
    two cores.
    """
    if not shutil.which("gpg"):
        raise ToolError("the packages are signed with gpg, which is missing: apt-get install gnupg")
    for module in ("registry", "cosign", "helm", "helm3"):
        go_tools.build(module)
    path = f"{VENV}/bin:{BIN}:{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(REPO / "generator/src"),
        "PACKAGE_TESTS": "1",
    }
    return pytest(
        "package", "tests/package", "-n", "2", "--dist", "loadfile", environment=environment
    )


def local_cluster() -> Counts:
    """Break the local cluster, start it again and remove it: the last part of all."""
    return pytest("cluster", "tests/cluster", "-m", "not matrix")


def pytest(part: str, *arguments: str, environment: dict[str, str] | None = None) -> Counts:
    return with_report(
        part,
        "python",
        "-m",
        "pytest",
        "-q",
        "--junitxml=REPORT",
        *arguments,
        environment=environment,
    )


def with_report(part: str, *command: str, environment: dict[str, str] | None = None) -> Counts:
    """Run a command that writes a JUnit report to the argument REPORT; return the counts of the
    report.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        ok = call(
            part,
            *(word.replace("REPORT", str(report)) for word in command),
            environment=environment,
        )
        counts = Counts()
        for suite in ElementTree.parse(report).iter("testsuite") if report.exists() else ():
            total, failures, errors, skipped = (
                int(suite.get(name) or 0) for name in ("tests", "failures", "errors", "skipped")
            )
            counts += Counts(total - failures - errors - skipped, failures + errors, skipped)
    # A part that ran no test, or whose command failed although its tests passed, has failed.
    return counts if (ok and counts.passed) or counts.failed else counts + Counts(failed=1)


def call(part: str, *command: str, environment: dict[str, str] | None = None) -> bool:
    """Run a command; print its output as one block, because parts run in parallel."""
    start = time.monotonic()
    path = f"{VENV}/bin:{BIN}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=REPO,
        env=environment or {**os.environ, "PATH": path, "PYTHONPATH": str(REPO / "generator/src")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    result = "ok" if done.returncode == 0 else f"FAILED (exit code {done.returncode})"
    output = done.stdout.rstrip()
    lines = [f"[{part}] {' '.join(command)}: {result} in {time.monotonic() - start:.0f} s"]
    if output and (done.returncode or "pytest" in command):
        lines += [f"    {line}" for line in output.splitlines()]
    print("\n".join(lines), flush=True)
    return done.returncode == 0


def together(*lanes: list[Callable[[], Counts]]) -> Counts:
    """Run lists of parts side by side."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return sum(pool.map(lambda lane: sum((part() for part in lane), Counts()), lanes), Counts())


def fast(parts: list[str]) -> Counts:
    """Parts that need no cluster."""
    if set(parts) & {"lint", "charts", "values-fuzz"}:
        for module in (
            "helm",
            "helm-unittest",
            "kubeconform",
            "chart-testing",
            "helm3",
            "actionlint",
        ):
            go_tools.build(module)
    return together(
        [part for name, part in FAST.items() if name in parts and name == "unit"],
        [part for name, part in FAST.items() if name in parts and name != "unit"],
    )


FAST = {"lint": lint, "unit": unit, "charts": charts, "browser": browser, "tracking": tracking}
FAST |= {"differential": differential, "fuzz": fuzz, "package": package, "values-fuzz": values_fuzz}
ON_A_CLUSTER = {
    "e2e": e2e,
    "matrix": matrix,
    "gang": gang,
    "ipv6": ipv6,
    "values": values,
    "argocd": argocd,
}
ON_A_CLUSTER |= {"flux": flux, "lifecycle": lifecycle}
LATE = ("tracking", "fuzz")  # beside the tests that break the cluster
LONG = ("package", "values-fuzz")  # run only when they are named, as most on a cluster
ALL = [*(name for name in FAST if name not in LONG), "e2e", "cluster"]


def entry() -> None:
    parts = [word for word in sys.argv[1:] if word != "--quick"] or ALL
    names = [*FAST, *ON_A_CLUSTER, "cluster"]
    if unknown := set(parts) - set(names):
        raise ToolError(
            f"no such part: {', '.join(sorted(unknown))}; the parts are: {', '.join(names)}"
        )
    start = time.monotonic()
    breaks = "cluster" in parts and mode() is Mode.LOCAL
    late = [name for name in LATE if name in parts] if breaks else []
    with concurrent.futures.ThreadPoolExecutor() as pool:
        quick = pool.submit(fast, [name for name in parts if name not in late])
        ready = pool.submit(test_cluster.prepare) if set(ON_A_CLUSTER) & set(parts) else None
        counts = quick.result()
        for name, part in ON_A_CLUSTER.items():
            if name in parts:
                counts += part(ready.result())
    if breaks:
        counts += together([local_cluster], [FAST[name] for name in late])
    print(f"{' '.join(parts)}: {time.monotonic() - start:.0f} s")
    print(counts, flush=True)
    sys.exit(1 if counts.failed else 0)


if __name__ == "__main__":
    main(entry)
