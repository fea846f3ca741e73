"""A changed group under Argo CD while its last run still ends: no program of the two runs at the
same time.
"""

import threading
from collections.abc import Iterator

import pytest

from tests.gitops.test_argo_cd import reaches, replaced
from tests.helpers.git_runs import jobsets, values
from tests.helpers.kube import Namespace, wait_until

# Ends a while after SIGTERM, as a training that saves its state.
SLOW = 'trap "echo saves; sleep 8; exit 0" TERM; echo works; sleep 600 & wait'


class Observed:
    """Ids of the runs whose programs ran at the same time, from every state of every pod."""

    def __init__(self, space: Namespace):
        self.running: dict[str, str] = {}
        self.met: set[frozenset[str]] = set()
        self.seen: set[str] = set()
        self.thread = threading.Thread(target=self.watch, args=(space,), daemon=True)
        self.thread.start()

    def watch(self, space: Namespace):
        for pod in space.watch("pods", 300):
            name = pod["metadata"]["name"]
            state = {
                each["name"]: each["state"] for each in pod["status"].get("containerStatuses", [])
            }
            if "running" in state.get("task", {}):
                self.running[name] = pod["metadata"]["labels"]["job-group/id"]
                self.seen.add(self.running[name])
            else:
                self.running.pop(name, None)
            self.met.add(frozenset(self.running.values()))


@pytest.fixture
def observed(team) -> Iterator[Observed]:
    yield Observed(team.space)


@pytest.mark.parametrize("workload", ["jobset", "jobs"])
def test_the_old_run_has_ended_before_the_new_one_starts(team, observed, tmp_path, workload):
    chosen = f"workload: {workload}\n"
    team.runs.commit({"rl/values.yaml": chosen + values(tmp_path, SLOW)})
    application = team.apply("job-group.yaml")
    wait_until(lambda: team.argo.application(application) and observed.seen, "the first run works")
    first = jobsets(team)
    team.runs.commit({"rl/values.yaml": chosen + values(tmp_path, "echo second; sleep 3")})
    if workload == "jobset":
        replaced(team, application, first)
    else:
        wait_until(
            lambda: team.argo.application(application) and len(observed.seen) == 2,
            "the second run works",
        )
    reaches(team, application, "Synced", "Healthy")
    assert len(observed.seen) == 2
    assert not [met for met in observed.met if len(met) > 1]
