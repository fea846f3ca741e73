"""Job group read from YAML documents: one header and its tasks, with the command line's overrides applied."""

from __future__ import annotations

import re
from collections.abc import Mapping

from jobgen import names, not_a_group, schema
from jobgen.credentials import redact
from jobgen.diagnostics import (
    ERROR,
    NOTE,
    REFUSAL,
    WARNING,
    Diagnostic,
    InvalidInputError,
    Path,
    Position,
    json_path,
    quoted,
)
from jobgen.options import Options
from jobgen.overrides import secret_names, take_login, with_variables
from jobgen.yaml_loader import Document

# Fields in which SkyPilot replaces $NAME and ${NAME} by the values of envs.
SUBSTITUTED = ("file_mounts", "workdir", "volumes")
_STRICT = ("ignored-field", "no-effect", "loosened-pod")  # errors with --strict
_LONGEST = 10_000  # characters that variables may add to one text
_VARIABLE = re.compile(r"\$\{?\b([a-zA-Z_][a-zA-Z0-9_]*)\b\}?", re.ASCII)


class GroupDocument:
    """The header (number 0) or a task (from 1, as in SkyPilot), with its valid fields and diagnostics."""

    def __init__(self, document: Document, number: int, options: Options, hidden: tuple[str, ...]):
        self.document = document
        self.number = number
        self.options = options
        self.hidden = hidden  # credentials that no message may contain
        self.diagnostics: list[Diagnostic] = []
        self.fields: dict = {}  # valid, supported and not null
        self.login: dict[str, dict[str, object]] = {}  # SKYPILOT_DOCKER_* of envs and of secrets
        self.original_keys: dict[Path, str] = {}  # a path after substitution -> the key in the file
        self.unresolved: set[Path] = set()  # paths that contain a $NAME without a value
        raw = document.value
        name = raw.get("name") if isinstance(raw, dict) else None
        self.name = name if isinstance(name, str) else None

    @property
    def scope(self) -> str:
        if not self.number:
            return "header"
        return f"task {quoted(self.name)}" if self.name else f"task {self.number}"

    def report(
        self, code: str, path: Path, message: str, severity: str = ERROR, key: bool = False, fallback: str = "left out"
    ) -> None:
        """Add a diagnostic; `fallback` describes what --lenient does in place of the refused field."""
        if severity == REFUSAL or (code == "unknown-field" and not self.number):
            severity = WARNING if self.options.lenient else ERROR
            message += f" ({fallback})" if self.options.lenient else ""
        if self.options.strict and (severity == WARNING or code in _STRICT):
            severity = ERROR
        position = self.document.position(self._path_in_file(path), key)
        self.diagnostics.append(self._diagnostic(position, path, message, code, severity))

    def _diagnostic(self, position: Position, path: Path, message: str, code: str, severity: str = ERROR) -> Diagnostic:
        task = self.name if self.number else None
        shown = [redact(each, self.hidden) for each in (json_path(path), message)]
        return Diagnostic(*position, self.scope, task, *shown, code, severity)

    def note(self, path: Path, message: str, code: str = "honoured-differently") -> None:
        self.report(code, path, message, NOTE)

    def has_unresolved_variable(self, path: Path) -> bool:
        """Whether the value or key at `path` contains a $NAME without a value, which is reported already."""
        return self._path_in_file(path)[:2] in self.unresolved

    def _path_in_file(self, path: Path) -> Path:
        if self.original_keys and len(path) > 1 and path[:2] in self.original_keys:
            return (path[0], self.original_keys[path[:2]], *path[2:])
        return path

    def read(self, name: str, value: object) -> None:
        """Set the fields of `value` that the schema `name` accepts, and report the others."""
        for position, path, code, message in self.document.yaml_errors:
            self.diagnostics.append(self._diagnostic(position, path, message, code))
        fields = schema.load(name).validate(value, self.report)
        self.fields = fields if isinstance(fields, dict) else {}


class Group:
    def __init__(self, header: GroupDocument, tasks: list[GroupDocument]):
        self.header = header
        self.tasks = tasks

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """Diagnostics of all documents, sorted by position."""
        return sorted(set().union(self.header.diagnostics, *(task.diagnostics for task in self.tasks)))

    @property
    def is_valid(self) -> bool:
        documents = (self.header, *self.tasks)
        return all(each.severity != ERROR for document in documents for each in document.diagnostics)


