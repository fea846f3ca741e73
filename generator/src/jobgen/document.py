"""Loads YAML documents and remembers where each key and value stands in the file."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, field

import yaml

from jobgen.problems import Invalid, Path, syntax_problem

# Aliases can blow up a small file (or make it refer to itself); no real group comes near these limits.
MAX_DEPTH = 20
MAX_NODES = 100_000

MERGE_TAG = "tag:yaml.org,2002:merge"
# Neither an environment variable nor a file in UTF-8 can hold these: NUL, and halves of surrogate pairs.
UNUSABLE = re.compile("[\0\ud800-\udfff]")
TEXT_TAG = "tag:yaml.org,2002:str"

Place = tuple[int, int]  # line and column, from 1


@dataclass
class Document:
    """One YAML document: its plain value, the places of its parts, and what is wrong with it as YAML."""

    value: object = None
    keys: dict[Path, Place] = field(default_factory=dict)
    values: dict[Path, Place] = field(default_factory=dict)
    flaws: list[tuple[Place, Path, str]] = field(default_factory=list)

    def key_place(self, path: Path) -> Place:
        """Where the key of `path` stands, or the nearest thing around it that is in the file."""
        return self.keys.get(path) or self.value_place(path)

    def value_place(self, path: Path) -> Place:
        """Where the value at `path` stands, or the nearest thing around it that is in the file."""
        while path and path not in self.values:
            path = path[:-1]
        return self.values[path]


def load(source: bytes) -> list[Document]:
    """Every document of `source`. Raises Invalid if it is not YAML; smaller flaws are kept in the documents."""
    text = _decode(source)
    conflict = re.search(r"^(<<<<<<<|>>>>>>>)( |$)", text, re.MULTILINE)
    if conflict:
        line = text.count("\n", 0, conflict.start()) + 1
        raise Invalid([syntax_problem(line, 1, "merge conflict marker: resolve the conflict first")])
    try:
        loader = yaml.SafeLoader(text)
        documents = []
        while loader.check_node():
            documents.append(_Walk(loader).document(loader.get_node()))
        return documents
    except yaml.MarkedYAMLError as error:
        # Aliases and tags are named in quotes; a name may be an unquoted secret.
        message = re.sub(r" '[^']{2,}'", "", error.problem or error.context or "this is not YAML")
        raise Invalid([syntax_problem(*_place(error.problem_mark or error.context_mark), message)]) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise Invalid([syntax_problem(*place, "a control character, which YAML does not allow")]) from None
    except RecursionError:
        raise Invalid([syntax_problem(1, 1, "nested too deeply")]) from None


def _decode(source: bytes) -> str:
    try:
        return source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid([syntax_problem(source.count(b"\n", 0, error.start) + 1, 1, "not UTF-8 text")]) from None


def _place(mark: yaml.Mark | None) -> Place:
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


class _Walk:
    """Turns one document's nodes into plain values. Flaws are collected; what has one is left out."""

    def __init__(self, loader: yaml.SafeLoader):
        self.loader = loader
        self.result = Document()
        self.nodes = 0

    def document(self, root: yaml.Node) -> Document:
        self.result.value = self.plain(root, ())
        return self.result

    def flaw(self, node: yaml.Node, path: Path, message: str) -> None:
        self.result.flaws.append((_place(node.start_mark), path, message))

    def count(self, node: yaml.Node, path: Path) -> None:
        self.nodes += 1
        if len(path) > MAX_DEPTH or self.nodes > MAX_NODES:
            raise Invalid([syntax_problem(*_place(node.start_mark), "nested too deeply, or too large")])

    def plain(self, node: yaml.Node, path: Path) -> object:
        self.count(node, path)
        self.result.values[path] = _place(node.start_mark)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(item, (*path, index)) for index, item in enumerate(node.value)]
        return self.scalar(node, path)

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict:
        found: dict[str, object] = {}
        for key, value in self.pairs(node, path):
            here = (*path, key.value)
            self.result.keys[here] = _place(key.start_mark)
            found[key.value] = self.plain(value, here)
        return found

    def pairs(self, node: yaml.MappingNode, path: Path) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
        """Keys and values of a mapping, with what `<<` merges into it; its own keys win."""
        self.count(node, path)
        own: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}
        for key, value in node.value:
            if key.tag == MERGE_TAG:
                for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if not isinstance(source, yaml.MappingNode):
                        self.flaw(source, path, "`<<` merges mappings only")
                        continue
                    for pair in self.pairs(source, (*path, "<<")):  # the first source of a key wins
                        merged.setdefault(pair[0].value, pair)
            elif not isinstance(key, yaml.ScalarNode):
                self.flaw(key, path, "a key must be text")
            elif key.tag != TEXT_TAG:
                self.flaw(key, (*path, key.value), "YAML does not read this key as text; put it in quotes")
            elif key.value in own:
                first = own[key.value][0].start_mark.line + 1
                self.flaw(key, (*path, key.value), f"duplicate key (first at line {first})")
            else:
                own[key.value] = key, value
        return list({**merged, **own}.values())

    def scalar(self, node: yaml.ScalarNode, path: Path) -> object:
        try:
            value = self.loader.construct_object(node)
        except (yaml.constructor.ConstructorError, ValueError, LookupError):
            self.flaw(node, path, "YAML cannot read this value; put it in quotes")
            return ""
        if isinstance(value, datetime.date):  # a datetime is one too
            return str(value)
        if isinstance(value, bytes):
            self.flaw(node, path, "binary values are not supported")
            return ""
        if isinstance(value, str) and UNUSABLE.search(value):
            self.flaw(node, path, "contains a character that no container can take (NUL, or half of a surrogate pair)")
        return value
