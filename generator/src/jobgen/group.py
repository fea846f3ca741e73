"""The documents of a file as a job group: one header and its tasks, with the command line's overrides applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jobgen.document import Document, Place
from jobgen.problems import Invalid, Path, Problem, json_path


@dataclass(frozen=True)
class Part:
    """The header, or one task, which counts from 1 as SkyPilot counts them."""

    document: Document
    number: int = 0

    @property
    def name(self) -> str | None:
        name = self.document.value.get("name") if isinstance(self.document.value, dict) else None
        return name if isinstance(name, str) else None

    def problem(self, place: Place, path: Path, message: str) -> Problem:
        if not self.number:
            return Problem(*place, "header", None, json_path(path), message)
        where = f'task "{self.name}"' if self.name else f"task {self.number}"
        return Problem(*place, where, self.name, json_path(path), message)

    def key_problem(self, path: Path, message: str) -> Problem:
        return self.problem(self.document.key_place(path), path, message)

    def value_problem(self, path: Path, message: str) -> Problem:
        return self.problem(self.document.value_place(path), path, message)


@dataclass(frozen=True)
class Group:
    header: Part
    tasks: list[Part]


def read(documents: list[Document], name: str | None = None, env: Mapping[str, str] | None = None) -> Group:
    """The group in `documents`, called `name` if given, with `env` added to every task.

    Changes the documents. Raises Invalid if this is no job group at all; says nothing about its fields.
    """
    _recognise(documents)
    header = Part(documents[0])
    # Empty documents are skipped, but counted, as SkyPilot does.
    numbered = list(enumerate(documents))[1:]
    tasks = [Part(document, number) for number, document in numbered if document.value is not None]
    for part in (header, *tasks):
        _drop_nulls(part.document)
    if name is not None:
        header.document.value["name"] = name
    for task in tasks:
        if env and isinstance(task.document.value, dict):
            envs = task.document.value.setdefault("envs", {})
            if isinstance(envs, dict):
                envs.update(env)
    return Group(header, tasks)


def _recognise(documents: list[Document]) -> None:
    header = documents[0] if documents else Document(values={(): (1, 1)})
    if not isinstance(header.value, dict) or header.value.get("execution") is None:
        why = "the first document must be the header, with `name` and `execution: parallel`"
    elif all(document.value is None for document in documents[1:]):
        why = "there is no task; add at least one document after the header, behind a line `---`"
    else:
        return
    raise Invalid([Part(header).value_problem((), f"not a job group: {why}")])


def _drop_nulls(document: Document) -> None:
    """A key without a value is as good as absent, except in envs, where it is a mistake."""
    if isinstance(document.value, dict):
        document.value = {key: value for key, value in document.value.items() if value is not None}
        resources = document.value.get("resources")
        if isinstance(resources, dict):
            document.value["resources"] = {key: value for key, value in resources.items() if value is not None}
