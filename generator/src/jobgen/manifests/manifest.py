"""One object of a file, of which parts are taken until nothing is left without a note."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from jobgen import credentials
from jobgen.diagnostics import ERROR, NOTE, Diagnostic, Path, json_path
from jobgen.yaml_loader import Document

MOST = 1024  # nodes of a run, and ranks of a task


class Manifest:
    """One object. `rest` has the fields that are not taken yet; each of them gets a note at the end."""

    def __init__(self, document: Document):
        self.document, self.value = document, document.value
        self.rest = copy.deepcopy(document.value)
        self.diagnostics: list[Diagnostic] = []

    def note(self, path: Path, message: str = "not taken over", code: str = "lost") -> None:
        self._add(path, message, code, NOTE)

    def error(self, path: Path, message: str) -> None:
        self._add(path, message, "not-convertible", ERROR)

    def _add(self, path: Path, message: str, code: str, severity: str) -> None:
        position = self.document.position(path, key=severity == NOTE)
        shown = [credentials.redact(each) for each in (json_path(path), message)]
        self.diagnostics.append(Diagnostic(*position, "manifest", None, *shown, code, severity))

    def has(self, *path: str | int) -> bool:
        return get(self.value, path) is not None

    def take(self, *path: str | int, default):
        """The value at a path, which gets no note any more; `default` if there is none. Another type is an error."""
        value = get(self.value, path)
        parent = get(self.rest, path[:-1])
        if isinstance(parent, dict):
            parent.pop(path[-1], None)
        if value is None:
            return default
        if not isinstance(value, type(default)) or isinstance(value, bool):
            fill_in = ": fill in variables first, such as with envsubst" if str(value).startswith("$") else ""
            self.error(path, f"must be a {WORDS[type(default)]}{fill_in}")
            return default
        return copy.deepcopy(value)

    def count(self, *path: str | int) -> int:
        """A number of pods or replicas, which is 1 if it is not set."""
        number = self.take(*path, default=1)
        if not 1 <= number <= MOST:
            self.error(path, f"must be a whole number from 1 to {MOST:,}")
        return max(1, number)

    def note_rest(self) -> None:
        for path in _untaken(self.rest, self.value, ()):
            self.note(path)


WORDS = {dict: "mapping", list: "list", int: "whole number", str: "text"}


def get(value: object, path: Path) -> object:
    for part in path:
        try:
            value = value[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _untaken(rest: object, value: object, path: Path) -> Iterator[Path]:
    if path and rest == value:
        yield path
    elif isinstance(rest, dict) and isinstance(value, dict):
        for key in rest:
            yield from _untaken(rest[key], value[key], (*path, key))
    elif isinstance(rest, list) and isinstance(value, list):
        for index, each in enumerate(rest):
            yield from _untaken(each, value[index], (*path, index))
