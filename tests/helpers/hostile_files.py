"""What a program may put where another one expects a file of its own."""

import subprocess
from pathlib import Path

# Shell commands that make $1; the file `outside` lies above its folder.
PLANT = {
    "pipe": 'mkfifo "$1"',
    "endless": 'ln -s /dev/zero "$1"',
    "outside": 'ln -s ../outside "$1"',
    "dangling": 'ln -s nowhere "$1"',
    "folder": 'mkdir -p "$1"/x',
    "garbage": 'head -c 999 /dev/urandom >"$1"',
    "huge": 'truncate -s 1T "$1"',
    "nothing": "true",
}
KINDS = tuple(PLANT)


def command(path: Path, kind: str) -> str:
    """A line of a program that replaces a file."""
    return f"rm -rf {path}; " + PLANT[kind].replace('"$1"', str(path))


def plant(path: Path, kind: str):
    subprocess.run(["sh", "-c", command(path, kind)], check=True)
