"""Loader of YAML documents: plain values with the position of each key and value, in bounded
time and memory.
"""

import copy
import re
from dataclasses import dataclass

import yaml

from jobgen.diagnostics import InvalidInputError, Path, Position

MAX_BYTES = 4_000_000  # Helm stores values and objects of a release in 1 MiB, compressed
MAX_DEPTH = 60
MAX_NODES = 320_000  # keys and values in the file; a task has about 30
MAX_DOCUMENTS = 20_000
MAX_WEIGHT = 8_000_000  # characters, and NODE_WEIGHT per node, with every alias expanded
NODE_WEIGHT = 16
MAX_DIGITS = 400  # of a number; longer ones take long to convert and are never meant

_TAG = "tag:yaml.org,2002:"
_TEXT, _MERGE, _DATE = f"{_TAG}str", f"{_TAG}merge", f"{_TAG}timestamp"
_SCALARS = {f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float", "timestamp")}
_COLLECTIONS = {f"{_TAG}{kind}" for kind in ("map", "seq", "set", "omap")}

# Of a mapping or list: the nodes of the key and the value of each part.
Parts = dict[str | int, tuple[yaml.Node, yaml.Node]]


@dataclass(slots=True)
class Document:
    """One document: its value, the positions of its parts, and its errors as YAML."""

    value: object
    node: yaml.Node
    parts: dict[int, Parts]  # of every mapping and list, by the id of its node's value
    errors: list[tuple[Position, Path, str, str]]  # position, path, code, message

    def _nodes(self, path: Path) -> tuple[yaml.Node, yaml.Node]:
        """The nodes of the key and the value at `path`, or of its closest parent in the file."""
        key = node = self.node
        for part in path:
            parts = self.parts.get(id(node.value), {})
            if part not in parts:
                return node, node
            key, node = parts[part]
        return key, node

    def position(self, path: Path, key: bool = False) -> Position:
        """The position of the value at `path` (or of its key), or of its closest parent in the
        file.
        """
        return _position(self._nodes(path)[0 if key else 1])

    def source_text(self, path: Path) -> str | None:
        """The text of a scalar as it is written."""
        node = self._nodes(path)[1]
        return node.value if isinstance(node, yaml.ScalarNode) else None


def load(source: bytes) -> list[Document]:
    """Every document of `source`, each with its own errors. Raises InvalidInputError if it is
    not YAML.
    """
    text = decode(source)
    documents: list[Document] = []
    try:
        loader = _Loader(text)
        while loader.check_node():
            documents.append(_Builder(loader).document(loader.get_node()))
            if len(documents) > MAX_DOCUMENTS:
                raise InvalidInputError(
                    documents[-1].position(()),
                    "too-large",
                    f"more than {MAX_DOCUMENTS:,} documents",
                )
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text) from None
    return documents


def _position(node: yaml.Node | yaml.Event) -> Position:
    return node.start_mark.line + 1, node.start_mark.column + 1


def decode(source: bytes) -> str:
    """Decode text that a YAML parser can read. Raises InvalidInputError."""
    if len(source) > MAX_BYTES:
        raise InvalidInputError(
            (1, 1), "too-large", f"larger than {MAX_BYTES // 1_000_000} MB; a job group is smaller"
        )
    try:
        text = source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        position = source.count(b"\n", 0, error.start) + 1, 1
        raise InvalidInputError(
            position, "not-text", "not UTF-8; jobgen reads YAML, saved as UTF-8 text"
        ) from None
    if found := _UNPRINTABLE.search(text) or re.search("\ufeff", text):
        before = text[: found.start()]
        position = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise InvalidInputError(
            position,
            "not-text",
            "a control character, which YAML does not allow; is this a text file?",
        )
    return text


# compiled by PyYAML; compiling it takes longer than reading a group
_UNPRINTABLE = yaml.reader.Reader.NON_PRINTABLE


def _syntax_error(error: yaml.MarkedYAMLError, text: str) -> InvalidInputError:
    mark = error.problem_mark or error.context_mark
    position = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    # The parser quotes names of aliases and tags; such a name may be a secret.
    message = re.sub(r" '[^']{2,}'", "", error.problem or error.context or "not valid YAML")
    message += "; YAML is indented with spaces, not tabs, and a template must be rendered first"
    return InvalidInputError(position, "not-yaml", message)


