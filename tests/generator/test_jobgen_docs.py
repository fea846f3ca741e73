"""Documentation of jobgen: commands that need no cluster run, with `helm template` in place of
`helm install`.
"""

from pathlib import Path

import click
import yaml

from jobgen.api import to_values
from jobgen.cli import cli
from tests.helpers.pages import Reader, code

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs/jobgen.md").read_text()
# What needs a cluster or changes the machine.
NOT_RUN = (
    "pip install",
    "kubectl",
    "helm uninstall",
    "export",
    "printf",
    "jobgen from",
)
COMMANDS = [
    line for block in code(PAGE) for line in block.splitlines() if not line.startswith(NOT_RUN)
]


def test_commands_of_the_page_run_in_order(tmp_path):
    texts = {"helm install": "helm template", " charts/": f" {REPO}/charts/"}
    assert len(COMMANDS) >= 8
    printed = Reader(tmp_path / "reader", texts).follow("\n".join(COMMANDS))
    assert printed.count("kind: JobSet") == 2


def test_example_group_of_the_page_converts():
    example = code(PAGE, "yaml")[0]
    result = to_values(example.encode())
    assert [each.code for each in result.diagnostics] == ["default-differs"]
    assert list(yaml.safe_load(result.text)["tasks"]) == ["trainer", "buffer"]


def test_every_option_is_described():
    context = click.Context(cli)
    for name in cli.list_commands(context):
        for option in cli.get_command(context, name).params:
            if option.name not in ("file", "files", "name"):
                assert any(f"{spelling}" in PAGE for spelling in option.opts), option.opts
