"""Documents of a JSONL file, read by byte ranges so that several processes share one file and none holds it whole.

A line is one of
  {"text": "…"}                                    all of it is learned
  {"prompt": "…", "completion": "…"}               only the completion is learned
  {"messages": [{"role": "…", "content": "…"}]}    only the assistant's messages are learned; needs a chat template
Other keys are ignored, and so are empty lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

Piece = tuple[str, bool]  # a text, and whether it is learned
Render = Callable[[list[dict], bool], str]  # messages and add_generation_prompt, to the text of a chat template

SHAPES = '{"text": …}, {"prompt": …, "completion": …} or {"messages": […]}'


class DataError(ValueError):
    """Data that cannot be used: the message begins with file and line."""


def documents(path: Path, part: int, parts: int, render: Render | None) -> Iterator[list[Piece]]:
    """The pieces of every document whose line begins in the given part of the file's bytes; parts make up the whole.

    Raises DataError with the line's number in the file.
    """
    size = path.stat().st_size
    begin, end = size * part // parts, size * (part + 1) // parts
    with path.open("rb") as file:
        if begin:
            file.seek(begin - 1)
            file.readline()  # the rest of a line that began before
        while (offset := file.tell()) < end and (line := file.readline()):
            try:
                if line.strip():
                    yield pieces(parse(line), render)
            except DataError as error:
                raise DataError(f"{path}:{line_number(path, offset)}: {error}") from None


def line_number(path: Path, offset: int) -> int:
    """Counted only when something is wrong."""
    with path.open("rb") as file:
        count = 1
        while offset > 0 and (block := file.read(min(offset, 1 << 20))):
            count, offset = count + block.count(b"\n"), offset - len(block)
    return count


def parse(line: bytes) -> dict:
    try:
        document = json.loads(line)
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8: {error.reason} at byte {error.start + 1} of the line") from None
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(document, dict):
        raise DataError(f"a line must be an object: {SHAPES}")
    return document


def pieces(document: dict, render: Render | None) -> list[Piece]:
    if "messages" in document:
        return conversation(document["messages"], render)
    if "prompt" in document or "completion" in document:
        return [(text(document, "prompt"), False), (text(document, "completion"), True)]
    if "text" in document:
        return [(text(document, "text"), True)]
    raise DataError(f"none of the known keys; it has {', '.join(map(repr, document)) or 'none'}, not {SHAPES}")


def text(document: dict, key: str) -> str:
    if key not in document:
        raise DataError(f"{key!r} is missing")
    value = document[key]
    if not isinstance(value, str):
        raise DataError(f"{key!r} must be a string, not {type(value).__name__}")
    return value


def conversation(messages: object, render: Render | None) -> list[Piece]:
    """The chat template's text, cut where an assistant's message begins and ends."""
    if render is None:
        raise DataError('"messages" needs a chat template, and the tokenizer has none: use "prompt" and "completion"')
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise DataError('"messages" must be a list of {"role": …, "content": …}')
    for message in messages:
        text(message, "role"), text(message, "content")
    try:
        whole = render(messages, False)
        found: list[Piece] = []
        done = 0
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, through = render(messages[:number], True), render(messages[: number + 1], False)
            if not (whole.startswith(through) and through.startswith(before) and len(before) >= done):
                raise DataError(
                    "the chat template writes earlier messages anew, so the assistant's part cannot be told apart: "
                    'use "prompt" and "completion"'
                )
            found += [(whole[done : len(before)], False), (whole[len(before) : len(through)], True)]
            done = len(through)
    except DataError:
        raise
    except Exception as error:  # of the template, which is the tokenizer's own code: wrong roles, wrong order
        raise DataError(f"the chat template refuses these messages: {error}") from None
    if not found:
        raise DataError('"messages" has no message of the role "assistant", so there is nothing to learn')
    return [*found, (whole[done:], False)]
