"""Loader of YAML documents: plain values with the position of each key and value, in bounded time and memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
)

from jobgen import yaml_scalars
from jobgen.diagnostics import InvalidInputError, Path, Position, invalid

MAX_BYTES = 4_000_000  # Helm stores values and objects of a release in 1 MiB, compressed
MAX_DEPTH = 60
MAX_NODES = 320_000  # keys and values in the file; a task has about 30
MAX_DOCUMENTS = 20_000
MAX_WEIGHT = 8_000_000  # characters, and NODE_WEIGHT per node, with every alias expanded
NODE_WEIGHT = 16

# (line, column), then for a mapping {key: (line, column, mark)} or for a list [mark], then the line where it ends;
# for a scalar that YAML does not read as text: None and its source text. Lines and columns count from 0.
Mark = tuple

_PARSER = yaml.cyaml.CParser if yaml.__with_libyaml__ else None


class _PurePythonParser(yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser):
    def __init__(self, text: str):
        yaml.reader.Reader.__init__(self, text)
        yaml.scanner.Scanner.__init__(self)
        yaml.parser.Parser.__init__(self)


class Document:
    """One document: its value, the positions of its parts, and its errors as YAML."""

    __slots__ = ("is_flow_style", "mark", "value", "yaml_errors")

    def __init__(
        self, value: object, mark: Mark, yaml_errors: list[tuple[Position, Path, str, str]], is_flow_style: bool = False
    ):
        self.value = value
        self.is_flow_style = is_flow_style  # written as {…} or […], like JSON
        self.mark = mark
        self.yaml_errors = yaml_errors  # position, path, code, message

    def position(self, path: Path, key: bool = False) -> Position:
        """Return the position of the value at `path` (or of its key), or of its closest parent in the file."""
        mark, position = self.mark, self.mark[:2]
        for part in path:
            inner = mark[2] if len(mark) > 2 else None
            if isinstance(inner, dict) and part in inner:
                *start, mark = inner[part]
                position = start if key else mark[:2]
            elif isinstance(inner, list) and isinstance(part, int) and part < len(inner):
                mark = inner[part]
                position = mark[:2]
            else:
                position = mark[:2]
                break
        return position[0] + 1, position[1] + 1

    def source_text(self, path: Path) -> str | None:
        """Return the source text of a scalar that YAML does not read as text; None for other values."""
        mark = self.mark
        for part in path:
            mark = mark[2][part][2] if isinstance(part, str) else mark[2][part]
        return mark[3] if len(mark) > 2 and mark[2] is None else None

    def lines(self, path: Path) -> range:
        """Return the lines, from 1, of a key and its value, or of the whole document."""
        start, mark = self.mark[0], self.mark
        for part in path:
            start, _, mark = mark[2][part]
        end = mark[3] if len(mark) > 2 and mark[2] is not None else mark[0]
        return range(start + 1, max(start, end) + 2)


def load(source: bytes) -> list[Document]:
    """Every document of `source`, each with its own errors. Raises InvalidInputError if it is not YAML."""
    text = decode(source)
    try:
        return list(_Composer(text).documents())
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text) from None


def decode(source: bytes) -> str:
    """Decode text that a YAML parser can read. Raises InvalidInputError."""
    if len(source) > MAX_BYTES:
        raise invalid((1, 1), "too-large", f"larger than {MAX_BYTES // 1_000_000} MB; a job group is smaller")
    try:
        text = source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if b"\0" in source[:4096] and not source.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise invalid((1, 1), "not-text", "a binary file; jobgen reads YAML") from None
        position = source.count(b"\n", 0, error.start) + 1, 1
        raise invalid(position, "not-text", "not UTF-8; save the file as UTF-8 text") from None
    if found := _UNPRINTABLE.search(text) or re.search("\ufeff", text):
        before = text[: found.start()]
        position = before.count("\n") + 1, len(before) - before.rfind("\n")
        if found[0] == "\0":
            raise invalid(position, "not-text", "a NUL character; this is a binary file, or it is not UTF-8")
        raise invalid(position, "not-text", "a control character, which YAML does not allow")
    if found := re.search(r"^(<<<<<<<|>>>>>>>)( |$)", text, re.MULTILINE):
        position = text.count("\n", 0, found.start()) + 1, 1
        raise invalid(position, "merge-conflict", "merge conflict marker: resolve the conflict first")
    return text


_UNPRINTABLE = yaml.reader.Reader.NON_PRINTABLE  # compiled by PyYAML; compiling it takes longer than reading a group


def _syntax_error(error: yaml.MarkedYAMLError, text: str) -> InvalidInputError:
    mark = error.problem_mark or error.context_mark
    position = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    problem = error.problem or error.context or ""
    # Some parsers do not mention the tab at which they stop.
    if "tab" in problem or (mark and text[mark.index : mark.index + 1] == "\t"):
        return invalid(position, "not-yaml", "a tab; YAML is indented with spaces")
    # The parser quotes names of aliases and tags; such a name may be a secret.
    message = re.sub(r" '[^']{2,}'", "", problem)
    message = message or "not valid YAML"
    if "{%" in text or "{{" in text:
        message += "; if the file is a template, such as one of Jinja, render it first"
    return invalid(position, "not-yaml", message)


class _Composer:
    """Builder of values from the parser's events. An alias becomes the same object as its anchor, not a copy."""

    def __init__(self, text: str):
        self.event = (_PARSER or _PurePythonParser)(text).get_event
        self.nodes = self.weight = 0

    def documents(self) -> Iterator[Document]:
        count = 0
        while (event := self.event()) is not None:
            if type(event) is not DocumentStartEvent:
                continue
            count += 1
            if count > MAX_DOCUMENTS:
                raise invalid((event.start_mark.line + 1, 1), "too-large", f"more than {MAX_DOCUMENTS:,} documents")
            self.anchors: dict[str, tuple | None] = {}
            self.yaml_errors: list[tuple[Position, Path, str, str]] = []
            self.path: list[str | int] = []
            root = self.event()
            value, mark, _ = self.node(root, 0)
            yield Document(value, mark, self.yaml_errors, bool(getattr(root, "flow_style", False)))
            event = self.event()
            assert type(event) is DocumentEndEvent, event

    def error(self, mark: Mark, code: str, message: str, *path: str) -> None:
        self.yaml_errors.append(((mark[0] + 1, mark[1] + 1), (*self.path, *path), code, message))

    def node(self, event: yaml.Event, depth: int) -> tuple[object, Mark, int]:
        """Return value, mark and weight of the node that starts with `event`."""
        start = event.start_mark
        mark = start.line, start.column
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise invalid((mark[0] + 1, mark[1] + 1), "too-large", f"more than {MAX_NODES:,} keys and values")
        kind = type(event)
        if kind is ScalarEvent:
            result = self.scalar(event, mark)
        elif kind is AliasEvent:
            result = self.alias(event, mark)
        else:
            if depth > MAX_DEPTH:
                raise invalid((mark[0] + 1, mark[1] + 1), "too-deep", f"nested more than {MAX_DEPTH} levels deep")
            if event.anchor:
                self.anchors[event.anchor] = None  # still open
            if event.tag not in _COLLECTION_TAGS:
                self.error(mark, "bad-tag", "an unknown YAML tag; remove it")
            result = self.mapping(mark, depth) if kind is MappingStartEvent else self.sequence(mark, depth)
        self.weight += NODE_WEIGHT if kind is not AliasEvent else result[2]
        if self.weight > MAX_WEIGHT:
            raise invalid((mark[0] + 1, mark[1] + 1), "too-large", "too large after aliases (*name) are expanded")
        if kind is not AliasEvent and event.anchor:
            self.anchors[event.anchor] = result
        return result

    def alias(self, event: AliasEvent, mark: Mark) -> tuple[object, Mark, int]:
        found = self.anchors.get(event.anchor, 0)
        if found == 0:
            message = "an alias (*name) without an anchor (&name) before it"
            raise invalid((mark[0] + 1, mark[1] + 1), "not-yaml", message)
        if found is None:
            raise invalid((mark[0] + 1, mark[1] + 1), "too-deep", "an alias (*name) inside its own anchor (&name)")
        value, inner, weight = found
        return value, mark + inner[2:], weight

    def sequence(self, mark: Mark, depth: int) -> tuple[list, Mark, int]:
        values, marks, weight = [], [], NODE_WEIGHT
        path = self.path
        path.append(0)
        while type(event := self.event()) is not SequenceEndEvent:
            path[-1] = len(values)
            value, inner, size = self.node(event, depth + 1)
            values.append(value)
            marks.append(inner)
            weight += size
        path.pop()
        return values, (*mark, marks, event.start_mark.line), weight

    def mapping(self, mark: Mark, depth: int) -> tuple[dict, Mark, int]:
        values: dict[str, object] = {}
        marks: dict[str, tuple] = {}
        merged: list[tuple[object, Mark]] = []
        weight, path = NODE_WEIGHT, self.path
        while type(event := self.event()) is not MappingEndEvent:
            plain = type(event) is ScalarEvent and event.implicit[0] and event.tag is None
            merge = plain and event.value == "<<"
            key, position, size = self.node(event, depth + 1)
            if isinstance(key, dict):  # {{ name }}: each value of a template would be an error or two
                message = "a mapping as a key; render the file first if it is a template, such as one of Jinja"
                raise invalid((position[0] + 1, position[1] + 1), "yaml-key", message)
            path.append(key if isinstance(key, str) else str(getattr(event, "value", "?")))
            value, inner, more = self.node(self.event(), depth + 1)
            path.pop()
            weight += size + more
            if merge:
                merged += self.merges(value, inner)
            elif not isinstance(key, str) or (len(position) > 2 and position[2] is None):
                message = "YAML does not read this key as text; put it in quotes"
                self.error(position, "yaml-key", message, *self.name(event))
            elif key in values:
                first = marks[key][0] + 1
                self.error(position, "duplicate-key", f"duplicate key (first at line {first})", key)
            else:
                values[key] = value
                marks[key] = (*position[:2], inner)
        for source, inner in merged:  # the mapping's own keys win, then the first source of a key
            for key, value in source.items():
                if key not in values:
                    values[key] = value
                    marks[key] = inner[2][key]
        return values, (*mark, marks, event.start_mark.line), weight

    def merges(self, value: object, mark: Mark) -> list[tuple[dict, Mark]]:
        pairs = zip(value, mark[2], strict=True) if isinstance(value, list) else [(value, mark)]
        found = []
        for source, inner in pairs:
            if isinstance(source, dict):
                found.append((source, inner))
            else:
                self.error(inner, "not-yaml", "`<<` merges mappings only")
        return found

    @staticmethod
    def name(event: yaml.Event) -> tuple[str, ...]:
        return (event.value,) if type(event) is ScalarEvent else ()

    def scalar(self, event: ScalarEvent, mark: Mark) -> tuple[object, Mark, int]:
        text: str = event.value
        weight = NODE_WEIGHT + len(text)
        self.weight += len(text)
        tag = event.tag
        if tag is None:
            tag = yaml_scalars.tag(text) if event.implicit[0] else None
            if tag is None:
                if "\0" in text or yaml_scalars.SURROGATE.search(text):
                    message = "a character that no container accepts (NUL, or half of a surrogate pair)"
                    self.error(mark, "not-text", message)
                return text, mark, weight
        try:
            value = yaml_scalars.construct(tag, text)
        except ValueError as error:
            self.error(mark, "bad-tag", str(error))
            return None, mark, weight
        same = isinstance(value, str) and value == text and tag != yaml_scalars.DATE
        return value, (mark if same else (*mark, None, text)), weight


_COLLECTION_TAGS = (None, "!", *(f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "set", "omap")))
