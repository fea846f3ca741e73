"""Training by ddp-run with checkpoints on a volume: a deleted pod costs time only."""

import re

import pytest
from test_group_resources import shared_volume as shared_volume  # a fixture

from tests.helpers.ddp_pods import completes_without, install, logs_by_node
from tests.helpers.group_pods import uninstall
from tests.helpers.kube import wait_until

TRAIN = (
    "-m,gpuworker.train.train,--output,/out,--samples,32768,--features,512,--batch,64,--epochs,6"
)


@pytest.mark.parametrize(("nodes", "each"), [pytest.param(4, 1, marks=pytest.mark.matrix), (2, 2)])
def test_training_resumes_after_a_pod_is_deleted(namespace, shared_volume, nodes, each):
    settings = {
        "nodes": nodes, "procsPerNode": each, "placement.onePodPerNode": "any",
        "program.args": f"{{{TRAIN}}}",
        "volumes.outputs.claimName": "shared-volume", "nodeSelector.kubernetes\\.io/hostname": shared_volume,
    }  # fmt: skip
    install(namespace, "--set", ",".join(f"{name}={value}" for name, value in settings.items()))
    wait_until(
        lambda: "[EPOCH] rank=0 epoch=1 " in logs_by_node(namespace).get(0, ""),
        "the first epoch has ended",
        240,
    )
    logs = completes_without(namespace, nodes - 1)
    assert len(logs) == nodes and all(
        f"[DONE] node={node} world={nodes * each} " in logs[node] for node in logs
    )
    assert "resumed=epoch-000" in logs[0], "resumed from a checkpoint"
    assert "[DONE] rank=0 status=finished " in logs[0]
    uninstall(namespace, "run")


# The commands of the guide: the smoke test, and the lines that it looks for.
SMOKE = (
    "train.py,--epochs,2,--batch,256,--samples,4096,--features,128,--classes,4,--lr,3e-3,--seed,42"
)


@pytest.mark.parametrize(
    "workload", ["indexed-job", pytest.param("statefulset", marks=pytest.mark.matrix)]
)
def test_the_smoke_test_of_the_guide_runs(namespace, workload):
    settings = {
        "nodes": 2, "workload": workload, "placement.onePodPerNode": "any", "program.args": f"{{/app/src/{SMOKE}}}",
    }  # fmt: skip
    install(namespace, "--set", ",".join(f"{name}={value}" for name, value in settings.items()))

    def found():
        """What egrep finds in the log of each node."""
        tags = re.compile(r"^\[(DDP|TRAIN|EPOCH|DONE)\] rank=.*", re.MULTILINE)
        return [
            "\n".join(each[0] for each in tags.finditer(log))
            for _, log in sorted(logs_by_node(namespace).items())
        ]

    first, second = wait_until(
        lambda: (
            lines
            if len(lines := found()) == 2 and all("[DONE]" in each for each in lines)
            else None
        ),
        "done",
        240,
    )
    for rank, lines in enumerate((first, second)):
        assert (
            f"[DDP] rank={rank} world=2 " in lines
            and f"[DONE] rank={rank} status=finished exit_code=0" in lines
        )
    assert "[EPOCH] rank=0 epoch=2 of=2" in first and "[TRAIN] rank=0 samples=4096" in first
    uninstall(namespace, "run")
