"""Generator of docs/jobgen-fields.md and jobgen-errors.md, from the schemas and tables."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hack.gen.jobgroup_schema import whole
from hack.paths import REPO
from tests.differential.table import ACCEPTED, OTHER, REFUSED, TABLE

SUPPORT = {
    "honoured": "honoured",
    "honoured-differently": "honoured differently",
    "ignored": "ignored, with a note",
    "refused": "refused",
}
FIELDS = """\
<!-- Generated from schemas/jobgroup and tests/differential/table.py by `make generate`. -->
# Fields of a job group

Support for each field of SkyPilot's job groups. An ignored field causes a note on standard error. A refused field is an
error with the reason and what to write instead. An unknown field is an error. A field without a value counts as absent.
"""
DIFFERENCES = """
## Where jobgen differs from SkyPilot

jobgen and SkyPilot accept the same job groups and derive the same settings from them, except for this list.
A test compares them on thousands of generated groups. It fails on a difference that is missing here, and on
an entry whose example shows no difference.
"""
# Defaults of the pods, which are not among the settings that SkyPilot derives from a group file.
DEFAULTS = """
### Defaults of the pods

One note for each group names them.

| default | in SkyPilot | in jobgen's chart |
|---|---|---|
| user | the image's, with `sudo` | 65532; the values podSecurityContext and containerSecurityContext |
| image | SkyPilot's own | the chart's; `image_id` names another |
| tools | an SSH server, curl, rsync and others are installed at the start | those of the image |
| CPUs and memory | 2 CPUs and 2 GB, or 4 CPUs and 16 GB for each GPU | none |
"""
ERRORS = """\
<!-- Generated from hack/gen/diagnostic_codes.py by `make generate`. -->
# Diagnostics of jobgen

Each line is `file:line:column: error|warning|note[code]: where: path: message`. Codes do not change; messages may. The
last line counts the errors, warnings and notes.
"""


def fields() -> str:
    header, task = whole("header"), whole("task")
    resources, config = task["properties"]["resources"], task["properties"]["config"]
    kubernetes = config["properties"]["kubernetes"]
    recovery = next(
        branch
        for branch in resources["properties"]["job_recovery"]["anyOf"]
        if branch.get("properties")
    )
    parts = [
        ("The header: the first document", "", header),
        ("A task: every further document", "", task),
        ("`resources` of a task", "resources.", resources),
        ("`resources.job_recovery`", "resources.job_recovery.", recovery),
        ("`config` of a task", "config.", config),
        ("`config.kubernetes`", "config.kubernetes.", kubernetes),
        (
            "`config.kubernetes.kueue`",
            "config.kubernetes.kueue.",
            kubernetes["properties"]["kueue"],
        ),
    ]
    return FIELDS + "".join(table(*part) for part in parts) + differences()


def differences() -> str:
    lines = [DIFFERENCES]
    for kind in (REFUSED, ACCEPTED, OTHER):
        lines += [
            f"### {kind[0].upper()}{kind[1:]}",
            "",
            "| difference | reason | example |",
            "|---|---|---|",
        ]
        lines += [
            f"| {entry.what} | {entry.why} | {code(entry.example)} |"
            for entry in TABLE
            if entry.kind == kind
        ]
        lines += [""]
    return "\n".join(lines[:-1]) + "\n" + DEFAULTS


def code(example: str) -> str:
    """The lines of an example as one table cell."""
    return "<br>".join(f"`{line}`" for line in cell(example).rstrip("\n").split("\n"))


def table(title: str, prefix: str, schema: dict) -> str:
    lines = [f"\n## {title}\n", "| field | example | meaning | support |", "|---|---|---|---|"]
    for name, field in schema["properties"].items():
        examples = ", ".join(f"`{cell(shown(each))}`" for each in field.get("examples", [])) or " "
        support = f"**{SUPPORT[field['x-support']]}**"
        note = f": {cell(field['x-note'])}" if "x-note" in field else ""
        lines.append(
            f"| `{prefix}{name}` | {examples} | {cell(field['description'])} | {support}{note} |"
        )
    return "\n".join(lines) + "\n"


def shown(example: object) -> str:
    return example if isinstance(example, str) else json.dumps(example)


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def errors() -> str:
    sys.path.insert(0, str(REPO / "generator/src"))
    from hack.gen.diagnostic_codes import CODES

    return ERRORS + "".join(section(name, code) for name, code in CODES.items())


def section(name: str, code) -> str:
    (line, *_) = example_lines(name, code)
    source = (
        code.source
        if code.source.isprintable() or "\0" not in code.source
        else code.source.replace("\0", "\\0")
    )
    files = "".join(f"\nWith the file `{path}`{kind(size)}.\n" for path, size in code.files.items())
    return f"\n## {name}\n\n{code.meaning}\n\n```yaml\n{source}```\n{files}\n```text\n{line}\n```\n"


def kind(size: int | None) -> str:
    return ", a named pipe" if size is None else f", {size:,} bytes"


def example_lines(name: str, code) -> Iterator[str]:
    """Yield the diagnostics with this code about its example."""
    from jobgen.api import Options, to_values

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for path, size in code.files.items():
            target = Path(folder, path)
            if size is None:
                os.mkfifo(target)
            else:
                target.write_bytes(b"x" * size)
        diagnostics = to_values(code.source.encode(), Options()).diagnostics
    return (diagnostic.text("group.yaml") for diagnostic in diagnostics if diagnostic.code == name)
