"""Keys of a chart's values.yaml that need a value."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from hack.paths import REPO


def helm(chart: str, schema: dict) -> str:
    """The template CHART.keys: paths as a YAML list, a map before what is in it."""
    defaults = yaml.safe_load((REPO / f"charts/{chart}/values.yaml").read_text())
    text = yaml.safe_dump(list(needed(schema, schema, defaults)), width=116, default_flow_style=True)
    comment = "{{/* Generated from values.yaml by `make generate`. */}}"
    return f'{comment}\n{{{{- define "{chart}.keys" -}}}}\n{text}{{{{- end }}}}\n'


def needed(root: dict, node: dict, values: dict, path: str = "") -> Iterator[str]:
    """Without a value, a list or free map with entries is empty, and a key whose default is null has its default."""
    for name, value in values.items():
        child = node["properties"].get(name, {})
        reference = child.get("$ref", "").rpartition("/")[2]
        if reference and reference[0].islower():  # not an object of Kubernetes
            child = root["definitions"][reference]
        free = isinstance(value, dict | list) and "properties" not in child
        if value is not None and not (free and value):
            yield f"{path}{name}"
        if isinstance(value, dict) and not free:
            yield from needed(root, child, value, f"{path}{name}.")
