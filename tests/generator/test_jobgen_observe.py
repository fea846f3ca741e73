"""jobgen status, logs and why, over a server that speaks the Kubernetes API."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import jobgen as package
from tests.generator.api_server import ApiServer
from tests.generator.cluster_objects import cluster


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Return a function that serves the objects of a run."""
    servers = []

    def start(found) -> ApiServer:
        server = ApiServer(found.snapshot, tmp_path).__enter__()
        servers.append(server)
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        return server

    yield start
    for server in servers:
        server.__exit__()


def pod_of(found, rank: str) -> str:
    return found.pods[rank]["metadata"]["name"]


@pytest.mark.parametrize("layout", ["jobset", "jobs"])
def test_status_lists_ranks_with_node_and_phase(jobgen, serve, layout):
    found = cluster(layout=layout)
    server = serve(found)
    result = jobgen("status", "rl")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0][1] == "running" and rows[1] == ["RANK", "PHASE", "NODE", "DETAIL"]
    assert {tuple(row[:2]) for row in rows[2:]} == {(rank, "running") for rank in found.pods}
    assert {method for method, _, _ in server.requests} == {"GET"}
    assert {token for _, _, token in server.requests} == {"Bearer t0ken"}


@pytest.mark.parametrize("workload", ["jobset", "indexed-job", "statefulset"])
def test_releases_of_ddp_run_are_covered(jobgen, serve, workload):
    found = cluster("ddp-run", workload=workload)
    found.ended("node-1", 70, "exit code 70 (no-progress): no rank made progress. look")
    serve(found)
    result = jobgen("why", "rl", "-o", "json")
    (first,) = [each for each in json.loads(result.stdout)["findings"] if each["first"]]
    assert (first["cause"], first["ranks"], first["exit_code"]) == ("hang", ["node-1"], 70)


def test_why_names_the_first_failure_with_its_last_lines(jobgen, serve):
    found = cluster(layout="jobset")
    found.ended("learner-1", 7, "step 3\nKeyError: 'x'\x1b[2J")
    serve(found)
    result = jobgen("why", "rl")
    assert result.exit_code == 1 and "\x1b" not in result.stdout
    assert "learner-1" in result.stdout and "[program, exit code 7]" in result.stdout
    assert "  | KeyError: 'x'" in result.stdout.splitlines()


def test_why_reads_warnings_queues_and_jobs_where_ranks_are_missing(jobgen, serve):
    found = cluster(layout="jobset")
    found.removed("buffer-0")
    run = found.owner["metadata"]["name"]
    found.event(f"{run}-buffer-0-0", "FailedCreate", "exceeded quota: compute")
    found.event("another", "FailedCreate", "not ours")
    found.snapshot.workloads = []
    serve(found)
    findings = json.loads(jobgen("why", "rl", "-o", "json").stdout)["findings"]
    assert ("create", ["buffer-0"]) in [(each["cause"], each["ranks"]) for each in findings]
    assert all(each["remedy"] and each["meaning"] for each in findings) and "not ours" not in str(findings)


def test_an_agents_log_decides_whether_the_barrier_has_opened(jobgen, serve):
    found = cluster(layout="jobs", tasks={"a": {"numNodes": 3, "run": "a"}}, primaryTasks=[])
    found.unscheduled("a-2", "Unschedulable", "Insufficient cpu")
    server = serve(found)
    assert "2 waiting" in jobgen("status", "rl").stdout
    server.logs[pod_of(found, "a-0"), "agent"] = "T [GROUP] node=a-0 ranks=3 released_after_s=1.0\n"
    assert "2 running" in jobgen("status", "rl").stdout


def test_what_may_not_be_read_is_named_and_the_rest_is_shown(jobgen, serve):
    found = cluster(layout="jobs")
    found.unscheduled("buffer-0", "Unschedulable", "Insufficient cpu")
    server = serve(found)
    server.forbidden, server.absent = {"events", "statefulsets"}, {"jobsets", "workloads"}
    result = jobgen("status", "rl")
    assert result.exit_code == 0 and "Insufficient cpu" in result.stdout
    assert "events" in result.stdout.splitlines()[-1] and "statefulsets" in result.stdout.splitlines()[-1]


