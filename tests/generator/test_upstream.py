"""make upstream: groups of a checkout are found, and get the folder and the values of variables
that they need.
"""

import sys

from hack.paths import REPO
from tests.generator.conftest import written
from tests.helpers.processes import ran

GROUP = (
    "---\nname: g\nexecution: parallel\n---\nname: t\nenvs: {MODEL: , HF_TOKEN: }\nworkdir: %s\n"
)


def test_every_group_has_a_verdict(tmp_path):
    files = {
        "from-the-checkout/group.yaml": GROUP % "from-the-checkout/code",
        "from-the-checkout/code/a.py": "",
        "from-its-folder/group.yaml": GROUP % "code",
        "from-its-folder/code/b.py": "",
        "from-nowhere/group.yaml": GROUP % "code",
        "from-nowhere/task.yaml": "name: t\n",
        "template/group.yaml": "---\nname: {{name}}\nexecution: parallel\nprimary_tasks: [{{ first | x }}t]\n"
        "---\nname: t\nresources: {infra: {{cloud}}}\nrun: sky jobs launch x.yaml\n",
        "template/statements.yaml": "{% a %}: [\n",
    }
    written(tmp_path, files)
    done = ran(sys.executable, "-m", "hack.upstream", tmp_path, cwd=REPO, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = dict(
        line.strip("| ").split(" | ", 1) for line in done.stdout.splitlines() if ".yaml" in line
    )
    refused = rows.pop("from-nowhere/group.yaml")
    assert refused.startswith("refused: file-missing: ")
    names = ("from-its-folder", "from-the-checkout", "template")
    assert rows == {f"{name}/group.yaml": "accepted" for name in names}
