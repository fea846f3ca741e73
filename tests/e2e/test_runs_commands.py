"""kubectl runs: the real kubectl against a server that speaks the Kubernetes API, with objects in
every state.
"""

import contextlib
import json
import time

import pytest
from click.testing import CliRunner, Result

from kubectl_runs import logs
from kubectl_runs.cli import cli
from tests.generator.api_server import ApiServer
from tests.generator.cluster_objects import cluster
from tests.helpers.group_pods import each_workload


def runs(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="kubectl runs", catch_exceptions=False)


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Return a function that serves the objects of a run."""
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "cache"))
    with contextlib.ExitStack() as servers:

        def start(found):
            server = servers.enter_context(ApiServer(found.objects, tmp_path))
            monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
            return server

        yield start


def pod_of(found, rank: str) -> str:
    return found.pods[rank]["metadata"]["name"]


@each_workload
def test_status_lists_ranks_with_node_and_phase(serve, workload):
    found = cluster(workload=workload)
    server = serve(found)
    result = runs("status", "rl")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0][1] == "running" and rows[1][:3] == ["RANK", "PHASE", "NODE"]
    assert {tuple(row[:2]) for row in rows[2:]} == {(rank, "running") for rank in found.pods}
    assert {method for method, _ in server.requests} == {"GET"}


def test_all_runs_are_listed_with_state_ranks_and_gpus(serve):
    found, other = (
        cluster(workload="jobset"),
        cluster("ddp-run", workload="statefulset", gpusPerNode=8),
    )
    found.unscheduled("buffer-0", "Unschedulable", "Insufficient cpu")
    for each in [*other.objects["statefulsets"], *other.pods.values()]:
        each["metadata"]["labels"]["app.kubernetes.io/instance"] = "train"
    for kind in found.objects:
        found.objects[kind] += other.objects[kind]
    serve(found)
    rows = [line.split() for line in runs().stdout.splitlines()]
    assert rows[0][:6] == ["NAME", "CHART", "STATE", "RANKS", "RESTARTS", "GPUS"]
    assert {tuple(row[:6]) for row in rows[1:]} == {
        ("rl", "job-group", "pending", "3/4", "0", "0"),
        ("train", "ddp-run", "running", "3/3", "0", "24"),
    }
    assert runs("-n", "ns").stdout == runs("list").stdout
    assert runs("-n", "other").stdout == "no runs\n"
    assert [each["name"] for each in json.loads(runs("list", "-o", "json").stdout)] == [
        "train",
        "rl",
    ]


def test_why_names_the_first_failure_with_its_last_lines(serve):
    found = cluster(workload="jobset")
    found.ended("learner-1", 7, "step 3\nKeyError: 'x'\x1b[2J")
    found.condition(found.owner, "Failed")
    serve(found)
    result = runs("why", "rl")
    assert result.exit_code == 1 and "\x1b" not in result.stdout
    assert "learner-1" in result.stdout and "Error, exit code 7" in result.stdout
    assert "  | KeyError: 'x'" in result.stdout.splitlines()


def test_what_may_not_be_read_is_named_and_the_rest_is_shown(serve):
    found = cluster(workload="jobs")
    found.unscheduled("buffer-0", "Unschedulable", "Insufficient cpu")
    server = serve(found)
    server.forbidden, server.absent = {"events", "statefulsets"}, {"jobsets", "workloads"}
    result = runs("status", "rl")
    assert result.exit_code == 0 and "Insufficient cpu" in result.stdout
    assert (
        "events" in result.stdout.splitlines()[-1]
        and "statefulsets" in result.stdout.splitlines()[-1]
    )


def test_logs_are_printed_rank_by_rank_and_filtered(serve):
    found = cluster(workload="jobs")
    server = serve(found)
    server.logs[pod_of(found, "learner-0"), "task"] = "T one\nT \x1b]0;own\x07two\n"
    server.logs[pod_of(found, "learner-1"), "task"] = "T three\n"
    server.logs[pod_of(found, "buffer-0"), "task"] = "T four\n"
    lines = [tuple(line.split()) for line in runs("logs", "rl").stdout.splitlines()]
    assert lines == [
        ("buffer-0", "|", "four"),
        ("learner-0", "|", "one"),
        ("learner-0", "|", "two"),
        ("learner-1", "|", "three"),
    ]
    lines = runs("logs", "rl", "learner", "--tail", "1").stdout.splitlines()
    assert [line.split(" | ")[1] for line in lines] == ["two", "three"]
    result = runs("logs", "rl", "typo")
    assert result.exit_code == 2 and "buffer-0" in result.stderr


def test_logs_are_followed_from_before_the_start_over_a_restart_to_the_end(serve, monkeypatch):
    monkeypatch.setattr(logs, "WAIT_S", 0.1)
    found = cluster(workload="jobs")
    found.waiting("buffer-0", "ContainerCreating")
    server, looks = serve(found), []
    first = pod_of(found, "buffer-0")

    def advance(path):
        looks.append(path.endswith("/configmaps"))
        if sum(looks) == 2 and looks[-1]:
            server.logs[first, "task"] = "2026-11-01T10:00:00Z one\n"
            found.ended("buffer-0", 143)
        if sum(looks) == 4 and looks[-1]:
            old = found.copy().pods["buffer-0"]
            found.objects["pods"].append(old)
            found.pods["buffer-0"]["metadata"] |= {
                "name": "second-x7k2p",
                "creationTimestamp": "2026-11-01T11:00:00Z",
            }
            server.logs["second-x7k2p", "task"] = "2026-11-01T11:00:00Z two\n"
            found.running("buffer-0")
        if sum(looks) == 6 and looks[-1]:
            for rank in found.pods:
                found.ended(rank, 0)

    server.before_answer = advance
    result = runs("logs", "rl", "buffer", "-f")
    assert result.exit_code == 0
    assert [line.split(" | ")[1] for line in result.stdout.splitlines()] == ["one", "two"]


def test_logs_of_a_run_that_has_not_started_say_so(serve):
    found = cluster(workload="jobs")
    for rank in found.pods:
        found.waiting(rank, "ContainerCreating")
    serve(found)
    result = runs("logs", "rl")
    assert result.stdout == "" and "starting" in result.stderr


def test_a_thousand_ranks_are_folded_in_one_table(serve):
    found = cluster(
        workload="jobs",
        tasks={"a": {"run": "a"}, "b": {"numNodes": 10, "run": "b"}},
        primaryTasks=[],
    )
    found.grow("a", 990)
    found.unscheduled("a-500", "Unschedulable", "Insufficient nvidia.com/gpu")
    server = serve(found)
    start = time.process_time()
    result = runs("status", "rl")
    cpu = time.process_time() - start
    assert result.exit_code == 0, result.output
    assert (
        len(result.stdout.splitlines()) <= 6
        and "999 waiting, 1 pending" not in result.stdout.splitlines()[2:]
    )
    assert "1000 ranks" in result.stdout and "Insufficient nvidia.com/gpu" in result.stdout
    assert len([path for _, path in server.requests if path.endswith("/pods")]) == 2  # pages
    assert cpu < 20, cpu  # the server's time is in it, too


@pytest.mark.parametrize(
    "arguments", [["status", "other"], ["why", "rl", "--context", "none"], ["logs", "other"]]
)
def test_nothing_to_read_exits_with_2(serve, arguments):
    serve(cluster(workload="jobs"))
    result = runs(*arguments)
    assert (result.exit_code, result.stdout) == (2, "") and "Traceback" not in result.stderr


def test_a_cluster_that_does_not_answer_is_named(serve):
    server = serve(cluster(workload="jobs"))
    server.__exit__()
    result = runs("status", "rl")
    assert result.exit_code == 2 and f"127.0.0.1:{server.server.server_port}" in result.stderr


def test_without_kubectl_its_name_is_printed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    result = runs("list")
    assert result.exit_code == 2 and "kubectl" in result.stderr
