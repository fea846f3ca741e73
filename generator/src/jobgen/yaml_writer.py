"""Values as YAML that PyYAML and Helm's parser read as the same data."""

from __future__ import annotations

import hashlib
import re

import yaml

from jobgen import __version__, yaml_scalars

# Helm's parser reads 1e3 and y as a number and a boolean, PyYAML does not. Other text than plain words gets quotes.
_WORD = re.compile(r"(?![yYnN]\Z)[A-Za-z_/](?:[A-Za-z0-9_./@:-]*[A-Za-z0-9_./@-])?")
# Text that a block cannot represent, or that parsers read differently: a leading tab, trailing blanks, control
# characters, byte order marks, and line breaks other than \n.
_NOT_A_BLOCK = re.compile(
    r"\A\t|[ \t]\Z|\A[ \n]*\Z|[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]"
)
SCRIPTS = ("setup", "run")
TITLE = "# Values of the chart job-group, written by jobgen"


def dump(values: dict, source: bytes) -> str:
    """Return the text of the values file, with the hash of its source."""
    head = f"{TITLE} {__version__}. Change the source, not this file.\n"
    return f"{head}# Source: sha256 {hashlib.sha256(source).hexdigest()}\n{manifest(values)}"


def manifest(values: dict) -> str:
    """Return the text of a Kubernetes object."""
    return yaml.dump(values, Dumper=_Dumper, width=1 << 20, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)  # entries of a list are indented

    def ignore_aliases(self, data: object) -> bool:
        return True

    def analyze_scalar(self, scalar: str) -> object:
        analysis = super().analyze_scalar(scalar)
        analysis.allow_block = not _NOT_A_BLOCK.search(scalar)  # also with tabs and blanks at the end of a line
        return analysis

    def text(self, value: str) -> yaml.Node:
        plain = _WORD.fullmatch(value) and yaml_scalars.tag(value) is None
        style = "|" if "\n" in value else None if plain else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", value, style)

    def mapping(self, value: dict) -> yaml.Node:
        node = self.represent_mapping("tag:yaml.org,2002:map", value.items())
        for key, each in node.value:
            if key.value in SCRIPTS and each.tag.endswith(":str"):
                each.style = "|"
        return node


_Dumper.add_representer(str, _Dumper.text)
_Dumper.add_representer(dict, _Dumper.mapping)
