"""The examples, each started and looked at with the two commands of its README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.helpers.group_pods import jobset_ends
from tests.helpers.kube import REPO, Namespace, phases, run, wait_until

EXAMPLES = REPO / "values-examples"


def commands(example: Path) -> tuple[str, str]:
    """What starts it, and what shows its result."""
    start, look = re.search(r"^```sh\n(.*)\n(.*)\n```$", (example / "README.md").read_text(), re.MULTILINE).groups()
    return start, look


def start(space: Namespace, name: str) -> str:
    """Run the first command as it is written, with the image of this test; returns the release."""
    command, _ = commands(EXAMPLES / name)
    assert "registry.example.com/gpu-worker" in command
    repository, _, tag = space.cluster.image.rpartition(":")
    command = command.replace("registry.example.com/gpu-worker", repository) + f" --set-string image.tag={tag}"
    command = command.replace("jobgen ", f"{sys.executable} -m jobgen ")
    env = os.environ | {"HELM_NAMESPACE": space.name}
    script = ["bash", "-o", "pipefail", "-c", command]
    done = subprocess.run(script, cwd=EXAMPLES / name, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return re.search(r"helm install (\S+)", command)[1]


def result(space: Namespace, name: str) -> str:
    """What the second command shows once the group has succeeded."""
    release = start(space, name)
    assert jobset_ends(space, release) == "Completed"
    _, command = commands(EXAMPLES / name)
    return run("sh", "-c", command.replace("kubectl ", f"kubectl -n {space.name} "))


def test_reinforcement_learning(namespace: Namespace) -> None:
    """All seven ranks took part, and both trainers have learned the same."""
    words = result(namespace, "rl")
    walks = dict(re.findall(r"WALKS (\S+) (\d+)", words))
    assert sorted(walks) == ["environment-0", "environment-1", "rollout-server-0", "rollout-server-1"]
    assert all(int(count) > 0 for count in walks.values())
    learned = re.findall(r"LEARNED ([a-z ]+) after (\d+) updates", words)
    assert len(learned) == 2 and learned[0] == learned[1]
    way = learned[0][0].split()
    assert sorted(way) == ["down"] * 3 + ["right"] * 3


def test_train_and_evaluate(namespace: Namespace) -> None:
    """The evaluator measured every checkpoint, and the best one is good."""
    words = result(namespace, "train-eval")
    saved, measured = re.findall(r"SAVED epoch (\d+)", words), re.findall(r"MEASURED epoch (\d+)", words)
    assert saved == measured == [str(epoch) for epoch in range(len(saved))] and len(saved) > 1
    best = re.search(r"BEST epoch \d+, loss (\S+), of 2 ranks", words)
    assert float(best[1]) < 0.01


def test_service_and_clients(namespace: Namespace) -> None:
    """Three clients that try nothing twice got right answers; then the server ended."""
    words = result(namespace, "service-clients")
    for start_of, answer in (("retur", "return"), ("impor", "import"), ("conti", "continue")):
        assert len(re.findall(rf"ANSWER {start_of}: {answer}\b", words)) == 3, words
    wait_until(lambda: phases(namespace.pods("demo")).get("server-0") != "Running", "the server has ended", 90)


def test_parameter_sweep(namespace: Namespace) -> None:
    """Each combination was tried once, and the collector found the best."""
    words = result(namespace, "parameter-sweep")
    assert len(set(re.findall(r"^[\d.]+ +[\d.]+ +\S+$", words, re.MULTILINE))) == 16
    assert "BEST rate 0.002, momentum 0.9\n" in words