def test_logs_are_merged_by_time_and_filtered(jobgen, serve):
    found = cluster(layout="jobs")
    server = serve(found)
    server.logs[pod_of(found, "learner-0"), "task"] = "2026-11-01T10:00:00.1Z one\n2026-11-01T10:00:02Z four\n"
    server.logs[pod_of(found, "learner-1"), "task"] = "2026-11-01T10:00:00.12Z two\n"
    server.logs[pod_of(found, "buffer-0"), "task"] = "2026-11-01T10:00:01Z three\n"
    lines = jobgen("logs", "rl").stdout.splitlines()
    assert [line.split(" | ")[1] for line in lines] == ["one", "two", "three", "four"]
    assert [line.split()[0] for line in lines] == ["learner-0", "learner-1", "buffer-0", "learner-0"]
    lines = jobgen("logs", "rl", "--rank", "learner", "--tail", "1").stdout.splitlines()
    assert [line.split(" | ")[1] for line in lines] == ["two", "four"]
    followed = jobgen("logs", "rl", "-f", "-r", "buffer-0").stdout
    assert followed == "buffer-0 | three\n"
    assert jobgen("logs", "rl", "--rank", "typo").exit_code == 2


def test_watch_shows_changes_until_the_end(jobgen, serve):
    found = cluster(layout="jobs")
    server = serve(found)
    seen = []

    def advance(path: str) -> None:
        if path.endswith("/configmaps"):
            seen.append(path)
            if len(seen) == 3:
                found.ended("buffer-0", 0)
            if len(seen) == 5:
                for rank in found.pods:
                    found.ended(rank, 0)

    server.before_answer = advance
    result = jobgen("status", "rl", "--watch", "--interval", "0.1")
    headers = [line.split()[1] for line in result.stdout.splitlines() if line.startswith("rl: ")]
    assert headers == ["running", "running", "done"] and result.exit_code == 0


def test_a_thousand_ranks_are_folded_in_one_table(jobgen, serve):
    found = cluster(layout="jobs", tasks={"a": {"run": "a"}, "b": {"numNodes": 10, "run": "b"}}, primaryTasks=[])
    found.grow("a", 990)
    found.unscheduled("a-500", "Unschedulable", "Insufficient nvidia.com/gpu")
    server = serve(found)
    start = time.process_time()
    result = jobgen("status", "rl")
    cpu = time.process_time() - start
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) <= 6 and "999 waiting, 1 pending" not in result.stdout.splitlines()[2:]
    assert "1000 ranks" in result.stdout and "Insufficient nvidia.com/gpu" in result.stdout
    assert len([path for _, path, _ in server.requests if path.endswith("/pods")]) == 2  # pages
    assert cpu < 20, cpu  # the server's time is in it, too


@pytest.mark.parametrize("arguments", [["status", "other"], ["why", "rl", "--context", "none"], ["logs", "other"]])
def test_nothing_to_read_exits_with_2(jobgen, serve, arguments):
    serve(cluster(layout="jobs"))
    result = jobgen(*arguments)
    assert (result.exit_code, result.stdout) == (2, "") and "Traceback" not in result.stderr


def test_a_cluster_that_does_not_answer_is_named(jobgen, serve):
    server = serve(cluster(layout="jobs"))
    server.__exit__()
    result = jobgen("status", "rl")
    assert result.exit_code == 2 and f"127.0.0.1:{server.server.server_port}" in result.stderr


def test_without_the_client_its_name_is_printed_and_other_commands_do_not_load_it(tmp_path):
    (tmp_path / "kubernetes.py").write_text("raise ImportError('absent')\n")
    sources = str(Path(package.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{sources}"}

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "jobgen", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    done = run("status", "rl")
    assert done.returncode == 2 and "jobgen[cluster]" in done.stderr
    assert run("schema", "task").returncode == 0
    probe = "import sys, jobgen.cli as c\ntry: c.cli(['schema', 'task'])\nexcept SystemExit: pass\n"
    probe += "print([n for n in sys.modules if n.startswith(('kubernetes', 'jobgen.observe', 'jobgen.convert'))])"
    command = [sys.executable, "-c", probe]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]"
