"""The documents of a file as a job group: one header and its tasks, with the command line's overrides applied."""

from __future__ import annotations

import re
from collections.abc import Mapping

from jobgen import foreign, names, schema
from jobgen.document import Document
from jobgen.problems import ERROR, NOTE, REFUSAL, WARNING, Invalid, Path, Place, Problem, json_path, quoted

# Fields in which SkyPilot puts the values of envs where $NAME or ${NAME} stands.
SUBSTITUTED = ("file_mounts", "workdir", "volumes")
_LONGEST = 10_000  # characters that variables may bring into one text
_VARIABLE = re.compile(r"\$\{?\b([a-zA-Z_][a-zA-Z0-9_]*)\b\}?", re.ASCII)


class Part:
    """The header, or one task (which counts from 1, as SkyPilot counts them), and what was found about it."""

    def __init__(self, document: Document, number: int, lenient: bool):
        self.document = document
        self.number = number
        self.lenient = lenient
        self.problems: list[Problem] = []
        self.fields: dict = {}  # what is right, honoured and not null
        self.renamed: dict[Path, str] = {}  # a path after substitution -> the key in the file
        self.unfilled: set[Path] = set()  # paths where a $NAME could not be replaced
        raw = document.value
        name = raw.get("name") if isinstance(raw, dict) else None
        self.name = name if isinstance(name, str) else None

    @property
    def where(self) -> str:
        if not self.number:
            return "header"
        return f"task {quoted(self.name)}" if self.name else f"task {self.number}"

    def report(
        self, code: str, path: Path, message: str, severity: str = ERROR, key: bool = False, kept: str = "left out"
    ) -> None:
        """`kept` says what becomes of a refusal for those who are lenient."""
        if severity == REFUSAL or (code == "unknown-field" and not self.number):
            severity = WARNING if self.lenient else ERROR
            message += f" ({kept})" if self.lenient else ""
        place = self.document.place(self._original(path), key)
        self.problems.append(self._problem(place, path, message, code, severity))

    def _problem(self, place: Place, path: Path, message: str, code: str, severity: str = ERROR) -> Problem:
        task = self.name if self.number else None
        return Problem(*place, self.where, task, json_path(path), message, code, severity)

    def note(self, path: Path, message: str, code: str = "honoured-differently") -> None:
        self.report(code, path, message, NOTE)

    def is_unfilled(self, path: Path) -> bool:
        """Whether a $NAME was left in the value or the key at `path`, and reported."""
        return self._original(path)[:2] in self.unfilled

    def _original(self, path: Path) -> Path:
        if self.renamed and len(path) > 1 and path[:2] in self.renamed:
            return (path[0], self.renamed[path[:2]], *path[2:])
        return path

    def read(self, name: str, value: object) -> None:
        """Take the fields of `value` that the schema `name` accepts."""
        for place, path, code, message in self.document.flaws:
            self.problems.append(self._problem(place, path, message, code))
        fields = schema.load(name).walk(value, self.report)
        self.fields = fields if isinstance(fields, dict) else {}


class Group:
    def __init__(self, header: Part, tasks: list[Part]):
        self.header = header
        self.tasks = tasks

    @property
    def problems(self) -> list[Problem]:
        """Everything found, sorted by position."""
        return sorted(set().union(self.header.problems, *(task.problems for task in self.tasks)))

    @property
    def is_right(self) -> bool:
        return not any(problem.severity == ERROR for part in (self.header, *self.tasks) for problem in part.problems)


def read(documents: list[Document], name: str | None, env: Mapping[str, str], lenient: bool) -> Group:
    """The group in `documents`, called `name` if given, with `env` in every task. Raises Invalid if it is none."""
    if reason := foreign.explain(documents):
        place = documents[0].place(()) if documents else (1, 1)
        raise Invalid(Problem(*place, "header", None, "$", f"not a job group: {reason}", "not-a-group"))
    header = Part(documents[0], 0, lenient)
    header.read("header", header.document.value if name is None else {**header.document.value, "name": name})
    if name is not None:
        header.name = name
    # Empty documents are skipped, but counted, as SkyPilot does.
    tasks = [Part(each, number, lenient) for number, each in enumerate(documents[1:], 1) if each.value is not None]
    for task in tasks:
        task.read("task", _prepared(task, env))
    _check_names(header, tasks)
    return Group(header, tasks)


