"""Generator of charts/NAME/README.md, from Chart.yaml, the comments in values.yaml, and the schema
of the values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import yaml

from hack.paths import REPO

HEAD = """\
<!-- Generated from Chart.yaml, values.yaml and the schema by `make generate`. -->
# {name}

{description}.

{install}

What it does, and what to do when it fails: [docs/{name}.md](../../docs/{name}.md). Complete examples:
[values-examples](../../values-examples). Kubernetes {kubernetes}, Helm 3 or 4. The chart installs objects of its
namespace only. No image has to be built ([images](../../docs/clusters.md#images)). The links lead to other
files of the repository.

As a dependency of another chart it can be left out with `condition: {name}.enabled`.

## Values

Unknown keys are refused. A key without a value, as in `key:`, is refused where an empty value would mean something
else.

| value | type | default | meaning |
|---|---|---|---|
"""
INSTALL = {
    "ddp-run": "helm install run charts/ddp-run",
    "gpu-accept": "helm install accept charts/gpu-accept",
    "job-group": "jobgen to-values values-examples/find-each-other/group.yaml \\\n"
    "  | helm install demo charts/job-group -f -",
}
LONGEST_DEFAULT = 60
MOST_CHOICES = 12  # values that are named in the table; the schema has more


def page(chart: str, schema: dict) -> str:
    about = yaml.safe_load((REPO / f"charts/{chart}/Chart.yaml").read_text())
    text = (REPO / f"charts/{chart}/values.yaml").read_text()
    head = HEAD.format(
        name=chart,
        description=about["description"],
        install=f"```sh\n{INSTALL[chart]}\n```",
        kubernetes=about["kubeVersion"].replace(">=", "").removesuffix("-0") + " or newer",
    )
    return head + "".join(rows(text, schema))


def rows(text: str, schema: dict) -> Iterator[str]:
    """One row per documented value; the values below a documented map are part of its default."""
    values = yaml.safe_load(text)
    for path, comment in documented(text):
        default = values
        for name in path:  # a value that is only in a comment has no default
            default = default.get(name) if isinstance(default, dict) else None
        cells = (
            f"`{'.'.join(path)}`",
            kind(at(schema, path), schema),
            shown(default, path, values),
            comment,
        )
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def documented(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Path and comment of every key that has a comment `# -- …` above it, also of a key in the last
    comment line.
    """
    comment: list[str] = []
    above: list[tuple[int, str]] = []  # indentation and name of the maps around a line
    for line in [*text.splitlines(), ""]:
        if found := re.match(r" *# (-- )?(.*)", line):
            comment = [found[2]] if found[1] else [*comment, found[2]] if comment else []
            continue
        key = re.match(r"( *)([A-Za-z][\w.-]*):", line)
        if key:
            above = [(indent, name) for indent, name in above if indent < len(key[1])] + [
                (len(key[1]), key[2])
            ]
        elif comment and (
            only := re.match(r"([A-Za-z]\w*): ", comment[-1])
        ):  # `# key: value`, then an empty line
            above, comment, key = [(0, only[1])], comment[:-1], only
        if key and comment:
            yield tuple(name for _, name in above), " ".join(comment)
        comment = []


def at(schema: dict, path: tuple[str, ...]) -> dict:
    node = schema
    for name in path:
        node = resolved(node, schema).get("properties", {}).get(name, {})
    return resolved(node, schema)


def resolved(node: dict, schema: dict) -> dict:
    while "$ref" in node:
        node = schema["definitions"][node["$ref"].rpartition("/")[2]]
    return node


def kind(node: dict, schema: dict) -> str:
    """Type of a value, or the values that it can have."""
    for choice in ("oneOf", "anyOf"):
        if choice in node:
            return " or ".join(
                dict.fromkeys(kind(resolved(each, schema), schema) for each in node[choice])
            )
    if len(node.get("enum", ())) > MOST_CHOICES:
        return "string"
    if "enum" in node:
        return ", ".join(f"`{each or json.dumps(each)}`" for each in node["enum"])
    if "const" in node:
        return f"`{json.dumps(node['const'])}`"
    kinds = node.get("type", "object" if "properties" in node else "")
    if "const" in node.get("then", {}):  # the other type is a mistake
        kinds = kinds[0]
    return " or ".join([kinds] if isinstance(kinds, str) else kinds)


def shown(default: object, path: tuple[str, ...], values: dict) -> str:
    if path[0] not in values:
        return "required"
    text = json.dumps(default, ensure_ascii=False)
    return f"`{text}`" if len(text) <= LONGEST_DEFAULT else "see values.yaml"
