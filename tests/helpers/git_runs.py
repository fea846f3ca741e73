"""Runs from git, for Argo CD and Flux: the repositories of charts and of runs, and the group that a
person commits.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.git_server import Repository, served
from tests.helpers.kube import REPO, Cluster, Namespace, jobgen, new_namespace

ADDRESSES = "https://git.example.com/team/"  # in gitops/, where a reader sets others
GROUP = """\
---
name: pair
execution: parallel
---
name: a
resources: {{cpus: 1}}
run: {run}
---
name: b
num_nodes: 2
resources: {{cpus: 1}}
run: echo done
"""


@dataclass
class GitRuns:
    """A namespace, the repository of the charts and the repository of the runs."""

    space: Namespace
    charts: Repository
    runs: Repository

    @property
    def addresses(self) -> str:
        return self.runs.url.removesuffix("runs.git")

    def manifest(self, file: Path) -> str:
        """A file of gitops/, as it is, with the address of the repositories that its reader has to
        set.
        """
        text = file.read_text()
        assert ADDRESSES in text
        return text.replace(ADDRESSES, self.addresses)


@contextlib.contextmanager
def repositories(cluster: Cluster, folder: Path, files: dict[str, str]) -> Iterator[GitRuns]:
    """The repository of the runs has a README and these files."""
    with new_namespace(cluster) as space, served(folder, "gpu-charts", "runs") as (charts, runs):
        charts.commit({"charts": mirrored(cluster, folder)})
        runs.commit({"README.md": f"Runs of {space.name}.\n", **files})
        yield GitRuns(space, charts, runs)


def mirrored(cluster: Cluster, folder: Path) -> Path:
    """A copy of the charts as a team behind a mirror has it: its image is the default of
    `values.yaml`.
    """
    repository, tag = cluster.repository_and_tag
    copy = Path(shutil.copytree(REPO / "charts", folder / "charts"))
    for file in copy.glob("*/values.yaml"):
        before, image, after = file.read_text().partition("\nimage:\n")
        for name, value in {"repository": repository, "tag": tag}.items():
            after = after.replace(f'  {name}: ""', f"  {name}: {json.dumps(value)}", 1)
        file.write_text(before + image + after)
    return copy


def values(folder: Path, run: str = "echo first") -> str:
    """Values of the group whose task `a` runs this command."""
    (folder / "group.yaml").write_text(GROUP.format(run=json.dumps(run)))
    return jobgen("to-values", str(folder / "group.yaml"))


def jobsets(team: GitRuns) -> dict[str, str]:
    """Name -> uid."""
    return {
        item["metadata"]["name"]: item["metadata"]["uid"] for item in team.space.objects("jobset")
    }
