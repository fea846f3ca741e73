"""The rows of the JobGroup test plan, with its YAML as written; a docstring is what the plan calls
actual behavior.
"""

import re
import sys

import pytest

from gpuworker.group.barrier import format_missing
from tests.helpers.group_pods import (
    all_succeed,
    each_workload,
    end,
    execute,
    exit_code,
    jobset_ends,
    launch,
    output,
    printed_at,
    rank,
    started_at,
    uninstall,
    wait_for_output,
)
from tests.helpers.kube import SEEDS, jobgen, wait_until
from tests.helpers.processes import ran


@pytest.mark.row("1.1", "YAML Parsing")
def test_parsing(tmp_path):
    """The valid group is accepted; each faulty one is refused with file, line and the way out."""
    values = jobgen("to-values", str(SEEDS / "test_jobgroup_valid.yaml"))
    assert "name: test-group" in values and "job-a:" in values and "job-b:" in values
    header, task = (
        "---\nname: g\nplacement: INVALID\nexecution: parallel\n",
        "---\nname: a\nrun: echo hello\n",
    )
    file = tmp_path / "group.yaml"
    file.write_text(header + task + task)
    done = ran(sys.executable, "-m", "jobgen", "validate", file)
    assert done.returncode == 1
    for line, message in ((3, "placement"), (9, 'Duplicate job name "a"')):
        assert re.search(rf"{file}:{line}:\d+: error\[.*{message}", done.stderr), done.stderr


ENVIRONMENT = """\
---
name: env-group
execution: parallel
---
name: t
num_nodes: 2
envs: {PRICE: "$5 $(HOME) $$", EMPTY: ""}
setup: echo "SETUP ran as $(id -u) rank $SKYPILOT_SETUP_NODE_RANK"
run: |
  env | sort
  echo "IPS=$(echo "$SKYPILOT_NODE_IPS" | tr '\\n' ' ')"
  test -w /dev/shm && test -w /tmp && test -w "$HOME"
"""


VARIABLES = """\
NNODES=2
NODE_RANK={number}
NPROC_PER_NODE=1
MASTER_ADDR={master}
MASTER_PORT=29500
PET_NNODES=2
PET_NODE_RANK={number}
PET_NPROC_PER_NODE=1
PET_MASTER_ADDR={master}
PET_MASTER_PORT=29500
NUM_NODES=2
NUM_GPUS_PER_NODE=0
RANK={number}
ATTEMPT=0
POD_NAME={pod}
POD_IP={ip}
NODE_NAME={node}
SKYPILOT_JOBGROUP_NAME=env-group
SKYPILOT_NUM_NODES=2
SKYPILOT_NODE_RANK={number}
SKYPILOT_NUM_GPUS_PER_NODE=0
PRICE=$5 $(HOME) $$
EMPTY=
"""


@pytest.mark.row("1.2", "Networking Unit")
@each_workload
def test_environment(namespace, workload):
    """The variables of SkyPilot and of torchrun have the right values on every rank."""
    launch(namespace, ENVIRONMENT, "--set", f"workload={workload}")
    pods = all_succeed(namespace, "t-0", "t-1")
    addresses = [pods[f"t-{rank}"]["status"]["podIP"] for rank in (0, 1)]
    run_ids = set()
    for number in (0, 1):
        pod = pods[f"t-{number}"]
        lines = namespace.logs(pod, "task").splitlines()
        env = dict(line.split("=", 1) for line in lines if "=" in line)
        master = f"t-0.env-group.{namespace.name}.svc.cluster.local"
        about = {"number": number, "master": master, "pod": pod["metadata"]["name"]}
        about |= {"ip": pod["status"]["podIP"], "node": pod["spec"]["nodeName"]}
        expected = dict(line.split("=", 1) for line in VARIABLES.format(**about).splitlines())
        assert {name: env.get(name) for name in expected} == expected
        assert env["IPS"].split() == addresses
        assert f"SETUP ran as 65532 rank {number}" in lines
        run_ids.add((env["RUN_ID"], env["SKYPILOT_TASK_ID"]))
    assert len(run_ids) == 1, "one id per run, the same on every rank"


