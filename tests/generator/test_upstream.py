"""make upstream: groups of a checkout are found, and run in the folder and with the options of their README."""

import subprocess
import sys

from hack import upstream
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
        "five/group.yaml": "---\nname: {{name}}\nexecution: parallel\nprimary_tasks: [{{ first | x }}t]\n"
        "---\nname: t\nresources: {infra: {{cloud}}}\nrun: sky jobs launch x.yaml\n",
        "six/group.yaml": "# sky jobs launch -n other --env=MODEL=d --env X six/group.yaml --secret T  # it's all\n"
        + GROUP % "six/code",
        "six/code/d.py": "",
        "three/task.yaml": "name: t\n",
        "three/template.yaml": "{% a %}: [\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "hack.upstream", tmp_path], cwd=REPO, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    rows = dict(line.strip("| ").split(" | ", 1) for line in done.stdout.splitlines() if ".yaml" in line)
    assert list(rows) == [f"{name}/group.yaml" for name in ("five", "four", "one", "six", "three", "two")]
    assert [rows[f"{name}/group.yaml"] for name in ("one", "two", "four")] == ["accepted"] * 3, done.stdout
    assert rows["five/group.yaml"] == "accepted"  # a template is rendered
    assert rows["six/group.yaml"] == "accepted"
    options = ["-n", "other", "--env", "MODEL=d", "--env", "X", "--secret", "T"]
    assert upstream.invocation(tmp_path, tmp_path / "six/group.yaml") == (tmp_path, options)
    assert rows["three/group.yaml"].startswith("refused: ")
    assert "missing-value" in rows["three/group.yaml"] and "file-missing" in rows["three/group.yaml"]


def test_the_chart_must_render_what_jobgen_accepts(tmp_path, monkeypatch):
    (tmp_path / "group.yaml").write_text(GROUP.replace("workdir: %s\n", "").replace("MODEL: ", "MODEL: a"))
    assert upstream.verdict(tmp_path, tmp_path / "group.yaml", "--env", "RUN_ID=x").startswith("refused: refused-field")
    monkeypatch.setattr(upstream, "CHART", tmp_path)  # no chart
    assert upstream.verdict(tmp_path, tmp_path / "group.yaml").startswith("accepted, but the chart refuses it")
