"""Kubernetes refuses an invalid pod in its own words before anything of the release exists, also
one of a JobSet.
"""

import json
import subprocess
import time

import pytest
import yaml

from tests.helpers.kube import REPO, Namespace
from tests.helpers.processes import ran

# What of a pod is wrong -> its spec.
INVALID = yaml.safe_load("""
a request above its limit: {containers: [{resources: {limits: {memory: 32Mi},
  requests: {memory: 64Mi}}}]}
an unknown resource: {containers: [{resources: {limits: {ram: 1Gi}}}]}
two amounts of a device: {containers: [{resources: {limits: {vpc.amazonaws.com/efa: 4},
  requests: {vpc.amazonaws.com/efa: 1}}}]}
a device without a limit: {containers: [{resources: {requests: {vpc.amazonaws.com/efa: 4}}}]}
half a device: {containers: [{resources: {limits: {vpc.amazonaws.com/efa: 500m}}}]}
huge pages alone: {containers: [{resources: {limits: {hugepages-2Mi: 4Mi}}}]}
half a huge page: {containers: [{resources: {limits: {hugepages-2Mi: 3Mi, memory: 1Gi}}}]}
a mount without a volume: {containers: [{volumeMounts: [{name: mine, mountPath: /x}]}]}
a path that leaves its volume: {volumes: [{name: mine, emptyDir: {}}],
  containers: [{volumeMounts: [{name: mine, mountPath: /x, subPath: a/../..}]}]}
two volumes of a name: {volumes: [{name: mine, emptyDir: {}}, {name: mine, emptyDir: {}}]}
a volume with two sources: {volumes: [{name: mine, emptyDir: {}, hostPath: {path: /x}}]}
a volume with a wrong name: {volumes: [{name: A_b, emptyDir: {}}]}
two containers of a name: {initContainers: [{name: mine, image: a}, {name: mine, image: a}]}
a container without an image: {initContainers: [{name: mine}]}
a container without a name: {initContainers: [{image: a}]}
a variable with two values: {containers: [{env: [{name: A, value: '1',
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]}]}
a variable from nowhere: {containers: [{env: [{name: A, valueFrom: {}}]}]}
a claim that the pod does not have: {containers: [{resources: {claims: [{name: c}]}}]}
a claim without a source: {resourceClaims: [{name: c}]}
two claims of a name: {resourceClaims: [{name: c, resourceClaimName: c}, {name: c,
  resourceClaimName: c}]}
Exists with a value: {tolerations: [{key: a, operator: Exists, value: b}]}
a toleration without a key: {tolerations: [{effect: NoSchedule}]}
seconds of another effect: {tolerations: [{key: a, effect: NoSchedule, tolerationSeconds: 1}]}
a selector without values: {affinity: {nodeAffinity: {
  preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference:
  {matchExpressions: [{key: a, operator: In, values: []}]}}]}}}
a selector with values of any: {affinity: {nodeAffinity: {
  preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference:
  {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}]}}}
a privileged container that may not escalate: {containers: [{securityContext: {privileged: true,
  allowPrivilegeEscalation: false}}]}
a probe of an init container that ends: {initContainers: [{name: mine, image: a,
  readinessProbe: {tcpSocket: {port: 80}}}]}
""")


def install(namespace: Namespace, workload: str, spec: dict) -> subprocess.CompletedProcess:
    values = {"workload": workload, "nodes": 1, "podTemplate": {"spec": spec}}
    command = [
        "helm",
        "install",
        "r",
        str(REPO / "charts/ddp-run"),
        "-n",
        namespace.name,
        "-f",
        "-",
    ]
    return ran(*command, input=json.dumps(values), timeout=120)


CASES = [(wrong, workload) for wrong in INVALID for workload in ("indexed-job", "jobset")]
MATRIX = [
    pytest.param(*case, marks=[] if n % 11 == 0 else pytest.mark.matrix)
    for n, case in enumerate(CASES)
]


@pytest.mark.parametrize(("wrong", "workload"), MATRIX)
def test_an_invalid_pod_is_refused_before_anything_exists(namespace, wrong, workload):
    done = install(namespace, workload, INVALID[wrong])
    assert done.returncode and "spec.template" in done.stderr, done.stdout + done.stderr
    assert namespace.objects("jobs,jobsets,services,networkpolicies") == []


def test_the_check_leaves_nothing_and_takes_seconds(namespace):
    """1.2 to 1.4 s on a quiet machine; here beside four other tests. The best of three times each."""
    taken: dict[str, list[float]] = {"--no-hooks": [], "--hide-notes": []}
    for option in [*taken] * 3:
        start = time.monotonic()
        namespace.install("r", "ddp-run", "--set", "workload=statefulset", option)
        taken[option].append(time.monotonic() - start)
        assert namespace.objects("jobs") == []
        namespace.helm("uninstall", "r", "--wait")
    assert min(taken["--hide-notes"]) - min(taken["--no-hooks"]) < 10, taken
