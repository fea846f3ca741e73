"""README.md: every command for a cluster, in order, on two nodes without GPUs and with the images
of the test.
"""

from pathlib import Path

import pytest

from tests.helpers.kube import REPO
from tests.helpers.pages import Reader, blocks, install


@pytest.fixture
def reader(namespace, tmp_path) -> Reader:
    repository, tag = namespace.cluster.repository_and_tag
    image = f"--set image.repository={repository} --set-string image.tag={tag}"
    texts = {f"charts/{name}": f"{REPO}/charts/{name} {image}" for name in ("ddp-run", "job-group")}
    texts["charts/gpu-accept"] = f"{REPO}/charts/gpu-accept {image} --set device=cpu"
    texts["nodes=16"] = "nodes=2"
    found = Reader(tmp_path / "reader", texts, HELM_NAMESPACE=namespace.name)
    install(found.here / "bin", "kubectl-runs")
    config = namespace.cluster.kubectl("config", "view", "--raw", "--minify", "--flatten")
    found.environment["KUBECONFIG"] = str(tmp_path / "kubeconfig")
    Path(found.environment["KUBECONFIG"]).write_text(config)
    found.follow(f"kubectl config set-context --current --namespace {namespace.name}")
    return found


def test_the_readme_leads_to_a_result_with_each_chart(reader):
    accept, run, group = [block for block in blocks("README.md") if "helm install" in block]
    status = reader.follow(accept)
    assert status.count("done") >= 2 and "PASS" in status
    assert run and "[DONE]" in reader.follow(run)
    output = reader.follow(group)
    assert "FOUND batch of transitions on replay-buffer-0.find-each-other" in output
    left = reader.follow("kubectl get jobs,jobsets,daemonsets,pods --output name")
    assert [line for line in left.split() if not line.startswith("pod/")] == []
