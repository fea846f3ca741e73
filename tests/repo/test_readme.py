"""README and documentation: short, linked, and every command that needs no cluster works as
written.
"""

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gpuworker.launch.failure_causes import CAUSES
from hack.paths import REPO
from jobgen.cli import cli
from tests.helpers.pages import code
from tests.helpers.processes import ran

README = (REPO / "README.md").read_text()
FOLDERS = ("*.md", "docs/*.md", "hack/**/*.md", "values-examples/*/README.md", "charts/*/README.md")
PAGES = [page for pattern in FOLDERS for page in sorted(REPO.glob(pattern))]
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
SCREEN = 30  # lines until the first command


def commands(text: str) -> list[str]:
    """The lines of all sh blocks, continued lines joined, comments removed."""
    lines = "".join(code(text)).replace("\\\n", " ").splitlines()
    return [line.split("   #")[0].strip() for line in lines]


def installs(page: Path) -> list[str]:
    return [line for line in commands(page.read_text()) if re.search(r"\bhelm install\b", line)]


@cache
def rendered(command: str, folder: Path) -> subprocess.CompletedProcess:
    """Run a documented installation with `helm template` in place of `helm install`, as for a
    cluster with all APIs.
    """
    template = "helm template --api-versions scheduling.k8s.io/v1beta1/PodGroup"
    command = command.replace("helm install", template).replace(
        "jobgen ", f"{sys.executable} -m jobgen "
    )
    env = os.environ | {"PYTHONPATH": str(REPO / "generator/src")}
    script = ["bash", "-o", "pipefail", "-c", command]
    return ran(*script, cwd=folder, env=env)


def as_rendered(page: Path, command: str) -> subprocess.CompletedProcess:
    """Pages in docs/ use the files of one example and leave out what was shown before: …

    A group file of the repository's values-examples is named as from the repository, as in the
    README.
    """
    folder = REPO if page.parent.parent == REPO / "charts" else page.parent
    if folder == REPO / "docs":
        folder = REPO / "values-examples/rl"
        command = re.sub(r" (charts|values-examples)/", rf" {REPO}/\1/", command)
        command = command.replace("…", "--set image.repository=registry.example.com/gpu-worker")
    return rendered(command, folder)


INSTALLS = [(page, line) for page in PAGES for line in installs(page)]


@pytest.mark.parametrize(
    ("page", "command"), INSTALLS, ids=[f"{page.parent.name}/{page.name}" for page, _ in INSTALLS]
)
def test_every_documented_installation_renders(page, command):
    done = as_rendered(page, command)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    assert "kind: " in done.stdout


JOBGEN = [
    command
    for page in PAGES
    for line in commands(page.read_text())
    for command in re.findall(r"^jobgen [^|>]+", line)
]


@pytest.mark.parametrize("command", JOBGEN)
def test_every_documented_command_of_jobgen_has_the_options_that_it_shows(command):
    """Click reads all options, and then prints the help without running anything."""
    done = CliRunner().invoke(cli, [*shlex.split(command)[1:], "--help"])
    assert done.exit_code == 0, done.output


def test_the_names_of_the_readme_are_rendered():
    accept, run, demo = (rendered(line, REPO).stdout for line in installs(REPO / "README.md"))
    (service,) = re.findall(r"kubectl port-forward service/(\S+) 8080:80", README)
    assert f"name: {service}\n" in accept
    followed = re.findall(r"kubectl runs logs (\S+)", README)
    assert (
        "app.kubernetes.io/instance: " + followed[0] in run
        and f'job-group/name: "{followed[1]}"' in demo
    )


def test_the_tag_of_the_pages_is_the_one_that_the_charts_pull():
    (version,) = {
        yaml.safe_load(path.read_text())["appVersion"] for path in REPO.glob("charts/*/Chart.yaml")
    }
    assert (
        f"--tag registry.example.com/gpu-worker:{version} "
        in (REPO / "docs/clusters.md").read_text()
    )


def test_the_readme_is_short_and_begins_with_a_command():
    lines = README.splitlines()
    assert len(lines) <= 95 and max(map(len, lines)) <= 120
    assert lines.index("make try") < SCREEN


def without_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(page), re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pages
def test_every_link_leads_to_a_file_and_its_heading(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", without_blocks(page)):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or file.suffix != ".md" or anchor in anchors(file), f"{target}#{anchor}"


@pages
def test_every_table_has_a_header_and_as_many_cells_in_each_row(page):
    for table in re.findall(r"(?:^\|.*\n)+", without_blocks(page), re.MULTILINE):
        rows = [re.split(r"(?<!\\)\|", row) for row in table.splitlines()]
        assert len(rows) > 2 and set("".join(rows[1])) <= set(" :-"), table
        assert {len(row) for row in rows} == {len(rows[0])}, table


@pages
def test_every_file_and_folder_of_the_repository_that_a_page_names_exists(page):
    roots = [REPO, page.parent, REPO / "worker/src/gpuworker"]
    tops = {path.name for root in roots for path in root.iterdir() if path.is_dir()}
    named = re.findall(
        r"(?<![\w/.-])((?:[\w.-]+/)+(?:[\w-]+\.(?:py|sh|yaml|md|json|tpl)\b)?)", page.read_text()
    )
    ours = [
        name for name in named if name.split("/")[0] in tops and "NAME" not in name
    ]  # NAME is a placeholder
    assert [name for name in ours if not any((root / name).exists() for root in roots)] == []


def test_make_targets_in_the_documentation_exist():
    targets = set(re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)\b(?=`|$|\s+#)", page.read_text(), re.M)
        assert {*named} <= targets, page


def test_every_page_and_picture_is_in_the_readme():
    files = [*(REPO / "docs").glob("*.md"), REPO / "docs/overview.svg"]
    assert [page.name for page in files if f"docs/{page.name}" not in README] == []


def test_the_causes_of_the_comparison_are_those_of_the_launcher():
    rows = re.findall(r"\| (\d+) `([a-z0-9-]+)`", (REPO / "tests/baseline/RESULTS.md").read_text())
    assert len(rows) > 8
    assert set(rows) <= {(str(int(cause.code)), cause.key) for cause in CAUSES}


def test_the_verdict_line_of_the_readme_is_one_of_the_launcher():
    code, cause = re.search(r"exit_code=(\d+) cause=([a-z-]+)", README).groups()
    (found,) = [each for each in CAUSES if each.key == cause]
    assert int(found.code) == int(code)
