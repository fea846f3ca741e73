"""What is wrong with an input: where, and what to write instead."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One error. `where` is "header" or 'task "NAME"'; it and the path are empty for an error of the YAML itself."""

    line: int
    column: int
    where: str
    task: str | None
    path: str
    message: str

    def text(self, file: str) -> str:
        prefix = f"{self.where}: {self.path}: " if self.where else ""
        return f"{file}:{self.line}:{self.column}: error: {prefix}{self.message}"

    def data(self, file: str) -> dict:
        return {
            "file": file,
            "line": self.line,
            "column": self.column,
            "task": self.task,
            "path": self.path,
            "message": self.message,
        }


class Invalid(Exception):
    """The input is wrong; holds every problem found."""

    def __init__(self, problems: list[Problem]):
        super().__init__(f"{len(problems)} problems")
        self.problems = problems


def syntax_problem(line: int, column: int, message: str) -> Problem:
    """A problem of the YAML itself."""
    return Problem(line, column, "", None, "", message)


def json_path(path: Path) -> str:
    """("envs", "A", 0) -> $.envs.A[0]; a key that is no plain word is quoted."""
    parts = (
        f".{part}" if isinstance(part, str) and re.fullmatch(r"[A-Za-z_][\w-]*", part) else f"[{json.dumps(part)}]"
        for part in path
    )
    return "$" + "".join(parts)