@pytest.mark.row("2.1", "Minimal JobGroup")
@each_workload
def test_two_jobs_start_together_and_succeed(namespace, workload):
    """Both start together, know the group's name, and succeed; `hostname` prints job-a-0."""
    launch(namespace, "test_job_group.yaml", "--set", f"workload={workload}")
    for host in all_succeed(namespace, "job-a-0", "job-b-0"):
        assert "SKYPILOT_JOBGROUP_NAME: test-job-group" in output(namespace, host)
        assert f"Hostname: {host}" in output(namespace, host)
    if workload == "jobset":
        assert jobset_ends(namespace) == "Completed"
    uninstall(namespace)


@pytest.mark.row("2.2", "Cross-Job Networking")
def test_client_finds_server_by_name(namespace):
    """The client resolves server-0.GROUP by DNS (nothing is written to /etc/hosts) and connects."""
    launch(namespace, "k8s_networking_test.yaml")
    all_succeed(namespace, "server-0", "client-0")
    words = output(namespace, "client-0")
    assert "SUCCESS: Connected to server on attempt" in words
    assert "DNS lookup failed" not in words


@pytest.mark.row("2.3", "Multi-Node Job")
def test_multi_node_task_and_its_names(namespace):
    """Two worker pods with ranks 0 and 1; the coordinator reaches both by name."""
    launch(namespace, "k8s_multinode_test.yaml")
    all_succeed(namespace, "workers-0", "workers-1", "coordinator-0")
    for number in (0, 1):
        assert "SKYPILOT_NUM_NODES: 2" in output(namespace, f"workers-{number}")
        assert f"SKYPILOT_NODE_RANK: {number}" in output(namespace, f"workers-{number}")
    assert output(namespace, "coordinator-0").count("  Reachable") == 2


@pytest.mark.row("3.1", "Mixed Resources")
def test_requests_are_what_was_asked(namespace):
    """Each pod requests its own cpus and memory; a `+` changes nothing, since a request is a
    minimum.
    """
    launch(namespace, "k8s_heterogeneous_test.yaml")
    pods = all_succeed(namespace, "compute-heavy-0", "memory-heavy-0", "lightweight-0")
    asked = {
        host: pod["spec"]["containers"][0]["resources"]["requests"] for host, pod in pods.items()
    }
    assert asked == {
        "compute-heavy-0": {"cpu": "4", "memory": "4G"},
        "memory-heavy-0": {"cpu": "2", "memory": "8G"},
        "lightweight-0": {"cpu": "1", "memory": "2G"},
    }


@pytest.mark.row("4.1", "RL Architecture")
def test_seven_ranks_resolve_each_other(namespace):
    """Seven pods; each resolves all seven names to the pods' addresses while they run; all succeed."""
    launch(namespace, "k8s_rl_architecture_test.yaml")
    hosts = ["replay-buffer-0"]
    hosts += [
        f"{task}-{number}"
        for task in ("trainer", "data-processor", "env-worker")
        for number in (0, 1)
    ]
    for host in hosts:
        wait_for_output(namespace, host, "starting")
    addresses = {host: rank(namespace, host)["status"]["podIP"] for host in hosts}
    names = [f"{host}.rl-experiment" for host in hosts]
    for host in hosts:
        lines = execute(namespace, host, "getent", "ahostsv4", *names).splitlines()
        found = {
            line.split()[2].split(".")[0]: line.split()[0]
            for line in lines
            if len(line.split()) > 2
        }
        assert found == addresses, f"as {host} sees them"
    all_succeed(namespace, *hosts)


@pytest.mark.row("5.1", "Job Failure")
def test_a_failing_job_ends_the_group(namespace):
    """The group fails with the first failed job named; success-job is ended (onFailure: continue
    lets it run on); exit code, log and last words of failing-job stay readable.
    """
    name = launch(namespace, "k8s_failure_test.yaml")
    assert jobset_ends(namespace) == "Failed"
    conditions = namespace.objects("jobset")[0]["status"]["conditions"]
    assert any("failing-job-0" in condition.get("message", "") for condition in conditions), (
        conditions
    )
    pod = rank(namespace, "failing-job-0")
    assert exit_code(pod) == 1
    assert "About to fail..." in output(namespace, "failing-job-0")
    last_words = end(pod)["message"]
    assert "About to fail..." in last_words and "step=run exit_code=1" in last_words
    wait_until(
        lambda: rank(namespace, "success-job-0") is None, "success-job was ended with its group", 60
    )
    said = namespace.why(name)
    assert (
        "first failure: failing-job-0" in said
        and "Error, exit code 1" in said
        and "About to fail..." in said
    )


