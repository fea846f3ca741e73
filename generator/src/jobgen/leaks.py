"""Refusal of credentials in the fields of a task, and the values that no message may contain."""

import shlex
from collections.abc import Iterator

from jobgen import credentials
from jobgen.diagnostics import Path, json_path
from jobgen.group import GroupDocument
from jobgen.options import Options
from jobgen.yaml_loader import Document

SHORTEST, WORD = 4, 7  # characters: shorter values, and up to this, may be in ordinary words
_NAMES_ONLY = ("secrets", "managed_secrets")  # their values never reach the output
_REFERENCE = "write valueFrom.secretKeyRef, which names a Kubernetes Secret"
_WAY_OUT = {
    "envs": "move it to `secrets`, or pass --secret NAME: its value then comes from a Secret",
    "config": _REFERENCE,
    "spec": _REFERENCE,  # of a manifest
}
_OTHER_WAY_OUT = "add it to `secrets` and read that variable, which comes from a Kubernetes Secret"


def known_values(documents: list[Document], options: Options) -> tuple[str, ...]:
    """Return every known credential, line by line: of secrets, and of variables with such a
    name.
    """
    given, envs = [*options.secrets.values()], [*options.env.items()]
    for each in documents:
        given += _mapping(each, "secrets").values()
        envs += _mapping(each, "envs").items()
    given += [value for name, value in envs if credentials.is_named(str(name), value)]
    lines = [line.strip() for value in given for line in str(value or "").splitlines()]
    return tuple(line for line in lines if len(line) >= SHORTEST)


def _mapping(document: Document, field: str) -> dict:
    found = document.value.get(field) if isinstance(document.value, dict) else None
    return found if isinstance(found, dict) else {}


def check(document: GroupDocument, value: dict, allow: frozenset[str], secrets=()) -> None:
    """Report every credential in the fields of a task or manifest that --allow does not name."""
    fields = {field: each for field, each in value.items() if field not in _NAMES_ONLY}
    for path, name in find(fields, (), secrets):
        if not allow & {name, json_path(path), *path}:
            way_out = _WAY_OUT.get(str(path[0]), _OTHER_WAY_OUT).replace("NAME", str(path[-1]))
            message = f"looks like a credential, which would be readable in the values; {way_out}."
            document.report(
                "credential-value",
                path,
                f"{message} If it is not one, pass --allow {shlex.quote(name)}",
            )


def find(value: object, path: Path, known: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """Yield path and name of each credential: by its format, also over the words of a list, or by a
    variable's name.

    `known`: credentials of any format.
    """
    if isinstance(value, str):
        if credentials.contains(value, known):
            yield path, json_path(path)
    elif isinstance(value, list):
        words = [each for each in value if isinstance(each, str)]
        if credentials.contains(" ".join(words)) and not any(map(credentials.contains, words)):
            yield path, json_path(path)
        for index, each in enumerate(value):
            yield from find(each, (*path, index), known)
    elif isinstance(value, dict):
        name, given = value.get("name"), value.get("value")
        if isinstance(name, str) and (
            credentials.is_named(name, given) or credentials.contains(f"{name}: {given}")
        ):
            yield (*path, "value"), name
            return
        for key, each in value.items():
            named = path == ("envs",) or str(key).isupper()
            if (
                named
                and not isinstance(each, (dict, list))
                and credentials.is_named(str(key), each)
            ):
                yield (*path, key), str(key)
            elif credentials.contains(str(key), known):
                yield (*path, key), json_path((*path, key))
            else:
                yield from find(each, (*path, key), known)
