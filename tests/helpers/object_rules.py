"""Rules of the API server that no schema has: names, labels, quantities, and entries that a list may have once."""

from __future__ import annotations

import re
from collections.abc import Iterator

LABEL = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
DNS = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{DNS}(\.{DNS})*"
KEY = rf"({SUBDOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
QUANTITY = r"[0-9]+(\.[0-9]+)?([KMGTPE]i|[mkMGTPE]|[eE][0-9]+)?"
# Field -> pattern of its text.
TEXTS = {
    **dict.fromkeys(("claimName", "secretName", "priorityClassName", "runtimeClassName"), SUBDOMAIN),
    **dict.fromkeys(("topologyKey",), KEY),
    **dict.fromkeys(("sizeLimit", "storage"), QUANTITY),
    **dict.fromkeys(("image",), r"\S+"),
}
ONCE = {"env": "name", "volumes": "name", "volumeMounts": "mountPath", "containers": "name", "initContainers": "name"}


def violations(item: dict) -> Iterator[str]:
    name = item["metadata"]["name"]
    own = r"[a-z]([-a-z0-9]*[a-z0-9])?" if item["kind"] == "Service" else SUBDOMAIN
    if not re.fullmatch(own, name) or len(name) > 63:
        yield f"name {name}"
    yield from within(item, item["kind"])


def within(node: object, path: str) -> Iterator[str]:
    if isinstance(node, list):
        for index, child in enumerate(node):
            yield from within(child, f"{path}[{index}]")
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        here = f"{path}.{key}"
        if key in ("data", "binaryData"):
            continue
        if key in ("labels", "matchLabels", "nodeSelector"):
            pairs = [f"{name}={text}" for name, text in value.items()]
            yield from (f"{here}: {pair}" for pair in pairs if not re.fullmatch(rf"{KEY}={LABEL}", pair))
        elif key == "annotations":
            yield from (f"{here}: {name}" for name in value if not re.fullmatch(KEY, name))
        elif key in ("requests", "limits"):
            pairs = [f"{name}={amount}" for name, amount in value.items()]
            yield from (f"{here}: {pair}" for pair in pairs if not re.fullmatch(rf"{KEY}={QUANTITY}", pair))
        elif key in TEXTS and isinstance(value, str) and not re.fullmatch(TEXTS[key], value):
            yield f"{here}: {value!r}"
        elif key in ONCE and isinstance(value, list):
            ids = [each[ONCE[key]] for each in value]
            yield from (f"{here}: {each} twice" for each in {each for each in ids if ids.count(each) > 1})
        yield from within(value, here)
    if "containers" in node:
        volumes = {each["name"] for each in node.get("volumes", [])}
        for container in [*node["containers"], *node.get("initContainers", [])]:
            mounts = [each["name"] for each in container.get("volumeMounts", [])]
            yield from (f"{path}: no volume {name}" for name in mounts if name not in volumes)
