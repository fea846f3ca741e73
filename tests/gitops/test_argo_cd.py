"""Groups under Argo CD: a person commits one file and reads what becomes of it in Argo CD's words."""

from tests.gitops import argo_cd
from tests.gitops.conftest import Team
from tests.helpers.git_runs import jobsets, values
from tests.helpers.kube import wait_until


def reaches(team: Team, application: str, sync: str, health: str, deadline_s: float = 180) -> dict:
    """Wait until the Application has this state, and return it."""

    def found():
        current = team.argo.application(application)
        seen.append(argo_cd.status(current))
        return current if seen[-1] == (sync, health) else None

    seen: list[tuple[str, str]] = []
    try:
        return wait_until(found, f"{application} is {sync} and {health}", deadline_s)
    except AssertionError as error:
        details = team.argo.try_cli("app", "get", application).stdout
        raise AssertionError(f"{error}\nstates: {list(dict.fromkeys(seen))}\n{details}") from None


def replaced(team: Team, application: str, old: dict[str, str]) -> dict[str, str]:
    """Wait until one new run stands in place of the old one, and return it."""

    def found():
        team.argo.application(application)  # asks for a comparison with the newest commit
        runs = jobsets(team)
        return runs if len(runs) == 1 and not set(runs.values()) & set(old.values()) else None

    return wait_until(found, f"one new run in place of {old}")


def health_of(application: dict, kind: str) -> list[dict]:
    return [
        each.get("health", {})
        for each in application["status"]["resources"]
        if each["kind"] == kind
    ]


def test_one_file_is_one_run(team, tmp_path):
    """How it is started again, refused and removed is in test_page.py."""
    groups = team.apply("applicationset-groups.yaml")
    name = f"group-pair-{team.space.name}"
    team.runs.commit({"groups/pair/values.yaml": values(tmp_path, "sleep 15; echo first")})
    team.wait_for(name, groups)
    reaches(team, name, "Synced", "Progressing")
    reaches(team, name, "Synced", "Healthy")
    first = jobsets(team)
    assert len(first) == 1

    for turn in range(10):
        team.argo.cli("app", "get", name, "--hard-refresh" if turn % 2 else "--refresh")
        team.argo.sync(name)
        assert argo_cd.status(team.argo.application(name, refresh="")) == ("Synced", "Healthy")
        assert team.argo.cli("app", "diff", name) == ""
    team.runs.commit({"README.md": "Another text.\n"})
    reaches(team, name, "Synced", "Healthy")
    assert jobsets(team) == first

    team.runs.commit({"groups/pair/values.yaml": values(tmp_path, "echo second; exit 3")})
    broken = reaches(team, name, "Synced", "Degraded")
    assert "first failed job" in health_of(broken, "JobSet")[0]["message"]


def conditions(team: Team, name: str) -> dict[str, str]:
    found = (team.argo.application(name) or {}).get("status", {}).get("conditions", [])
    return {each["type"]: each["message"] for each in found}
