"""Writer of values as YAML that PyYAML and Helm's parser read as the same data.

Own code, because PyYAML's dumper does not quote the words that only Helm's parser misreads, and takes 1.5 ms (0.4 ms in
C) against 0.1 ms; the rest of a conversion takes 0.8 ms (tests/bench/rl.yaml, medians of 20).
"""

from __future__ import annotations

import hashlib
import re

from jobgen import __version__, yaml_scalars

# Helm's parser reads 1e3 and y as a number and a boolean, PyYAML does not. Other text than plain words gets quotes.
_WORD = re.compile(r"(?![yYnN]\Z)[A-Za-z_/](?:[A-Za-z0-9_./@:-]*[A-Za-z0-9_./@-])?")
# Text that a block cannot represent, or that parsers read differently: a leading tab, trailing blanks, control
# characters, byte order marks, and line breaks other than \n.
_NOT_A_BLOCK = re.compile(
    r"\A\t|[ \t]\Z|\A[ \n]*\Z|[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]"
)
_ESCAPED = re.compile(r'["\\\0-\x1f\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
SCRIPTS = ("setup", "run")
TITLE = "# Values of the chart job-group, written by jobgen"


def dump(values: dict, source: bytes) -> str:
    """Return the text of the values file, with the hash of its source."""
    lines = [
        f"{TITLE} {__version__}. Change the source, not this file.",
        f"# Source: sha256 {hashlib.sha256(source).hexdigest()}",
    ]
    _mapping(values, "", lines)
    return "\n".join(lines) + "\n"


def manifest(values: dict) -> str:
    """Return the text of a Kubernetes object."""
    lines: list[str] = []
    _mapping(values, "", lines)
    return "\n".join(lines) + "\n"


def _mapping(values: dict, indent: str, lines: list[str], first: str | None = None) -> None:
    """Append the lines of a mapping; the first one starts with `first`, if given, in place of the indent."""
    for key, value in values.items():
        start = f"{indent if first is None else first}{_scalar(key)}:"
        first = None
        if isinstance(value, str):
            if "\n" in value or key in SCRIPTS:
                _text(start, value, indent, lines)
            else:
                lines.append(f"{start} {_scalar(value)}")
        elif isinstance(value, dict) and value:
            lines.append(start)
            _mapping(value, indent + "  ", lines)
        elif isinstance(value, list) and value:
            lines.append(start)
            _list(value, indent + "  ", lines)
        else:
            lines.append(f"{start} {_scalar(value)}")


def _list(values: list, indent: str, lines: list[str]) -> None:
    for value in values:
        if isinstance(value, dict) and value:
            _mapping(value, indent + "  ", lines, first=f"{indent}- ")
        elif isinstance(value, list) and value:
            lines.append(f"{indent}-")
            _list(value, indent + "  ", lines)
        else:
            lines.append(f"{indent}- {_scalar(value)}")


def _text(start: str, text: str, indent: str, lines: list[str]) -> None:
    """Append text as a block if a block can represent it, and as a quoted scalar otherwise."""
    if _NOT_A_BLOCK.search(text):
        lines.append(f"{start} {_scalar(text)}")
        return
    body = text.rstrip("\n")
    end = {0: "-", 1: ""}.get(len(text) - len(body), "+")
    indicator = "2" if text[0] in " \n" else ""
    lines.append(f"{start} |{indicator}{end}")
    lines += [f"{indent}  {line}" if line else "" for line in (text[:-1] if text.endswith("\n") else text).split("\n")]


def _scalar(value: object) -> str:
    if isinstance(value, str):
        if _WORD.fullmatch(value) and yaml_scalars.tag(value) is None:
            return value
        return '"' + _ESCAPED.sub(_escape, value) + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        return text.replace("e", ".0e", 1) if "e" in text and "." not in text else text
    return "null" if value is None else "{}" if value == {} else "[]" if value == [] else str(value)


def _escape(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}"