@pytest.mark.row("5.2", "Resource Unavailable")
@each_workload
def test_an_impossible_job_lets_nothing_run(namespace, workload):
    """No user code runs: at its deadline the barrier names impossible-job-0. With Kueue not even a
    pod exists.
    """
    name = launch(
        namespace,
        "k8s_resource_unavailable.yaml",
        "--set",
        f"timeouts.joinSeconds=10,workload={workload}",
    )

    def failed():
        pod = rank(namespace, "normal-job-0")
        return pod if pod and pod["status"]["phase"] == "Failed" else None

    pod = wait_until(failed, "normal-job-0 gave up at the barrier", 90)
    assert exit_code(pod) == 66
    last_words = end(pod)["message"]
    assert format_missing(["impossible-job-0"], []) in last_words
    assert "Normal job" not in output(namespace, "normal-job-0")
    said = namespace.why(name)
    # JobSet removes the pod that no node could take; what the barrier wrote remains.
    assert "impossible-job-0" in said and re.search("Unschedulable|join-timeout", said), said


@pytest.mark.row("5.3", "Cancellation")
def test_cancelling_leaves_nothing(namespace):
    """`helm uninstall` ends both jobs; no object of the group is left."""
    launch(namespace, "k8s_cancel_test.yaml")
    for host in ("long-job-a-0", "long-job-b-0"):
        wait_for_output(namespace, host, "starting")
    uninstall(namespace)


@pytest.mark.row("5.4", "Empty Run")
def test_an_empty_run_succeeds(namespace):
    """The job without `run` takes part in the barrier and succeeds."""
    launch(namespace, "k8s_empty_run_test.yaml")
    all_succeed(namespace, "empty-job-0", "normal-job-0")
    assert jobset_ends(namespace) == "Completed"


@pytest.mark.row("5.5", "Duplicate Names")
def test_duplicate_names_are_refused():
    """Refused by jobgen, with both lines, before anything reaches the cluster."""
    file = str(SEEDS / "k8s_duplicate_names.yaml")
    done = ran(sys.executable, "-m", "jobgen", "to-values", file)
    assert done.returncode == 1 and done.stdout == ""
    assert 'Duplicate job name "my-job"' in done.stderr


@pytest.mark.row("6.1", "Recovery Config")
@each_workload
def test_recovery_in_place(namespace, workload):
    """Exit code 29 starts `run` again in the same pod, where /tmp is kept: "Recovery successful!";
    normal-job goes on undisturbed. SkyPilot itself would start a new pod each time, find no marker,
    and never come to an end.
    """
    launch(namespace, "k8s_recovery_test.yaml", "--set", f"workload={workload}")
    wait_for_output(namespace, "normal-job-0", "Normal job running")
    before = rank(namespace, "normal-job-0")["metadata"]["uid"]
    words = wait_for_output(namespace, "recoverable-job-0", "Recovery successful!")
    assert words.count("First attempt, simulating recoverable error") == 1
    assert "exit_code=29 restarts_in_s=1 errors=0 of=3" in words
    pods = all_succeed(namespace, "recoverable-job-0", "normal-job-0")
    assert pods["normal-job-0"]["metadata"]["uid"] == before
    assert output(namespace, "normal-job-0").count("Normal job running") == 1


@pytest.mark.row("8.1", "Scale (5 jobs)")
def test_five_jobs_start_within_two_seconds(namespace):
    """All five started within 2 s of each other and succeeded."""
    launch(namespace, "k8s_scale_test.yaml")
    pods = all_succeed(namespace, *(f"job-{i}-0" for i in range(1, 6)))
    starts = [started_at(namespace, host) for host in pods]
    assert max(starts) - min(starts) <= 2
    last = max(printed_at(namespace, host, "waits for the group") for host in pods)
    print(f"the last rank was there {max(starts) - last:.2f} s before the last one started")


@pytest.mark.row("8.2", "Concurrent Groups")
def test_concurrent_groups_do_not_meet(namespace):
    """Three groups at once in one namespace, with the same tasks and names that begin alike; each
    sees itself only.
    """
    groups = ("group", "group-1", "group-10")
    for name in groups:
        launch(namespace, "test_job_group.yaml", name=name, release=name)
    for name in groups:
        for host in all_succeed(namespace, "job-a-0", "job-b-0", release=name):
            assert f"SKYPILOT_JOBGROUP_NAME: {name}\n" in output(namespace, host, name)
        assert jobset_ends(namespace, name) == "Completed"
    namespace.helm("uninstall", *groups)
