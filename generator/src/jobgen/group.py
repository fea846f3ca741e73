"""Job group read from YAML documents: one header and its tasks, with the command line's
overrides applied.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from jobgen import names, not_a_group, schema
from jobgen.credentials import redact
from jobgen.diagnostics import (
    ERROR,
    NOTE,
    Diagnostic,
    InvalidInputError,
    Path,
    Position,
    RefusedError,
    json_path,
    quoted,
)
from jobgen.options import Options
from jobgen.yaml_loader import Document

# Fields in which SkyPilot replaces $NAME and ${NAME} by the values of envs.
SUBSTITUTED = ("file_mounts", "workdir", "volumes")
_LONGEST = 10_000  # characters that variables may add to one text
_VARIABLE = re.compile(r"\$\{?\b([a-zA-Z_][a-zA-Z0-9_]*)\b\}?", re.ASCII)


class GroupDocument:
    """The header (number 0) or a task (from 1, as in SkyPilot), with its valid fields and
    diagnostics.
    """

    def __init__(self, document: Document, number: int, options: Options, hidden: tuple[str, ...]):
        self.document = document
        self.number = number
        self.options = options
        self.hidden = hidden  # credentials that no message may contain
        self.diagnostics: list[Diagnostic] = []
        self.fields: dict = {}  # valid, supported and not null
        raw = document.value
        name = raw.get("name") if isinstance(raw, dict) else None
        self.name = name if isinstance(name, str) else None
        for position, path, code, message in document.errors:
            self.diagnostics.append(self._diagnostic(position, path, message, code))

    @property
    def is_valid(self) -> bool:
        return all(each.severity != ERROR for each in self.diagnostics)

    @property
    def scope(self) -> str:
        if not self.number:
            return "header"
        return f"task {quoted(self.name)}" if self.name else f"task {self.number}"

    def report(
        self, code: str, path: Path, message: str, severity: str = ERROR, key: bool = False
    ) -> None:
        position = self.document.position(path, key)
        self.diagnostics.append(self._diagnostic(position, path, message, code, severity))

    def _diagnostic(
        self, position: Position, path: Path, message: str, code: str, severity: str = ERROR
    ) -> Diagnostic:
        shown = [redact(each, self.hidden) for each in (json_path(path), message)]
        return Diagnostic(*position, self.scope, *shown, code, severity)

    def note(self, path: Path, message: str, code: str = "honoured-differently") -> None:
        self.report(code, path, message, NOTE)

    def read(self, value: object) -> None:
        """Set the fields of `value` that the schema accepts, and report the others."""
        part = schema.read()["else" if self.number else "then"]
        fields = schema.validate(part, value, self.report)
        self.fields = fields if isinstance(fields, dict) else {}


@dataclass
class Group:
    header: GroupDocument
    tasks: list[GroupDocument]

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """Diagnostics of all documents, sorted by position."""
        return sorted(
            set().union(self.header.diagnostics, *(task.diagnostics for task in self.tasks))
        )

    @property
    def is_valid(self) -> bool:
        return all(each.is_valid for each in (self.header, *self.tasks))


def read(documents: list[Document], options: Options, hidden: tuple[str, ...]) -> Group:
    """Return the group in `documents`, with the command line's options applied. Raises
    InvalidInputError.
    """
    if reason := not_a_group.explain(documents):
        position = documents[0].position(()) if documents else (1, 1)
        message = f"not a job group: {reason}"
        raise InvalidInputError(position, "not-a-group", message, "header", "$")
    header = GroupDocument(documents[0], 0, options, hidden)
    value = header.document.value
    if options.name is not None:
        value = {**value, "name": options.name}
        header.name = options.name
    header.read(value)
    # As in SkyPilot, empty documents are skipped but counted.
    tasks = [
        GroupDocument(each, number, options, hidden)
        for number, each in enumerate(documents[1:], 1)
        if each.value is not None
    ]
    for task in tasks:
        task.read(_with_overrides(task, options))
    _check_names(header, tasks)
    return Group(header, tasks)


def name_of(secret: object) -> str:
    """secrets:personal.TOKEN -> TOKEN."""
    return str(secret).rpartition(":")[2].rpartition(".")[2]


def _with_overrides(task: GroupDocument, options: Options) -> object:
    """Return the task after overrides and substitution, as SkyPilot reads it. Entries whose
    variables cannot be replaced are reported and left out.
    """
    value = task.document.value
    if not isinstance(value, dict):
        return value
    envs = value.get("envs")
    known = {}
    if envs is None or isinstance(envs, dict):
        kept = {name: each for name, each in (envs or {}).items() if name not in options.secrets}
        value = {**value, "envs": {**kept, **options.env}}
        known = {key: str(each) for key, each in value["envs"].items() if each is not None}
    given = value.get("secrets")
    secret = {*map(name_of, given if isinstance(given, (dict, list)) else ()), *options.secrets}
    for field in SUBSTITUTED:
        given = value.get(field)
        if "$" not in str(given):
            continue
        has_entries = isinstance(given, dict) and field != "workdir"
        filled: dict = {}
        for key, each in given.items() if has_entries else [("", given)]:
            path = (field, key) if has_entries else (field,)
            try:
                name, each = _filled(key, known, secret), _filled(each, known, secret)
            except RefusedError as error:
                code, message = error.args
                task.report(code, path, message)
                continue
            if name in filled:
                message = "the same key as another one after variables are replaced"
                task.report("duplicate-key", path, message, key=True)
            filled[name] = each
        value = {**value, field: filled if has_entries else filled.get("")}
    return value


def _filled(value: object, known: Mapping[str, str], secret: set[str]) -> object:
    """Return the value with the values of variables. Raises RefusedError."""
    if isinstance(value, dict):
        return {
            _filled(key, known, secret): _filled(each, known, secret) for key, each in value.items()
        }
    if not isinstance(value, str) or "$" not in value:
        return value
    names = _VARIABLE.findall(value)
    if missing := [name for name in names if name not in known]:
        name = missing[0][:80]
        if missing[0] in secret:
            message = f"${name} is a secret and would be readable in the values"
            raise RefusedError("secret-in-values", message)
        message = f"${name} is not one of the task's envs; add it, or use --env {name}=…"
        raise RefusedError("unknown-variable", message)
    if sum(len(known[name]) for name in names) > _LONGEST:
        message = f"longer than {_LONGEST:,} characters after variables are replaced"
        raise RefusedError("bad-value", message)
    filled = _VARIABLE.sub(lambda match: known[match[1]], value)
    if "$" in filled:
        message = "a $ that does not name a variable; paths and names cannot contain it"
        raise RefusedError("unknown-variable", message)
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
            nodes = task.fields.get("num_nodes", 1)
            if reason := names.too_long(header.fields["name"], name, nodes):
                message = f"{reason}; shorten the name of the task or of the group"
                task.report("name-too-long", ("name",), message)


def _check_name(document: GroupDocument) -> bool:
    name = document.fields.get("name")
    error = names.label_error(name) if name is not None else None
    if error:
        document.report("bad-name", ("name",), error)
    return name is not None and not error
