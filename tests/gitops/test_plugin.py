"""The plugin of gitops/argocd/plugin: a committed group file is a run, without values in between."""

from tests.gitops import argo_cd
from tests.gitops.test_argo_cd import conditions, reaches, replaced
from tests.helpers.git_runs import jobsets
from tests.helpers.kube import REPO, wait_until

GROUP = """\
---
name: pair
execution: parallel
---
name: a
resources: {cpus: 1}
file_mounts: {/tmp/greeting: greeting.txt}
run: grep hello /tmp/greeting
---
name: b
resources: {cpus: 1}
run: echo done
"""


def test_a_group_file_is_one_run(team):
    groups = team.apply("applicationset-group-files.yaml")
    name = f"group-pair-{team.space.name}"
    team.runs.commit({"groups/pair/group.yaml": GROUP, "groups/pair/greeting.txt": "hello\n"})
    team.wait_for(name, groups)
    reaches(team, name, "Synced", "Healthy")
    first = jobsets(team)
    assert len(first) == 1

    team.argo.cli("app", "get", name, "--hard-refresh")
    team.runs.commit({"README.md": "Another text.\n"})
    reaches(team, name, "Synced", "Healthy")
    assert jobsets(team) == first

    team.runs.commit({"groups/pair/settings.yaml": 'runId: "2"\n'})
    second = replaced(team, name, first)
    reaches(team, name, "Synced", "Healthy")

    team.runs.commit({"groups/pair/group.yaml": GROUP.replace("run: echo", "runs: echo")})
    wait_until(
        lambda: "group.yaml:12" in conditions(team, name).get("ComparisonError", ""),
        "Argo CD names the line",
    )
    assert jobsets(team) == second


def test_the_image_of_the_plugin_copies_what_exists():
    lines = (argo_cd.SETTINGS / "plugin/Dockerfile").read_text().splitlines()
    copied = [
        line.split()[1] for line in lines if line.startswith("COPY ") and "--from" not in line
    ]
    assert copied and all((REPO / path).exists() for path in copied)
