"""What `helm install --wait`, `helm test` and `kubectl wait` make of a run of ddp-run and of a group."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from hack.paths import REPO
from tests.helpers.kube import Cluster, new_namespace
from tests.waits.table import code, ended, put, table

PAGE = REPO / "docs" / "operate.md"
TIMEOUT_S = 75  # of each command
RELEASE = "run"
OUTCOMES = ("it succeeds", "a program fails", "its pods never start")
INSTALLS = {
    f"`helm install {' '.join(flags)}`, Helm {release}": (helm, *flags)
    for flags in (("--wait",), ("--wait", "--wait-for-jobs"))
    for release, helm in ((4, "helm"), (3, "helm3"))
}
TEST = {"`helm test`": ("helm", "test", RELEASE, "--timeout", f"{TIMEOUT_S}s")}


def waits(kind: str, condition: str) -> tuple[str, ...]:
    selector = f"--selector=app.kubernetes.io/instance={RELEASE}"
    return ("kubectl", "wait", kind, selector, f"--for={condition}", f"--timeout={TIMEOUT_S}s")


@dataclass(frozen=True)
class Chart:
    name: str
    values: tuple[dict, dict, dict]  # for each outcome
    after: dict[str, tuple[str, ...]]  # row -> command after the installation
    right: set[str]  # rows whose exit code is the verdict


def group(run: str, **resources: object) -> dict:
    tasks = {"a": {"run": run, **resources}, "b": {"run": "sleep 3"}}
    return {"schemaVersion": 1, "name": "pair", "tasks": tasks}


ABSENT = {"resources": {"requests": {"cpu": "900"}}}  # no node has them
SMALL = {"env": {"OMP_NUM_THREADS": "1"}}
OF_THE_JOB = "`kubectl wait job --for=condition=Complete`"
OF_THE_GROUP = "`kubectl wait jobset --for=condition=Completed`"
ITS_END = "`kubectl wait jobset --for=jsonpath='{.status.terminalState}'`"
CHARTS = (
    Chart(
        "ddp-run",
        (SMALL, {**SMALL, "program": {"args": ["-m", "unittest", "no_such_module"]}}, {**SMALL, **ABSENT}),
        {**TEST, OF_THE_JOB: waits("job", "condition=Complete")},
        {OF_THE_JOB, *(way for way, words in INSTALLS.items() if "--wait-for-jobs" in words)},
    ),
    Chart(
        "job-group",
        (group("sleep 3"), group("sleep 3; exit 3"), group("sleep 3", **ABSENT)),
        {
            **TEST,
            OF_THE_GROUP: waits("jobset", "condition=Completed"),
            ITS_END: waits("jobset", "jsonpath={.status.terminalState}"),
        },
        {OF_THE_GROUP},
    ),
)


def installed_with_wait(cluster: Cluster, chart: Chart, values: dict, way: str) -> dict[str, str]:
    helm, *flags = INSTALLS[way]
    with new_namespace(cluster) as space:
        command = [helm, "install", RELEASE, str(REPO / "charts" / chart.name), "--namespace", space.name, *flags]
        settings = [word for key, value in values.items() for word in ("--set-json", f"{key}={json.dumps(value)}")]
        return {way: ended([*command, "--timeout", f"{TIMEOUT_S}s", *cluster.helm_image(), *settings], TIMEOUT_S)}


def waited_for(cluster: Cluster, chart: Chart, values: dict) -> dict[str, str]:
    """Install, then run the commands at the same time."""
    with new_namespace(cluster) as space, ThreadPoolExecutor(len(chart.after)) as pool:
        space.install(RELEASE, chart.name, values=json.dumps(values))
        commands = [[*words, "--namespace", space.name] for words in chart.after.values()]
        return dict(zip(chart.after, pool.map(lambda each: ended(each, TIMEOUT_S), commands), strict=True))


def write(cluster: Cluster) -> list[str]:
    """Write a table per chart, and return what contradicts the verdict although the chart's notes name it."""
    parts: dict[tuple[str, str], list[Future]] = {}
    with ThreadPoolExecutor(5) as pool:
        for chart in CHARTS:
            for outcome, values in zip(OUTCOMES, chart.values, strict=True):
                started = [pool.submit(installed_with_wait, cluster, chart, values, way) for way in INSTALLS]
                started.append(pool.submit(waited_for, cluster, chart, values))
                parts[chart.name, outcome] = started
    wrong = []
    for chart in CHARTS:
        found = {}
        for outcome in OUTCOMES:
            cells = {way: text for part in parts[chart.name, outcome] for way, text in part.result().items()}
            lies = {way for way, text in cells.items() if (code(text) == 0) != (outcome == OUTCOMES[0])}
            found[outcome] = {way: f"**{text}**" if way in lies else text for way, text in cells.items()}
            wrong += [f"{chart.name}: {outcome}: {way}: exit code {cells[way]}" for way in sorted(lies & chart.right)]
        put(PAGE, chart.name, table(found))
    return wrong
