"""What setup and run of a task see: SkyPilot's own script against the entry script of the chart, in
bash.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest

from hack.deps.venv import SKYPILOT
from tests.helpers.group_agents import ENTRY, entry_settings, stub_conda
from tests.helpers.processes import ran

MAKE = "import json, sys; from sky.skylet.log_lib import make_task_bash_script as make; "
MAKE += "print(make(sys.argv[1], json.loads(sys.argv[2])))"
ENVS = {"A": "1", "QUOTED": "a 'b' \"c\" $HOME `id` \\ ü", "EMPTY": ""}
# setup, run
TASKS = {
    "folder": ("pwd", "pwd; ls -A"),
    "clone in setup": (
        "mkdir -p examples && echo code >examples/file",
        "cd ~/sky_workdir/examples && cat file",
    ),
    "variables": ("", 'printf "%s|" "$A" "$QUOTED" "$EMPTY" "${UNSET-unset}" "$PYTHONUNBUFFERED"'),
    "own start-up": (
        "echo 'export FROM_SETUP=yes; PATH=$PATH:/own' >>~/.bashrc",
        'echo "$FROM_SETUP ${PATH##*:}"',
    ),
    "functions of start-up": ("echo 'greet() { echo hello $1; }' >>~/.bashrc", "greet world"),
    "conda": ("conda activate rl", "conda activate rl; conda list"),
    "arrays and bash": ("", 'a=(1 2 3); echo "${a[1]}"; [[ x == x ]] && echo yes; echo {1..3}'),
    "exit code": ("", "exit 7"),
    "a failed command amid a script": ("", "false; echo on"),
    "strict mode": ("", "set -euo pipefail; echo before; false | true; echo after"),
    "variables of setup do not reach run": ("export LOST=1", 'echo "[$LOST]"'),
    "heredoc and comment": ("", "cat <<'EOF' # comment\n$HOME `id` \\\nEOF\n# the end"),
    "unbuffered": ("", "python3 -c 'import sys; print(sys.stdout.write_through)'"),
    "exit handler": ("", "trap 'echo bye' EXIT; echo hello"),
    "options": (
        "",
        'shopt -q login_shell || echo no; echo "${-//[^eux]/}"; echo "$0" >/dev/null; echo $#',
    ),
}


def prepare(folder: Path) -> dict[str, str]:
    """A home with an image's conda; the variables of a shell in it."""
    home = folder / "home"
    (home / "sky_workdir").mkdir(parents=True)
    return {
        "HOME": str(home),
        "PATH": f"{stub_conda(folder)}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
    }


def skypilot(folder: Path, setup: str, run: str) -> tuple[int, list[str]]:
    """Exit code and output of the two scripts that SkyPilot would start on a node."""
    folder.mkdir()
    env, output, code = prepare(folder), "", 0
    for step in filter(None, (setup, run)):
        if not code:
            script = ran(SKYPILOT / "bin/python", "-c", MAKE, step, json.dumps(ENVS), check=True).stdout  # fmt: skip
            (folder / "script").write_text(script)
            # -i as SkyPilot does: its own complaints about a missing terminal go to stderr.
            done = ran("/bin/bash", "-i", folder / "script", env=env)
            output, code = output + done.stdout, done.returncode
    return code, shown(output, folder)


def chart(folder: Path, setup: str, run: str) -> tuple[int, list[str]]:
    folder.mkdir()
    env = prepare(folder) | ENVS
    (folder / "state").mkdir()
    (folder / "scripts").mkdir()
    for name, text in (("setup", setup), ("run", run), ("files", "")):
        (folder / "scripts" / name).write_text(text)
    settings = entry_settings(folder, "a-0") | {
        "GPU_CHARTS_AGENT": "",
        "HOME": env["HOME"],
        "ATTEMPT": 0,
    }
    env |= {name: str(value) for name, value in settings.items()}
    done = subprocess.run(["sh", ENTRY], env=env, cwd="/", stdout=subprocess.PIPE, text=True)
    return done.returncode, shown(
        re.sub(r"^\[GROUP\] .*\n", "", done.stdout, flags=re.MULTILINE), folder
    )


def shown(output: str, folder: Path) -> list[str]:
    return output.replace(str(folder), "FOLDER").splitlines()


@pytest.mark.parametrize("name", TASKS)
def test_a_task_sees_the_same_shell(tmp_path, name):
    expected = skypilot(tmp_path / "skypilot", *TASKS[name])
    assert chart(tmp_path / "chart", *TASKS[name]) == expected
    assert expected[1] or expected[0], "the task shows something"
