"""Diagnostics about an input: position, code, severity and message."""

import json
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from jobgen.credentials import redact

Path = tuple[str | int, ...]
Position = tuple[int, int]  # line and column, from 1

ERROR, WARNING, NOTE = "error", "warning", "note"


class Diagnostic(NamedTuple):
    """One error, warning or note; sorts by position. `scope` and `path` are empty for an error
    of the YAML itself.
    """

    line: int
    column: int
    scope: str  # "header" or 'task "NAME"'
    path: str
    message: str
    code: str
    severity: str = ERROR

    def text(self, file: str, paint: Callable[[str], str] = str) -> str:
        """The line for people, its severity and code painted."""
        prefix = f"{self.scope}: {self.path}: " if self.scope else ""
        place = f"{file}:{self.line}:{self.column}"
        return f"{place}: {paint(f'{self.severity}[{self.code}]')}: {prefix}{self.message}"


class InvalidInputError(Exception):
    """The input cannot be read further, for the reason in `diagnostic`."""

    def __init__(
        self, position: Position, code: str, message: str, scope: str = "", path: str = ""
    ):
        super().__init__(message)
        self.diagnostic = Diagnostic(*position, scope, path, message, code)


class RefusedError(Exception):
    """A part of the input that cannot be used; the arguments are the diagnostic's code and
    message.
    """


def json_path(path: Path) -> str:
    """("envs", "A", 0) -> $.envs.A[0]; a key that is not a plain word is quoted."""
    return "$" + "".join(
        f".{part}" if isinstance(part, str) and _PLAIN.fullmatch(part) else f"[{quoted(part)}]"
        for part in path
    )


def walk(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Path and value of a value, and of everything in it."""
    yield path, value
    parts = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, each in parts:
        yield from walk(each, (*path, key))


def quoted(value: object) -> str:
    """Return a value of the input for a message: on one line, at most 80 characters, and without
    credentials.
    """
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if not isinstance(value, str):
        return json.dumps(value)[:80]
    text = redact(value[:_LONGEST])
    return in_quotes(text if len(text) <= 80 else text[:77] + "...")


def in_quotes(text: str) -> str:
    """The text as JSON and YAML read it, on one line of characters that can be seen."""
    text = json.dumps(text, ensure_ascii=False)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_LONGEST = 4_000  # characters that are searched for credentials before the text is cut
_PLAIN = re.compile(r"[A-Za-z_][\w-]{0,79}", re.ASCII)
# What JSON leaves as it is of control characters, including those that change the direction of
# text, and of code points that are not characters.
_UNSAFE = re.compile(
    "[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
