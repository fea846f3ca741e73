"""Values as YAML that PyYAML and Helm's parser read as the same data.

Own code in place of PyYAML's emitters: the one in Python takes more time than all the rest of
jobgen, and the one in C quotes scripts that contain tabs, blanks at the end of a line, or emojis.
"""

import json
import re

from jobgen import __version__
from jobgen.diagnostics import in_quotes

# Other text than plain words gets quotes, and words that a parser reads as null or a boolean.
_WORD = re.compile(
    r"(?!(?i:y|n|yes|no|on|off|true|false|null)\Z)"
    r"[A-Za-z_/](?:[A-Za-z0-9_./@:-]*[A-Za-z0-9_./@-])?"
)
# Text that a block cannot represent, or that parsers read differently: a leading tab, trailing
# blanks, control characters, byte order marks, and line breaks other than \n.
_NOT_A_BLOCK = re.compile(
    r"\A\t|[ \t]\Z|\A[ \n]*\Z|[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]"
)
_SCRIPTS = ("setup", "run")  # blocks, even of one line
TITLE = "# Values of the chart job-group, written by jobgen"


def dump(values: dict, about: str) -> str:
    """The text of the values file; `about` ends the comment at its top."""
    return f"{TITLE} {__version__}{about}{_node(values, '')}\n"


def _node(value: object, indent: str, script: bool = False) -> str:
    """What follows a key or a dash: a scalar on its line, or the lines below."""
    more = f"{indent}  "
    if value and isinstance(value, dict):
        return "".join(
            f"\n{indent}{_line(key)}:{_node(each, more, key in _SCRIPTS)}"
            for key, each in value.items()
        )
    if value and isinstance(value, list):
        return "".join(f"\n{indent}- {_node(each, more).lstrip()}" for each in value)
    if isinstance(value, str):
        block = (script or "\n" in value) and not _NOT_A_BLOCK.search(value)
        return _block(value, indent) if block else f" {_line(value)}"
    if isinstance(value, float):
        text = repr(value)
        return f" {text if '.' in text else text.replace('e', '.0e')}"  # PyYAML reads 1e+20 as text
    return f" {json.dumps(value)}"


def _line(text: str) -> str:
    """A text or key on one line: as it is if every parser reads it as text, else in quotes."""
    return text if _WORD.fullmatch(text) else in_quotes(text)


def _block(text: str, indent: str) -> str:
    """The lines of a text as they are."""
    depth = "2" if text[0] in " \n" else ""  # else the parser would take it from the first line
    body = text.rstrip("\n")
    end = {0: "-", 1: ""}.get(len(text) - len(body), "+")
    lines = (f"{indent}{line}" if line else "" for line in text.removesuffix("\n").split("\n"))
    return f" |{depth}{end}\n" + "\n".join(lines)
