"""jobgen as a function: takes the bytes of a group file, returns values and diagnostics.

It reads the files that the group embeds, and nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from jobgen import group, leaks
from jobgen.convert import convert
from jobgen.diagnostics import Diagnostic, InvalidInputError
from jobgen.files import FileSets
from jobgen.options import Options
from jobgen.yaml_loader import load
from jobgen.yaml_writer import dump

_DEFAULTS = Options()


@dataclass(frozen=True)
class Result:
    text: str | None  # the values as YAML; None if there is an error
    diagnostics: list[Diagnostic]  # sorted by position
    secret_lines: frozenset[int] = frozenset()  # source lines that may contain values of envs or secrets
    parsed: bool = True  # whether secret_lines is known
    hidden: tuple[str, ...] = ()  # credentials that no output may contain


def to_values(source: bytes, options: Options = _DEFAULTS) -> Result:
    """Convert a group file. The result depends on the source, the options and the embedded files only.

    But for a note, which says that a configuration of SkyPilot exists.
    """
    try:
        documents = load(source)
        hidden = leaks.hidden_values(documents, options)
        found = group.read(documents, options, hidden)
    except InvalidInputError as invalid:
        return Result(None, sorted(invalid.diagnostics), parsed=False)
    secrets = leaks.secret_values(documents, options)
    for task in found.tasks:
        leaks.check(task, options.allow, secrets)
    files = FileSets(options, source, secrets)
    values = convert(found, files, options.secret_name, frozenset([*options.env, *options.env_file]))
    text = dump(values, source) if found.is_valid else None
    return Result(text, found.diagnostics, _secret_lines(found), hidden=hidden)


_PRIVATE_FIELD = re.compile("env|secret|config|workdir|token|pass|key|cred|auth|login|service|pool", re.IGNORECASE)


def _secret_lines(found: group.Group) -> frozenset[int]:
    """Return the lines of fields that contain credentials, or may contain them."""
    lines: set[int] = set()
    for each in (found.header, *found.tasks):
        value = each.document.value
        leaking = {line.path for line in each.diagnostics if line.code == "credential-value"}
        for field in value if isinstance(value, dict) else ():
            if _PRIVATE_FIELD.search(field) or any(path.startswith(f"$.{field}") for path in leaking):
                lines.update(each.document.lines((field,)))
        if not isinstance(value, dict):
            lines.update(each.document.lines(()))
    return frozenset(lines)
