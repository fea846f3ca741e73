"""jobgen as a function: takes the bytes of a group file, returns values and diagnostics.

It reads the files that the group embeds, and nothing else.
"""

from dataclasses import dataclass
from hashlib import sha256

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


def to_values(source: bytes, options: Options = _DEFAULTS) -> Result:
    """Convert a group file. The result depends on the source, the options and the embedded files
    only.

    But for a note, which says that a configuration of SkyPilot exists.
    """
    try:
        documents = load(source)
        hidden = leaks.known_values(documents, options)
        found = group.read(documents, options, hidden)
    except InvalidInputError as invalid:
        return Result(None, [invalid.diagnostic])
    secrets = tuple(each for each in hidden if len(each) > leaks.WORD)
    for task in found.tasks:
        leaks.check(task, task.fields, options.allow, secrets)
    files = FileSets(options, source, secrets)
    values = convert(found, files)
    about = f". Change the source, not this file.\n# Source: sha256 {sha256(source).hexdigest()}"
    return Result(dump(values, about) if found.is_valid else None, found.diagnostics)
