"""Runs of ddp-run that compete for a queue of Kueue: one after the other, and never a part of one."""

from tests.e2e.test_kueue import queue as queue  # a fixture
from tests.e2e.test_kueue import quota
from tests.helpers.ddp_pods import ONE_THREAD
from tests.helpers.kube import Namespace, true_conditions, wait_until

RELEASES = ("first", "second")


def job_of(space: Namespace, release: str) -> dict:
    (job,) = space.objects("jobs", f"app.kubernetes.io/instance={release}")
    return job


def complete(space: Namespace, release: str) -> bool:
    ended = true_conditions(job_of(space, release))
    assert "Failed" not in ended, space.why(release)
    return "Complete" in ended


@quota(6)
def test_of_two_runs_of_4_nodes_on_6_one_waits_and_holds_nothing(queue):
    settings = [
        "--set",
        "nodes=4,kueue.queueName=queue,resources.requests.cpu=1,placement.onePodPerNode=any",
    ]
    for release in RELEASES:
        queue.install(release, "ddp-run", *ONE_THREAD, *settings)
    seen: set[tuple[int, ...]] = set()

    def both_complete():
        active = [job_of(queue, release).get("status", {}).get("active", 0) for release in RELEASES]
        suspended = [job_of(queue, release)["spec"]["suspend"] for release in RELEASES]
        held = [
            sum(pod["status"]["phase"] in ("Pending", "Running") for pod in queue.pods(release))
            for release in RELEASES
        ]
        seen.add(tuple(held))
        assert not (all(active) and not any(suspended)), (
            "both runs are admitted, in a queue with room for one"
        )
        assert 0 in held, f"both runs have pods: {held}"
        return all(complete(queue, release) for release in RELEASES)

    wait_until(both_complete, "both runs have ended", 300)
    assert {(4, 0), (0, 4)} & seen, seen


GPUS_ONLY = """\
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {{name: {name}}}
spec:
  namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}
  resourceGroups:
    - coveredResources: [nvidia.com/gpu]
      flavors:
        - name: {name}
          resources: [{{name: nvidia.com/gpu, nominalQuota: 8}}]
"""


@quota(1)
def test_a_queue_that_knows_no_cpu_admits_every_chart(queue):
    """Kueue admits no pod that requests what its queue does not have. No chart requests anything by
    itself.
    """
    name = queue.objects("localqueues")[0]["spec"]["clusterQueue"]
    queue.apply(GPUS_ONLY.format(name=name, namespace=queue.name))
    own = f"program.image={queue.cluster.image},nodes=1,kueue.queueName=queue"
    program = '["-m", "gpuworker.accept.ddp_tests", "--report-dir", "/out"]'
    queue.install(
        "first", "ddp-run", *ONE_THREAD, "--set", own, "--set-json", f"program.args={program}"
    )
    job = "workload=job,device=cpu,nodes=1,kueue.queueName=queue"
    queue.install("second", "gpu-accept", "--set", job, "--set-json", 'checks=["environment"]')
    wait_until(
        lambda: all(complete(queue, release) for release in RELEASES), "both have ended", 240
    )