def read(documents: list[Document], options: Options, hidden: tuple[str, ...]) -> Group:
    """Return the group in `documents`, with the command line's options applied. Raises InvalidInputError."""
    if reason := not_a_group.explain(documents):
        position = documents[0].position(()) if documents else (1, 1)
        raise InvalidInputError(Diagnostic(*position, "header", None, "$", f"not a job group: {reason}", "not-a-group"))
    header = GroupDocument(documents[0], 0, options, hidden)
    value = header.document.value
    if options.name is not None:
        value = {**value, "name": options.name}
        header.name = options.name
    header.read("header", value)
    # As in SkyPilot, empty documents are skipped but counted.
    tasks = [
        GroupDocument(each, number, options, hidden)
        for number, each in enumerate(documents[1:], 1)
        if each.value is not None
    ]
    for task in tasks:
        task.read("task", _with_overrides(task, options))
    _check_names(header, tasks)
    return Group(header, tasks)


def _with_overrides(task: GroupDocument, options: Options) -> object:
    """Return the task after overrides and substitution, as SkyPilot reads it."""
    value = task.document.value
    if not isinstance(value, dict):
        return value
    value, task.login = take_login(with_variables(value, options), options)
    envs = value.get("envs")
    known = {key: str(each) for key, each in envs.items() if each is not None} if isinstance(envs, dict) else {}
    changed = {}
    for field in SUBSTITUTED:
        given = value.get(field)
        if given is not None:
            filled = _substitute(given, known, secret_names(value.get("secrets")), task, (field,))
            if filled != given:
                changed[field] = filled
    return {**value, **changed} if changed else value


def _substitute(value: object, known: Mapping[str, str], secret: set[str], task: GroupDocument, path: Path) -> object:
    if isinstance(value, str):
        return _substitute_text(value, known, secret, task, path) if "$" in value else value
    if isinstance(value, dict):
        filled = {}
        for key, each in value.items():
            name = _substitute_text(key, known, secret, task, (*path, key)) if "$" in key else key
            if name != key and len(path) == 1:
                task.original_keys[(*path, name)] = key
            if name in filled:
                message = "the same key as another one after variables are replaced"
                task.report("duplicate-key", (*path, key), message, key=True)
            filled[name] = _substitute(each, known, secret, task, (*path, key))
        return filled
    return value


def _substitute_text(text: str, known: Mapping[str, str], secret: set[str], task: GroupDocument, path: Path) -> str:
    room = _LONGEST

    def value(match: re.Match[str]) -> str:
        nonlocal room
        name = match[1]
        if name in known:
            room -= len(known[name])
            return known[name] if room >= 0 else ""
        if path[:2] in task.unresolved:  # one diagnostic per field is enough
            return match[0]
        task.unresolved.add(path[:2])
        name = name if len(name) <= 80 else f"{name[:77]}..."
        if match[1] in secret:
            task.report("secret-in-values", path, f"${name} is a secret and would be readable in the values")
        else:
            message = f"${name} is not one of the task's envs; add it, or use --env {name}=…"
            task.report("unknown-variable", path, message)
        return match[0]

    filled = _VARIABLE.sub(value, text)
    if room < 0:
        task.unresolved.add(path[:2])
        task.report("bad-value", path, f"longer than {_LONGEST:,} characters after variables are replaced")
    if "$" in filled and path[:2] not in task.unresolved:
        task.unresolved.add(path[:2])
        task.report("unknown-variable", path, "a $ that does not name a variable; paths and names cannot contain it")
    return filled


def _check_names(header: GroupDocument, tasks: list[GroupDocument]) -> None:
    """Report names that Kubernetes refuses, alone or combined, and duplicate names."""
    usable_group = _check_name(header)
    first_line: dict[str, int] = {}
    for task in tasks:
        name = task.fields.get("name")
        if name is None:
            continue
        usable = _check_name(task)
        if name in first_line:
            message = f'Duplicate job name "{name}" (first at line {first_line[name]})'
            task.report("duplicate-task", ("name",), message)
        first_line.setdefault(name, task.document.position(("name",))[0])
        if usable and usable_group:
            longest = names.job_name(header.fields["name"], name, task.fields.get("num_nodes", 1))
            if len(longest) > names.NAME_LIMIT:
                message = f'too long: the Job "{longest}" would have a name of {len(longest)} characters;'
                message += f" Kubernetes allows {names.NAME_LIMIT}. Shorten the name of the task or of the group"
                task.report("name-too-long", ("name",), message)


def _check_name(document: GroupDocument) -> bool:
    name = document.fields.get("name")
    error = names.label_error(name) if name is not None else None
    if error:
        document.report("bad-name", ("name",), error)
    return name is not None and not error
