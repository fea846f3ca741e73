"""Every example with a README, started and inspected with the two commands of its page."""

import os
import re
import sys
from pathlib import Path

from tests.helpers.group_pods import jobset_ends
from tests.helpers.kube import REPO, Namespace, phases, run, wait_until
from tests.helpers.processes import ran

EXAMPLES = REPO / "values-examples"


def commands(example: Path) -> tuple[str, str]:
    """The command that starts the example and the command that shows its result."""
    start, look = re.search(
        r"^```sh\n(.*)\n(.*)\n```$", (example / "README.md").read_text(), re.MULTILINE
    ).groups()
    return start, look


def start(space: Namespace, name: str) -> str:
    """Run the first command as it is written, with the image of this test; returns the release."""
    command, _ = commands(EXAMPLES / name)
    repository, tag = space.cluster.repository_and_tag
    command += f" --set image.repository={repository} --set-string image.tag={tag}"
    command = command.replace("jobgen ", f"{sys.executable} -m jobgen ")
    env = os.environ | {"HELM_NAMESPACE": space.name}
    script = ["bash", "-o", "pipefail", "-c", command]
    done = ran(*script, cwd=EXAMPLES / name, env=env, timeout=120)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return re.search(r"helm install (\S+)", command)[1]


def result(space: Namespace, name: str) -> str:
    """Output of the second command after the group has succeeded."""
    release = start(space, name)
    assert jobset_ends(space, release) == "Completed"
    _, command = commands(EXAMPLES / name)
    return run("sh", "-c", command.replace("kubectl ", f"kubectl -n {space.name} "))


def test_reinforcement_learning(namespace):
    """All seven ranks take part, and both trainers learn the same policy."""
    output = result(namespace, "rl")
    walks = dict(re.findall(r"WALKS (\S+) (\d+)", output))
    assert sorted(walks) == [
        "environment-0",
        "environment-1",
        "rollout-server-0",
        "rollout-server-1",
    ]
    assert all(int(count) > 0 for count in walks.values())
    learned = re.findall(r"LEARNED ([a-z ]+) after (\d+) updates", output)
    assert len(learned) == 2 and learned[0] == learned[1]
    way = learned[0][0].split()
    assert sorted(way) == ["down"] * 3 + ["right"] * 3


def test_train_and_evaluate(namespace):
    """The evaluator measures every checkpoint, and the best one has a low loss."""
    output = result(namespace, "train-eval")
    saved, measured = (
        re.findall(r"SAVED epoch (\d+)", output),
        re.findall(r"MEASURED epoch (\d+)", output),
    )
    assert saved == measured == [str(epoch) for epoch in range(len(saved))] and len(saved) > 1
    best = re.search(r"BEST epoch \d+, loss (\S+), of 2 ranks", output)
    assert float(best[1]) < 0.01


def test_service_and_clients(namespace):
    """Three clients without retries get correct answers; then the server ends."""
    output = result(namespace, "service-clients")
    for start_of, answer in (("retur", "return"), ("impor", "import"), ("conti", "continue")):
        assert len(re.findall(rf"ANSWER {start_of}: {answer}\b", output)) == 3, output
    wait_until(
        lambda: phases(namespace.pods("demo")).get("server-0") != "Running",
        "the server has ended",
        90,
    )


def test_parameter_sweep(namespace):
    """Each combination is tried once, and the collector finds the best."""
    output = result(namespace, "parameter-sweep")
    assert len(set(re.findall(r"^[\d.]+ +[\d.]+ +\S+$", output, re.MULTILINE))) == 16
    assert "BEST rate 0.002, momentum 0.9\n" in output