class _Loader(yaml.composer.Composer, yaml.CSafeLoader):
    """PyYAML's composer of nodes, with bounds, over the events of libyaml's parser."""

    def __init__(self, text: str):
        yaml.CSafeLoader.__init__(self, text)
        self.anchors: dict[str, yaml.Node] = {}
        self.depth = self.count = self.weight = 0

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node:
        event = self.peek_event()
        self.count += 1
        if self.count > MAX_NODES:
            raise InvalidInputError(
                _position(event), "too-large", f"more than {MAX_NODES:,} keys and values"
            )
        if self.depth > MAX_DEPTH:
            raise InvalidInputError(
                _position(event), "too-deep", f"nested more than {MAX_DEPTH} levels deep"
            )
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        if type(event) is yaml.AliasEvent:  # the same value at another place
            node = copy.copy(node)
            node.start_mark, node.end_mark = event.start_mark, event.end_mark
        return node


class _Builder:
    """Builder of a document's value, in which an alias is a copy of its anchor's."""

    def __init__(self, loader: _Loader):
        self.loader = loader
        self.path: list[str | int] = []
        self.errors: list[tuple[Position, Path, str, str]] = []
        self.parts: dict[int, Parts] = {}

    def document(self, node: yaml.Node) -> Document:
        return Document(self.value(node), node, self.parts, self.errors)

    def error(self, node: yaml.Node, code: str, message: str, *path: str) -> None:
        self.errors.append((_position(node), (*self.path, *path), code, message))

    def value(self, node: yaml.Node) -> object:
        self.loader.weight += NODE_WEIGHT + len(node.value)
        if self.loader.weight > MAX_WEIGHT:
            message = "too large after aliases (*name) are expanded"
            raise InvalidInputError(_position(node), "too-large", message)
        if len(self.path) > MAX_DEPTH:
            message = "nested too deep, by an alias (*name), perhaps inside its own anchor (&name)"
            raise InvalidInputError(_position(node), "too-deep", message)
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node)
        if node.tag not in _COLLECTIONS:
            self.error(node, "bad-tag", "an unknown YAML tag; remove it")
        return self.mapping(node) if isinstance(node, yaml.MappingNode) else self.sequence(node)

    def part(self, name: str | int, node: yaml.Node) -> object:
        self.path.append(name)
        value = self.value(node)
        self.path.pop()
        return value

    def sequence(self, node: yaml.SequenceNode) -> list:
        self.parts[id(node.value)] = {index: (each, each) for index, each in enumerate(node.value)}
        return [self.part(index, each) for index, each in enumerate(node.value)]

    def mapping(self, node: yaml.MappingNode) -> dict:
        values: dict[str, object] = {}
        parts: Parts = {}
        merged: list[tuple[yaml.Node, object]] = []
        for key, each in node.value:
            # {{ name }}: each value of a template would be an error or two
            if isinstance(key, yaml.MappingNode):
                message = (
                    "a mapping as a key; if the file is a template, such as of Jinja, render it"
                )
                raise InvalidInputError(_position(key), "yaml-key", message)
            name = self.value(key)
            value = self.part(name if isinstance(name, str) else str(key.value), each)
            if key.tag == _MERGE:
                is_list = isinstance(each, yaml.SequenceNode)
                merged += zip(each.value, value, strict=True) if is_list else [(each, value)]
            elif not isinstance(name, str) or key.tag == _DATE:
                message = "YAML does not read this key as text; put it in quotes"
                self.error(
                    key, "yaml-key", message, *([key.value] if isinstance(key.value, str) else [])
                )
            elif name in values:
                message = f"duplicate key (first at line {_position(parts[name][0])[0]})"
                self.error(key, "duplicate-key", message, name)
            else:
                values[name], parts[name] = value, (key, each)
        for each, source in merged:  # the mapping's own keys win, then the first source of a key
            if isinstance(source, dict):
                for name, value in source.items():
                    if name not in values:
                        values[name], parts[name] = value, self.parts[id(each.value)][name]
            else:
                self.error(each, "not-yaml", "`<<` merges mappings only")
        self.parts[id(node.value)] = parts
        return values

    def scalar(self, node: yaml.ScalarNode) -> object:
        text, tag = node.value, node.tag
        if tag in (_TEXT, _MERGE):
            if "\0" in text or (not text.isascii() and re.search("[\ud800-\udfff]", text)):
                message = "a character that no container accepts (NUL, or half of a surrogate pair)"
                self.error(node, "not-text", message)
            return text
        if tag not in _SCALARS and tag != f"{_TAG}value":
            self.error(node, "bad-tag", "an unknown YAML tag; remove it")
            return None
        try:
            if len(text) > MAX_DIGITS:
                raise ValueError
            value = self.loader.yaml_constructors[tag](self.loader, node)
        except (AttributeError, LookupError, ValueError):
            self.error(node, "bad-tag", "YAML cannot read this value; put it in quotes")
            return None
        return str(value) if tag == _DATE else value
