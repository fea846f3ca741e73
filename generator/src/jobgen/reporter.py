"""Formats of diagnostics: text for people and editors, source lines for terminals, JSON for CI."""

from __future__ import annotations

import re

from jobgen import credentials
from jobgen.api import Result
from jobgen.diagnostics import ERROR, NOTE, WARNING, Diagnostic

_COLOURS = {ERROR: "\x1b[31m", WARNING: "\x1b[33m", NOTE: "\x1b[36m"}
_BOLD, _DIM, _END = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # line ends in YAML
_WIDTH = 160
# In a file that is not YAML, nothing else shows where a secret is.
_SUSPICIOUS = re.compile("env|secret|token|passw|key|cred|://[^/ ]*@", re.IGNORECASE)


def format_plain(file: str, result: Result) -> list[str]:
    """Return one line per diagnostic."""
    return [diagnostic.text(file) for diagnostic in result.diagnostics]


def format_with_source(file: str, result: Result, source: bytes, colour: bool) -> list[str]:
    """Return each diagnostic with the source lines around it, for a terminal."""
    lines = _BREAK.split(source.decode("utf-8", "replace")) if source else []
    found = []
    for diagnostic in result.diagnostics:
        text = diagnostic.text(file)
        if colour:
            head = f"{file}:{diagnostic.line}:{diagnostic.column}: "
            kind, rest = diagnostic.severity, text.removeprefix(f"{head}{diagnostic.severity}")
            text = f"{_BOLD}{head}{_END}{_COLOURS[kind]}{kind}{_END}{rest}"
        found.append("\n".join([text, *_excerpt(diagnostic, lines, result, colour)]))
    return found


def _excerpt(diagnostic: Diagnostic, lines: list[str], result: Result, colour: bool) -> list[str]:
    """Return three source lines and a caret. Lines that may contain a secret are hidden."""
    secret = result.secret_lines
    if not result.parsed and _SUSPICIOUS.search("\n".join(lines)):
        return []
    width = len(str(diagnostic.line + 1))
    shown = []
    for number in range(max(1, diagnostic.line - 1), min(len(lines), diagnostic.line + 1) + 1):
        line = lines[number - 1]
        hidden = number in secret or credentials.redact(line, result.hidden) != line
        shown.append(f"  {number:>{width}} | {'(hidden: it may contain a secret)' if hidden else _printable(line)}")
        if number == diagnostic.line and not hidden and diagnostic.column <= _WIDTH:
            caret = f"  {' ' * width} | {' ' * (diagnostic.column - 1)}"
            shown.append(f"{caret}{_COLOURS[diagnostic.severity]}^{_END}" if colour else f"{caret}^")
    return shown


def _printable(line: str) -> str:
    """Return a line without characters that move the cursor or change the direction of text."""
    cut = line if len(line) <= _WIDTH else f"{line[:_WIDTH]}…"
    return re.sub("[\0-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]", " ", cut)


def format_count(results: list[Result], files: int) -> str:
    """Return the number of errors, warnings and notes, such as "2 errors, 1 note in 1 file", and of valid files."""
    severities = [diagnostic.severity for result in results for diagnostic in result.diagnostics]
    counts = [_count(severities.count(each), each) for each in (ERROR, WARNING, NOTE) if each in severities]
    found = (
        f"{', '.join(counts)} in {_count(sum(bool(each.diagnostics) for each in results), 'file')}" if counts else ""
    )
    if files == 1:
        return found
    valid = sum(result.text is not None for result in results)
    return f"{valid} of {files} files {'is' if valid == 1 else 'are'} valid{found and f': {found}'}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def format_json(found: list[tuple[str, Result]]) -> str:
    """Return one JSON list for all files."""
    import json

    data = [diagnostic.data(file) for file, result in found for diagnostic in result.diagnostics]
    return json.dumps(data, indent=2) + "\n"
