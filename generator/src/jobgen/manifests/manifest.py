"""One object of a file, of which parts are taken until nothing is left without a note."""

import copy
import json
import re
from collections.abc import Sequence

from jobgen import schema
from jobgen.diagnostics import NOTE, Path, walk
from jobgen.group import GroupDocument
from jobgen.options import Options
from jobgen.yaml_loader import Document

MOST = 1024  # nodes of a task
UNFILLED = re.compile(r"\$\{?\w")
WITH_VARIABLES = {"command", "args", "env", "annotations"}  # of the program
WORDS = {dict: "a mapping", list: "a list", int: "a whole number", str: "text"}


class Manifest(GroupDocument):
    """One object. Each field that nothing takes gets a note at the end."""

    scope = "manifest"

    def __init__(self, document: Document, command: Sequence[str] = ()):
        super().__init__(document, 0, Options(), ())
        self.command = [*command]  # of containers that have none
        # As in Kubernetes, a field without a value counts as absent.
        text = json.dumps(document.value)
        self.value, self.left = (json.loads(text, object_hook=_without_null) for _ in range(2))

    def note(self, path: Path, message: str = "not taken over", code: str = "lost") -> None:
        self.report(code, path, message, NOTE, key=True)

    def error(self, path: Path, message: str) -> None:
        self.report("not-convertible", path, message)

    def fits(self, definition: str, value: object, path: Path) -> bool:
        """Report what Kubernetes would refuse in a part of the object."""
        before = len(self.diagnostics)
        schema.validate(schema.read()["definitions"][definition], value, self.report, path)
        return len(self.diagnostics) == before

    def has(self, *path: str | int) -> bool:
        return get(self.value, path) is not None

    def drop(self, *path: str | int) -> None:
        """Take a field without using it."""
        parent = get(self.left, path[:-1])
        if isinstance(parent, dict):
            parent.pop(path[-1], None)

    def take(self, *path: str | int, default):
        """A copy of the value at a path, or `default` without one. Another type is an error."""
        value = get(self.value, path)
        self.drop(*path)
        if value is None:
            return default
        if not isinstance(value, type(default)) or isinstance(value, bool):
            self.error(path, f"must be {WORDS[type(default)]}")
            return default
        return copy.deepcopy(value)

    def check_filled_in(self) -> None:
        """Report variables of a template, such as one for envsubst."""
        for path, value in walk(self.value):
            if isinstance(value, str) and UNFILLED.search(value) and not WITH_VARIABLES & {*path}:
                self.error(path, "has a variable: fill it in first, such as with envsubst")

    def count(self, *path: str | int) -> int:
        """A number of pods or replicas, which is 1 if it is not set."""
        number = self.take(*path, default=1)
        if not 1 <= number <= MOST:
            self.error(path, f"must be a whole number from 1 to {MOST:,}")
        return max(1, number)

    def note_rest(self, path: Path = ()) -> None:
        """Note the largest parts of which nothing was taken."""
        left, value = get(self.left, path), get(self.value, path)
        if path and (left == value or not isinstance(left, (dict, list))):
            self.note(path)
            return
        for key in left if isinstance(left, dict) else range(len(left)):
            self.note_rest((*path, key))


def _without_null(value: dict) -> dict:
    return {key: each for key, each in value.items() if each is not None}


def get(value: object, path: Path) -> object:
    for part in path:
        try:
            value = value[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return None
    return value
