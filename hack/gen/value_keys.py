"""What templates know of their chart's values.yaml: the keys that need a value, and the defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import yaml

from hack.paths import REPO

COMMENT = "{{/* Generated from values.yaml by `make generate`. */}}"


def defaults(chart: Path) -> str:
    """The template CHART.defaults: values.yaml as JSON, which Helm does not show to templates."""
    values = yaml.safe_load((chart / "values.yaml").read_text())
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    return f'{COMMENT}\n{{{{- define "{chart.name}.defaults" -}}}}\n{{{lines}}}\n{{{{- end }}}}\n'


def helm(chart: str, schema: dict) -> str:
    """The template CHART.keys: paths as a YAML list, a map before what is in it."""
    defaults = yaml.safe_load((REPO / f"charts/{chart}/values.yaml").read_text())
    text = yaml.safe_dump(
        list(needed(schema, schema, defaults)), width=116, default_flow_style=True
    )
    return f'{COMMENT}\n{{{{- define "{chart}.keys" -}}}}\n{text}{{{{- end }}}}\n'


def needed(root: dict, node: dict, values: dict, path: str = "") -> Iterator[str]:
    """Paths of keys, without those whose default is null and free maps with entries, which only
    null can empty.
    """
    for name, value in values.items():
        child = node["properties"].get(name, {})
        reference = child.get("$ref", "").rpartition("/")[2]
        if reference[:1].islower():  # not an object of Kubernetes
            child = root["definitions"][reference]
        of_kubernetes = reference[
            :1
        ].isupper()  # a security context: its fields may be null, the whole may not
        free = isinstance(value, dict) and "properties" not in child
        if value is not None and (of_kubernetes or not (free and value)):
            yield f"{path}{name}"
        if isinstance(value, dict) and not free:
            yield from needed(root, child, value, f"{path}{name}.")