def _prepared(task: Part, env: Mapping[str, str]) -> object:
    """The task as SkyPilot sees it, after overrides and substitution."""
    value = task.document.value
    if not isinstance(value, dict):
        return value
    envs = {} if value.get("envs") is None else value["envs"]
    if env and isinstance(envs, dict):
        envs = {**envs, **env}
        value = {**value, "envs": envs}
    known = {key: str(each) for key, each in envs.items() if each is not None} if isinstance(envs, dict) else {}
    changed = {}
    for field in SUBSTITUTED:
        given = value.get(field)
        if given is not None:
            filled = _filled(given, known, _secret_names(value.get("secrets")), task, (field,))
            if filled != given:
                changed[field] = filled
    return {**value, **changed} if changed else value


def _filled(value: object, known: Mapping[str, str], secret: set[str], task: Part, path: Path) -> object:
    if isinstance(value, str):
        return _filled_text(value, known, secret, task, path) if "$" in value else value
    if isinstance(value, dict):
        filled = {}
        for key, each in value.items():
            name = _filled_text(key, known, secret, task, (*path, key)) if "$" in key else key
            if name != key and len(path) == 1:
                task.renamed[(*path, name)] = key
            if name in filled:
                task.report("duplicate-key", (*path, key), "the same key as another one, after substitution", key=True)
            filled[name] = _filled(each, known, secret, task, (*path, key))
        return filled
    return value


def _filled_text(text: str, known: Mapping[str, str], secret: set[str], task: Part, path: Path) -> str:
    room = _LONGEST

    def value(match: re.Match[str]) -> str:
        nonlocal room
        name = match[1]
        if name in known:
            room -= len(known[name])
            return known[name] if room >= 0 else ""
        if path[:2] in task.unfilled:  # one is enough to say
            return match[0]
        task.unfilled.add(path[:2])
        name = name if len(name) <= 80 else f"{name[:77]}..."
        if match[1] in secret:
            task.report("secret-in-values", path, f"${name} is a secret, and would be readable in the values")
        else:
            task.report(
                "unknown-variable", path, f"${name} is not one of the task's envs; add it, or use --env {name}=…"
            )
        return match[0]

    filled = _VARIABLE.sub(value, text)
    if room < 0:
        task.unfilled.add(path[:2])
        task.report("bad-value", path, f"longer than {_LONGEST:,} characters with its variables")
    if "$" in filled and path[:2] not in task.unfilled:
        task.unfilled.add(path[:2])
        task.report("unknown-variable", path, "a $ is left that names no variable; paths and names have none")
    return filled


def _secret_names(secrets: object) -> set[str]:
    names = secrets if isinstance(secrets, (dict, list)) else ()
    return {name.rpartition(":")[2].rpartition(".")[2] for name in names if isinstance(name, str)}


def _check_names(header: Part, tasks: list[Part]) -> None:
    """Names that Kubernetes would refuse, alone or put together, and names given twice."""
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
        first_line.setdefault(name, task.document.place(("name",))[0])
        if usable and usable_group:
            longest = names.job_name(header.fields["name"], name, task.fields.get("num_nodes", 1))
            if len(longest) > names.LABEL_LIMIT:
                message = f'too long: a Job would be called "{longest}", {len(longest)} characters; Kubernetes allows'
                message += f" {names.LABEL_LIMIT}. Shorten the task's name, or the group's"
                task.report("name-too-long", ("name",), message)


def _check_name(part: Part) -> bool:
    name = part.fields.get("name")
    problem = names.label_problem(name) if name is not None else None
    if problem:
        part.report("bad-name", ("name",), problem)
    return name is not None and not problem
