"""A cluster without JobSet: the error names the command that installs the release which its
Kubernetes takes.
"""

import re

import pytest

from tests.helpers.rendering import GROUP, REPO, each_helm, refusal, render

LIVE = ("--api-versions", "apiregistration.k8s.io/v1")
JOBSETS = {"ddp-run": {"workload": "jobset"}, "job-group": GROUP}
JOBS = {"ddp-run": {"workload": "indexed-job"}, "job-group": {**GROUP, "workload": "jobs"}}


@each_helm
@pytest.mark.parametrize(
    ("version", "tested"),
    [
        ("v1.29.0", "jobset-oldest"),
        ("v1.30.14-gke.7", "jobset-oldest"),
        ("v1.31.0-eks-1", "jobset"),
        ("v1.37.2", "jobset"),
    ],
)
@pytest.mark.parametrize("chart", JOBSETS)
def test_a_cluster_without_jobset_is_named_with_the_command_that_installs_it(
    chart, version, tested, helm
):
    message = refusal(chart, JOBSETS[chart], *LIVE, "--kube-version", version, helm=helm)
    module = (REPO / f"hack/go/{tested}/go.mod").read_text()
    assert f"/{re.search(r'sigs.k8s.io/jobset (v[0-9.]+)', module)[1]}/manifests.yaml" in message
    assert f"\n\n{'workload: indexed-job' if chart == 'ddp-run' else 'workload: jobs'}\n" in message
    assert render(chart, JOBS[chart], *LIVE)
    assert render(chart, JOBSETS[chart], *LIVE, "--api-versions", "jobset.x-k8s.io/v1alpha2/JobSet")
