"""Features of a group beyond the test plan, on real pods."""

import base64
import hashlib
import os
import re
import subprocess
from datetime import datetime

import yaml

from tests.helpers.group_pods import (
    all_succeed,
    each_workload,
    exit_code,
    install,
    jobset_ends,
    launch,
    output,
    rank,
    started_at,
    wait_for_output,
)
from tests.helpers.kube import REPO, by_host, phases, run, wait_until


@each_workload
def test_example_tasks_find_each_other(namespace, workload):
    launch(
        namespace,
        REPO / "values-examples" / "find-each-other" / "group.yaml",
        "--set",
        f"workload={workload}",
    )
    pods = all_succeed(namespace, "trainer-0", "trainer-1", "replay-buffer-0")
    for number in (0, 1):
        words = output(namespace, f"trainer-{number}")
        for host, pod in pods.items():
            assert f"FOUND {host}.find-each-other at {pod['status']['podIP']}\n" in words
        assert "FOUND batch of transitions on replay-buffer-0.find-each-other" in words


CATCHES = "trap 'echo caught SIGTERM; exit 0' TERM; echo serving; while :; do sleep 0.2; done"


@each_workload
def test_auxiliary_tasks_end_after_their_delay(namespace, workload):
    tasks = {
        "trainer": {"run": "sleep 3"},
        "buffer": {"run": CATCHES, "terminationDelaySeconds": 5},
    }
    install(namespace, tasks, workload=workload, primaryTasks=["trainer"])
    wait_for_output(namespace, "buffer-0", "serving")
    buffer = rank(namespace, "buffer-0")["metadata"]["name"]
    logs = ["kubectl", "-n", namespace.name, "logs", "-f", "--timestamps", buffer, "-c", "task"]
    follow = subprocess.Popen(logs, stdout=subprocess.PIPE, text=True)

    def ended_well():
        pod = rank(namespace, "trainer-0")
        return pod if pod["status"]["phase"] == "Succeeded" else None

    trainer = wait_until(ended_well, "trainer-0 succeeded")
    words, _ = follow.communicate(timeout=90)
    assert "caught SIGTERM" in words and "ended with the group" in words
    ended = trainer["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]
    caught = next(line.split()[0] for line in words.splitlines() if "caught" in line)
    waited = datetime.fromisoformat(caught) - datetime.fromisoformat(ended)
    assert 4 <= waited.total_seconds() < 16
    if workload == "jobset":
        assert jobset_ends(namespace) == "Completed"
    else:
        all_succeed(namespace, "trainer-0", "buffer-0")


@each_workload
def test_on_failure_continue(namespace, workload):
    tasks = {"bad": {"run": "exit 4"}, "good": {"run": "sleep 8; echo finished"}}
    install(namespace, tasks, workload=workload, onFailure="continue")
    pods = by_host(namespace.wait_for_end("grp", ranks=2))
    assert phases(list(pods.values())) == {"bad-0": "Failed", "good-0": "Succeeded"}
    assert exit_code(pods["bad-0"]) == 4
    assert "finished" in output(namespace, "good-0")
    if workload == "jobset":
        assert jobset_ends(namespace) == "Failed"


ORDERED = """\
data: {run: sleep 3, numNodes: 2}
server:
  run: sleep 4; cd /tmp; exec python3 -m http.server 8080
  podTemplate:
    spec:
      containers:
      - readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
client:
  run: curl -sf http://server-0.g:8080/ >/dev/null
  dependsOn: {server: ready, data: done}
late: {run: "true", dependsOn: {client: started}}
"""


@each_workload
def test_start_order(namespace, workload):
    install(namespace, yaml.safe_load(ORDERED), workload=workload, primaryTasks=["client", "late"])
    for host in ("client-0", "late-0"):
        wait_until(
            lambda host=host: phases(namespace.pods("grp")).get(host) == "Succeeded",
            f"{host} succeeded",
            120,
        )
    for number in (0, 1):
        assert started_at(namespace, "client-0") >= started_at(namespace, f"data-{number}") + 3
    assert started_at(namespace, "late-0") >= started_at(namespace, "client-0")


def test_without_inter_connection(namespace):
    """No Service and no barrier: one task runs although the other cannot be scheduled."""
    tasks = {
        "a": {"run": "echo ran"},
        "b": {"run": "true", "resources": {"requests": {"cpu": "10000"}}},
    }
    install(namespace, tasks, interConnection=False)
    wait_for_output(namespace, "a-0", "\nran")
    assert namespace.objects("services") == []


def test_recovery_of_a_task_of_several_nodes(namespace):
    """Rank 1 of the first attempt fails with a listed code: the whole group starts again, and that
    is not counted.
    """
    script = 'echo "attempt $ATTEMPT"; if [ "$ATTEMPT$NODE_RANK" = 01 ]; then exit 29; fi; sleep 5'
    tasks = {
        "t": {"numNodes": 2, "run": script, "recovery": {"recoverOnExitCodes": [29]}},
        "other": {"run": "sleep 5"},
    }
    install(namespace, tasks)
    assert jobset_ends(namespace) == "Completed"
    status = namespace.objects("jobset")[0]["status"]
    assert (status["restarts"], status.get("restartsCountTowardsMax", 0)) == (1, 0)
    assert "attempt 1" in output(namespace, "t-1")


def test_counted_restarts_of_a_task_of_several_nodes_end(namespace):
    tasks = {"t": {"numNodes": 2, "run": "exit 5", "recovery": {"maxRestartsOnErrors": 1}}}
    install(namespace, tasks)
    assert jobset_ends(namespace) == "Failed"
    assert namespace.objects("jobset")[0]["status"]["restarts"] == 1


def test_any_image_with_a_posix_shell_and_a_read_only_root(namespace):
    image = os.environ["SHELL_IMAGE"]  # busybox: no bash, no Python
    script = 'echo "I am $(id -u) in $SHELL_IS"; echo x >/tmp/x && echo y >"$HOME/y" && ! echo z >/z && echo fine'
    files = {"code": {"a.txt": {"text": "from a file\n"}}}
    tasks = {
        "bb": {
            "image": image,
            "run": script + "; cat a.txt",
            "env": {"SHELL_IS": "sh"},
            "workdir": {"files": "code"},
        },
        "worker": {"run": "true"},
    }
    read_only = ("--set", "containerSecurityContext.readOnlyRootFilesystem=true")
    install(namespace, tasks, *read_only, files=files)
    assert jobset_ends(namespace) == "Completed"
    words = output(namespace, "bb-0")
    assert "I am 65532 in sh" in words and "\nfine\n" in words and "\nfrom a file\n" in words


HOSTILE = "a b\t$(touch /tmp/pwned) `touch /tmp/pwned` \"'\\ {{ .Values.name }} $$ $(HOME) ü 🚀 %s -n\r\n\n  x  "


def test_hostile_content_arrives_byte_for_byte(namespace):
    binary = bytes(range(256)) * 1000
    big = "x" * 499_999 + "\n"
    files = {
        "odd": {
            "a b/'$(touch pwned)' {{ x }}.txt": {"text": HOSTILE},
            "bin": {"base64": base64.b64encode(binary).decode(), "executable": True},
            "big": {"text": big},
        }
    }
    show = "cd /data; sha256sum bin big; base64 -w0 a*/*; echo; echo END; env | base64 -w0; ls -l bin; ls /tmp"
    tasks = {"t": {"run": show + f"\n: <<'EOT'\n{HOSTILE}\nEOT\n", "env": {"ODD": HOSTILE}}}
    tasks["t"]["fileMounts"] = [
        {"mountPath": "/data", "files": "odd"}, {"mountPath": "/etc/one", "files": "odd", "subPath": "bin"},
    ]  # fmt: skip
    install(namespace, tasks, files=files)
    assert jobset_ends(namespace) == "Completed"
    pod = rank(namespace, "t-0")["metadata"]["name"]
    raw = subprocess.run(
        ["kubectl", "-n", namespace.name, "logs", pod, "-c", "task"],
        capture_output=True,
        timeout=60,
        check=True,
    ).stdout.decode()
    assert f"{hashlib.sha256(binary).hexdigest()}  bin" in raw
    assert f"{hashlib.sha256(big.encode()).hexdigest()}  big" in raw
    assert base64.b64encode(HOSTILE.encode()).decode() + "\nEND\n" in raw
    env = base64.b64decode(raw.split("END\n")[1].split("-rwx")[0]).decode()
    assert f"ODD={HOSTILE}\n" in env
    assert "pwned" not in raw.split("END\n")[1]


def test_the_commands_in_the_notes(namespace):
    tasks = {"good": {"run": "echo fine; sleep 3"}, "bad": {"run": "sleep 5; echo broken; exit 6"}}
    notes = install(namespace, tasks)
    assert jobset_ends(namespace) == "Failed"

    def command(title):
        line = re.search(rf"^{title}:\s+(.*)$", notes, re.MULTILINE)[1]
        return run("sh", "-c", line.replace(" CHART ", f" {REPO}/charts/job-group "))

    assert "bad" in command("Status")
    assert "broken" in command("Logs")
    first = command("First failure").splitlines()[1].split()
    assert first[:2] == ["bad-0", "6"]
    old = namespace.objects("jobset")[0]["metadata"]["name"]
    command("Run again")
    wait_until(
        lambda: [j["metadata"]["name"] for j in namespace.objects("jobset")] not in ([], [old]),
        "a new run",
        60,
    )
    command("Cancel")
    wait_until(
        lambda: not namespace.objects("jobset") and not namespace.pods("grp"), "cancelled", 90
    )
