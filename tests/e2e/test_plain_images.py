"""The charts bring their programs: images of PyTorch, of Python, and of neither, with nothing of
this project.
"""

import os

from tests.e2e.test_gpu_accept import accept, passes
from tests.helpers.ddp_pods import job_ends, logs_by_node
from tests.helpers.group_pods import jobset_ends, launch, rank
from tests.helpers.kube import Cluster, Namespace

GROUP = """
name: plain
execution: parallel
---
name: trainer
num_nodes: 2
launcher: ddp-launch
resources: {image_id: "docker:TORCH"}
run: |
  cat > train.py <<'END'
  import torch, torch.distributed as dist
  dist.init_process_group("gloo")
  total = torch.ones(1)
  dist.all_reduce(total)
  print("sum", total.item())
  END
  torchrun --nnodes "$SKYPILOT_NUM_NODES" train.py
---
name: shell
resources: {image_id: "docker:SHELL"}
run: "! command -v python3 && echo shell"
---
name: python
resources: {image_id: "docker:PYTHON"}
run: python3 -c 'print("python")'
"""


def images(*values: str) -> list[str]:
    """Settings that name the plain images in these values."""
    found = {"image": "TORCH_IMAGE", "helperImage": "PYTHON_IMAGE"}
    settings = []
    for value in values:
        repository, _, tag = os.environ[found[value]].rpartition(":")
        settings += ["--set-string", f"{value}.repository={repository},{value}.tag={tag}"]
    return settings


def plain(space: Namespace) -> Namespace:
    return Namespace(Cluster(os.environ["TORCH_IMAGE"]), space.name)


def test_nodes_are_accepted(namespace):
    space = plain(namespace)
    accept(
        space,
        *images("helperImage"),
        checks=("--set-json", 'checks=["environment", "collectives"]'),
    )
    passes(space)
    space.helm("test", "accept")
    used = {
        (each["name"], each["image"])
        for pod in space.pods("accept")
        for each in pod["spec"]["containers"]
    }
    assert {image for _, image in used} == {os.environ["PYTHON_IMAGE"]}
    (record,) = space.objects("secrets", "owner=helm,name=accept")
    assert len(record["data"]["release"]) < 0.8 * 1024**2, (
        "Helm's record of a release, of at most 1 MiB"
    )


def test_a_run_checks_all_reduce_and_trains(namespace):
    space = plain(namespace)
    space.install("run", "ddp-run", "--set", "placement.onePodPerNode=any")
    assert job_ends(space) == "Complete"
    assert "[DONE] node=0 world=2 " in logs_by_node(space)[0]


def test_a_group_of_three_images(namespace):
    text = GROUP
    for name in ("TORCH", "SHELL", "PYTHON"):
        text = text.replace(f"docker:{name}", f"docker:{os.environ[f'{name}_IMAGE']}")
    launch(namespace, text, *images("image", "helperImage"))
    assert jobset_ends(namespace) == "Completed"
    words = {
        host: namespace.logs(rank(namespace, host), "task")
        for host in ("trainer-0", "shell-0", "python-0")
    }
    assert "sum 2.0" in words["trainer-0"] and "[DONE] node=0 world=2 " in words["trainer-0"]
    assert (
        words["shell-0"].splitlines()[-1] == "shell"
        and words["python-0"].splitlines()[-1] == "python"
    )
