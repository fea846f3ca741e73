"""make upstream: groups of a checkout are found, and run in the folder and with the options of their README."""

import subprocess
import sys

from hack.paths import REPO

GROUP = "---\nname: g\nexecution: parallel\n---\nname: t\nenvs: {MODEL: }\nworkdir: %s\n"


def test_every_group_has_a_verdict(tmp_path):
    for path, text in {
        "one/group.yaml": GROUP % "one/code",
        "one/README.md": "sky jobs launch \\\n  --env MODEL=a one/group.yaml\n",
        "one/code/a.py": "",
        "two/group.yaml": GROUP % "code",
        "two/README.md": "cd two; `sky jobs launch group.yaml --env MODEL=b`\n",
        "two/code/b.py": "",
        "four/group.yaml": "# sky jobs launch four/group.yaml --env MODEL=c\n" + GROUP % "four/code",
        "four/code/c.py": "",
        "three/group.yaml": GROUP % "code",
        "three/task.yaml": "name: t\n",
        "three/template.yaml": "{% a %}: [\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "hack.upstream", tmp_path], cwd=REPO, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ") and ".yaml" in line]
    assert [row[0].strip("| ") for row in rows] == [f"{name}/group.yaml" for name in ("four", "one", "three", "two")]
    assert [row[1].startswith("accepted") for row in rows] == [True, True, False, True], done.stdout
    assert "missing-value" in rows[2][1] and "file-missing" in rows[2][1]
