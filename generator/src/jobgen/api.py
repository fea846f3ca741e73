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
    name: str | None = None  # of the group, instead of the one in the file
    env: Mapping[str, str] = field(default_factory=dict)  # in every task
    secret_name: str | None = None  # NAME-secrets if absent
    lenient: bool = False  # refusals become warnings where the rest still runs
    folder: str | None = None  # that local paths start from; the current one if absent
    allow_outside: bool = False  # files outside of that folder


@dataclass(frozen=True)
class Result:
    text: str | None  # the values; None if there is an error
    diagnostics: list[Diagnostic]  # sorted by position
    secret_lines: frozenset[int] = frozenset()  # lines of the source that may hold values of envs or secrets
    parsed: bool = True  # whether secret_lines is known


def to_values(source: bytes, options: Options = Options()) -> Result:
    """Same source, same options, same files: same result."""
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
