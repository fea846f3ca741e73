"""What commands that wait make of a fleet, a run and a group, as tables: python -m tests.waits
[TABLE…].

Writes exit codes and seconds to docs/operate.md, in bold where they contradict the verdict. Fails
if that is a command which the notes of a chart name. Each release has a namespace of its own on the
cluster, on CPUs; several run at once.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hack import test_cluster
from hack.deps import go_tools
from hack.paths import REPO, ToolError, between, main
from tests.helpers.kube import Cluster, new_namespace
from tests.helpers.processes import ran
from tests.helpers.rendering import sets

PAGE = REPO / "docs" / "operate.md"
RELEASE = "run"
Rows = dict[str, tuple[str, ...]]  # row -> a command, or Helm and its flags


@dataclass(frozen=True)
class Table:
    """What commands make of a release in each situation; the first situation alone is a success."""

    name: str
    chart: str
    timeout_s: int  # of each command
    situations: dict[str, dict]  # values
    installs: Rows  # `helm install` that waits
    after: list[
        tuple[Rows, dict]
    ]  # commands that run at once after an installation, and more values for it
    right: set[str]  # rows whose exit code is the verdict


def installs(*flags: str) -> Rows:
    releases = ((4, "helm"), (3, "helm3"))
    return {
        f"`helm install {' '.join(flags)}`, Helm {number}": (helm, *flags)
        for number, helm in releases
    }


def waits(kind: str, condition: str) -> tuple[str, ...]:
    of_release = f"--selector=app.kubernetes.io/instance={RELEASE}"
    return "kubectl", "wait", kind, of_release, f"--for={condition}"


TEST = {"`helm test`": ("helm", "test", RELEASE)}
ABSENT = {"resources": {"requests": {"cpu": "900"}}}  # no node has them


def fleet(nodes: int, system: str = "linux", **values: object) -> dict:
    checks = {"device": "cpu", "checks": ["environment", "compute"]}
    checks |= {"fleet": {"deadlineSeconds": 100}}
    return {"nodes": nodes, "nodeSelector": {"kubernetes.io/os": system}, **checks, **values}


def of_fleets(nodes: int) -> Table:
    """On a cluster of this many nodes."""
    situations = {
        "every node passes": fleet(nodes),
        "nodes fail a check": fleet(nodes, inject="nan-product"),
        "no node has the labels": fleet(1, "no-such"),
        "fewer nodes than `nodes`": fleet(nodes + 1),
        "pods that never start": fleet(nodes, **ABSENT),
    }
    rollout = ("kubectl", "rollout", "status")
    of_a_job = {"`kubectl wait` of the Job (`workload: job`)": waits("job", "condition=Complete")}
    page = {
        "`kubectl rollout status` of the page": (
            *rollout,
            f"deployment/{RELEASE}-gpu-accept-fleet",
        ),
        **TEST,
    }
    less = {
        "`kubectl rollout status` of the DaemonSet": (*rollout, f"daemonset/{RELEASE}-gpu-accept")
    }
    after = [(page, {}), (of_a_job, {"workload": "job"}), (less, {})]
    wait = installs("--wait")
    return Table("waits", "gpu-accept", 150, situations, wait, after, {*wait, *page, *of_a_job})


def of_runs() -> Table:
    small = {"env": {"OMP_NUM_THREADS": "1"}}
    situations = {
        "it succeeds": small,
        "a program fails": {**small, "program": {"args": ["-m", "unittest", "no_such_module"]}},
        "its pods never start": {**small, **ABSENT},
    }
    job = {"`kubectl wait job --for=condition=Complete`": waits("job", "condition=Complete")}
    jobs = installs("--wait", "--wait-for-jobs")
    wait = installs("--wait") | jobs
    after = [({**TEST, **job}, {})]
    return Table("ddp-run", "ddp-run", 75, situations, wait, after, {*jobs, *job})


def of_groups() -> Table:
    def group(run, **resources):
        tasks = {"a": {"run": run, **resources}, "b": {"run": "sleep 3"}}
        return {"schemaVersion": 1, "name": "pair", "tasks": tasks}

    situations = {
        "it succeeds": group("sleep 3"),
        "a program fails": group("sleep 3; exit 3"),
        "its pods never start": group("sleep 3", **ABSENT),
    }
    completed = {
        "`kubectl wait jobset --for=condition=Completed`": waits("jobset", "condition=Completed")
    }
    end = waits("jobset", "jsonpath={.status.terminalState}")
    after = {
        **TEST,
        **completed,
        "`kubectl wait jobset --for=jsonpath='{.status.terminalState}'`": end,
    }
    wait = installs("--wait") | installs("--wait", "--wait-for-jobs")
    return Table("job-group", "job-group", 75, situations, wait, [(after, {})], {*completed})


def tables(nodes: int) -> list[Table]:
    return [of_fleets(nodes), of_runs(), of_groups()]


def ended(table: Table, command: list[str]) -> tuple[int, str]:
    """Exit code, and a cell: `0, 31 s`."""
    begun = time.monotonic()
    command += [f"--timeout={table.timeout_s}s"]
    done = ran(*command, timeout=table.timeout_s + 120)
    print(" ".join(command[:3]), done.returncode, done.stderr.strip()[-200:], flush=True)
    return done.returncode, f"{done.returncode}, {time.monotonic() - begun:.0f} s"


def tried(
    cluster: Cluster, table: Table, values: dict, rows: Rows, installing: bool
) -> dict[str, tuple[int, str]]:
    """Row -> exit code and cell, of a release of its own."""
    with new_namespace(cluster) as space, ThreadPoolExecutor(len(rows)) as pool:
        if installing:
            ((helm, *flags),) = rows.values()
            chart = str(REPO / "charts" / table.chart)
            commands = [
                [helm, "install", RELEASE, chart, *flags, *cluster.helm_image(), *sets(**values)]
            ]
        else:
            space.install(RELEASE, table.chart, *sets(**values))
            commands = [[*words] for words in rows.values()]
        commands = [[*words, "--namespace", space.name] for words in commands]
        return dict(
            zip(rows, pool.map(lambda command: ended(table, command), commands), strict=True)
        )


def write(cluster: Cluster, table: Table) -> list[str]:
    """Write the table, and return what contradicts the verdict although the chart's notes name it."""
    parts = [({row: words}, {}, True) for row, words in table.installs.items()]
    parts += [(rows, more, False) for rows, more in table.after]
    with ThreadPoolExecutor(4) as pool:
        running = {
            name: [
                pool.submit(tried, cluster, table, values | more, rows, first)
                for rows, more, first in parts
            ]
            for name, values in table.situations.items()
        }
    success, wrong, columns = next(iter(table.situations)), [], {}
    for name, started in running.items():
        columns[name] = {}
        for row, (code, cell) in (item for part in started for item in part.result().items()):
            lies = (code == 0) != (name == success)
            columns[name][row] = f"**{cell}**" if lies else cell
            wrong += [f"{table.name}: {name}: {row}: exit code {cell}"] * (
                lies and row in table.right
            )
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [
        f"| {row} | {' | '.join(each[row] for each in columns.values())} |"
        for row in columns[success]
    ]
    first = f"<!-- {table.name}: written by `make wait-table` -->"
    last = f"<!-- end of {table.name} -->"
    PAGE.write_text(between(PAGE.read_text(), first, last, "\n{}\n".format("\n".join(lines))))
    return wrong


def entry():
    os.environ |= test_cluster.prepare()
    cluster = Cluster(os.environ["WORKER_IMAGE"])
    known = {table.name: table for table in tables(len(cluster.schedulable_nodes()))}
    chosen = sys.argv[1:] or list(known)
    if unknown := set(chosen) - set(known):
        raise ToolError(
            f"no such table: {', '.join(sorted(unknown))}; the tables are: {', '.join(known)}"
        )
    go_tools.build("helm3")
    if wrong := [each for name in chosen for each in write(cluster, known[name])]:
        raise ToolError("; ".join(wrong))


if __name__ == "__main__":
    main(entry)
