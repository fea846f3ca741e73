"""jobgen as a function: takes the bytes of a group file, returns values and diagnostics.

It reads the files that the group embeds, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jobgen import group
from jobgen.convert import convert
from jobgen.diagnostics import Diagnostic, InvalidInputError
from jobgen.files import FileSets
from jobgen.yaml_loader import load
from jobgen.yaml_writer import dump


@dataclass(frozen=True)
class Options:
    name: str | None = None  # replaces the group's name
    env: Mapping[str, str] = field(default_factory=dict)  # variables for every task
    secret_name: str | None = None  # default: NAME-secrets
    lenient: bool = False  # refused fields become warnings if the task runs without them
    folder: str | None = None  # base of local paths; default: the current folder
    allow_outside: bool = False  # embed files from outside that folder


@dataclass(frozen=True)
class Result:
    text: str | None  # the values as YAML; None if there is an error
    diagnostics: list[Diagnostic]  # sorted by position
    secret_lines: frozenset[int] = frozenset()  # source lines that may contain values of envs or secrets
    parsed: bool = True  # whether secret_lines is known


def to_values(source: bytes, options: Options = Options()) -> Result:
    """Convert a group file. The result depends on the source, the options and the embedded files only."""
    try:
        documents = load(source)
        found = group.read(documents, options.name, options.env, options.lenient)
    except InvalidInputError as invalid:
        return Result(None, sorted(invalid.diagnostics), parsed=False)
    files = FileSets(options.folder, options.allow_outside)
    values = convert(found, files, options.secret_name, frozenset(options.env))
    text = dump(values, source) if found.is_valid else None
    return Result(text, found.diagnostics, _secret_lines(found))


def _secret_lines(found: group.Group) -> frozenset[int]:
    lines: set[int] = set()
    for task in found.tasks:
        value = task.document.value
        for field_ in ("envs", "secrets", "config", "workdir"):
            if isinstance(value, dict) and field_ in value:
                lines.update(task.document.lines((field_,)))
    return frozenset(lines)
