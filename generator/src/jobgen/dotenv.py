"""Reader of dotenv files, as python-dotenv reads them. Errors never contain a value."""

from __future__ import annotations

import re
from collections.abc import Mapping

_BLANK = re.compile(r"[ \t\r]*(?:#[^\n]*)?(?:\n|\Z)")
_ENTRY = re.compile(
    r"""[ \t]*(?:export[ \t]+)?([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*
    (?:'((?:\\.|[^'\\])*)'|"((?:\\.|[^"\\])*)"|([^'"\n][^\n]*|))[ \t\r]*(?:\#[^\n]*)?(?:\n|\Z)""",
    re.VERBOSE | re.DOTALL,
)
_REFERENCE = re.compile(r"\$\{([^}:]*)(?::-([^}]*))?\}")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPES |= {each: each for each in "\\'\""}


def parse(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the text. Raises ValueError with the line that is not NAME=VALUE."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        if blank := _BLANK.match(text, at):
            at = blank.end()
            continue
        entry = _ENTRY.match(text, at)
        if entry is None:
            raise ValueError(f"line {text.count(chr(10), 0, at) + 1} is not NAME=VALUE")
        name, single, double, plain = entry.groups()
        if single is not None:
            value = re.sub(r"\\([\\'])", r"\1", single)
        elif double is not None:
            value = _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[0]), double)
        else:
            value = re.sub(r"\s+#.*", "", plain).rstrip()
        known = {**found, **environment}
        found[name] = _REFERENCE.sub(lambda match, known=known: known.get(match[1], match[2] or ""), value)
        at = entry.end()
    return found
