"""jobgen as a function: the bytes of a group file in, values and problems out. Reads embedded files, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jobgen import group
from jobgen.convert import convert
from jobgen.document import load
from jobgen.emit import emit
from jobgen.files import FileSets
from jobgen.problems import Invalid, Problem


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
    problems: list[Problem]  # sorted by position
    secret_lines: frozenset[int] = frozenset()  # lines of the source that may hold values of envs or secrets
    parsed: bool = True  # whether secret_lines is known


def to_values(source: bytes, options: Options = Options()) -> Result:
    """Same source, same options, same files: same result."""
    try:
        documents = load(source)
        found = group.read(documents, options.name, options.env, options.lenient)
    except Invalid as invalid:
        return Result(None, sorted(invalid.problems), parsed=False)
    files = FileSets(options.folder, options.allow_outside)
    values = convert(found, files, options.secret_name, frozenset(options.env))
    text = emit(values, source) if found.is_right else None
    return Result(text, found.problems, _secret_lines(found))


def _secret_lines(found: group.Group) -> frozenset[int]:
    lines: set[int] = set()
    for task in found.tasks:
        value = task.document.value
        for field_ in ("envs", "secrets", "config", "workdir"):
            if isinstance(value, dict) and field_ in value:
                lines.update(task.document.lines((field_,)))
    return frozenset(lines)
