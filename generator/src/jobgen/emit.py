"""Values as YAML text, which must mean the same to PyYAML and to Helm's parser."""

from __future__ import annotations

import hashlib
import re

import yaml

from jobgen import __version__
from jobgen.group import Group

# Helm's parser takes 1e3 and y for a number and a boolean, PyYAML does not; what is no plain word gets quotes.
_WORD = re.compile(r"(?![yYnN]$)[A-Za-z_][A-Za-z0-9_./-]*")
# What a block cannot hold, or what parsers read differently: a tab first, blanks last, control characters, byte order
# marks, and line breaks other than \n.
_NOT_A_BLOCK = re.compile(r"\A\t|[ \t]\Z|[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


class _Script(str):
    """Text that is shown as a block even if it has one line."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True

    def analyze_scalar(self, scalar: str) -> yaml.emitter.ScalarAnalysis:
        """PyYAML gives up on blocks with tabs or with spaces before a line's end; scripts have both."""
        analysis = super().analyze_scalar(scalar)
        analysis.allow_block = not _NOT_A_BLOCK.search(scalar)
        analysis.allow_single_quoted = False
        return analysis


def _represent(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    block = isinstance(text, _Script) or "\n" in text
    word = _WORD.fullmatch(text) and dumper.resolve(yaml.ScalarNode, text, (True, False)) == "tag:yaml.org,2002:str"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if block else None if word else '"')


_Dumper.add_representer(str, _represent)
_Dumper.add_representer(_Script, _represent)


def emit(values: dict, group: Group, source: bytes) -> str:
    """The values file. Same source, same options: same text."""
    lines = [
        f"# Values of the chart job-group, written by jobgen {__version__}. Change the source, not this file.",
        f"# Source: sha256 {hashlib.sha256(source).hexdigest()}",
    ]
    if "placement" in group.header.document.value:
        lines.append("# placement SAME_INFRA: the value placement.topologyKey chooses the domain that all nodes share.")
    tasks = {name: _with_scripts(task) for name, task in values["tasks"].items()}
    text = yaml.dump(
        {**values, "tasks": tasks}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf")
    )
    return "\n".join(lines) + "\n" + text


def _with_scripts(task: dict) -> dict:
    return {key: _Script(value) if key in ("setup", "run") else value for key, value in task.items()}
