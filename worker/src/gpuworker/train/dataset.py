"""Documents of JSON lines, or of the rows of Parquet.

Each line or row is one of
  {"text": "…"}                                    all of it is learned
  {"prompt": "…", "completion": "…"}               only the completion is learned
  {"messages": [{"role": "…", "content": "…"}]}    only the assistant's messages are learned; needs a chat template
`tools` beside messages goes to the template, and an assistant's message of weight 0 is not learned. Other keys and
empty lines are ignored. A line that is two of them is refused: only one of them can be meant.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from gpuworker.train.data_files import DataError, read_lines

Segment = tuple[str, bool]  # a text, and whether it is learned
Span = tuple[int, int]  # start and end in a text
PROBE = "\ue000"  # a content that no template writes itself


class MarkedTemplate(NamedTuple):
    """A chat template that marks what is learned."""

    render: Callable[[list[dict], list | None], tuple[str, list[Span]]]  # messages, tools


PlainTemplate = Callable[..., str]  # (messages, add_generation_prompt, tools=None) to text
ChatTemplate = MarkedTemplate | PlainTemplate

LINE_FORMATS = '{"text": …}, {"prompt": …, "completion": …} or {"messages": […]}'


def read_documents(files: list[Path], part: int, parts: int, template: ChatTemplate | None) -> Iterator[list[Segment]]:
    """Segments of every document in the given part of the files, as in `read_lines`. All parts together are the files.

    Raises DataError with the place of the line.
    """
    for line in read_lines(files, part, parts):
        try:
            if line.row is not None:
                yield segments(line.row, template)
            elif line.text.strip():
                yield segments(parse_line(line.text), template)
        except DataError as error:
            raise DataError(f"{line.place}: {error}") from None


def parse_line(line: bytes) -> dict:
    try:
        document = json.loads(line, object_pairs_hook=without_repeated_keys)
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8: {error.reason} at byte {error.start + 1} of the line") from None
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON: {error.msg} at column {error.colno}") from None
    except DataError:
        raise
    except (ValueError, RecursionError) as error:  # a number with too many digits, or too many brackets
        raise DataError(f"JSON that Python cannot read: {error}") from None
    if not isinstance(document, dict):
        raise DataError(f"a line must be an object: {LINE_FORMATS}")
    return document


def without_repeated_keys(pairs: list[tuple[str, object]]) -> dict:
    """JSON lets a key be repeated, and Python would take the last one in silence."""
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise DataError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is there twice: remove one")
    return found


def segments(document: dict, template: ChatTemplate | None) -> list[Segment]:
    learned = [repr(key) for key in ("messages", "completion", "text") if key in document]
    if len(learned) > 1:
        raise DataError(f"{' and '.join(learned)}, of which only one can be learned: remove the others")
    if "messages" in document:
        return chat_segments(document["messages"], document.get("tools"), template)
    if "prompt" in document or "completion" in document:
        return [(string_at(document, "prompt"), False), (string_at(document, "completion"), True)]
    if "text" in document:
        return [(string_at(document, "text"), True)]
    found = ", ".join(map(repr, document)) or "none"
    raise DataError(f"none of the known keys: found {found}, expected {LINE_FORMATS}")


def string_at(document: dict, key: str) -> str:
    if key not in document:
        raise DataError(f"{key!r} is missing")
    value = document[key]
    if not isinstance(value, str):
        raise DataError(f"{key!r} must be a string, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        found = f"\\u{ord(value[error.start]):04x}"
        raise DataError(f"{key!r} contains half of a surrogate pair, {found}, at character {error.start + 1}") from None
    return value


def chat_segments(messages: object, tools: object, template: ChatTemplate | None) -> list[Segment]:
    """Text of the chat template, cut where each learned part starts and ends."""
    if template is None:
        raise DataError('"messages" needs a chat template, and the tokenizer has none: use "prompt" and "completion"')
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise DataError('"messages" must be a list of {"role": …, "content": …}')
    if tools is not None and not isinstance(tools, list):
        raise DataError(f"'tools' must be a list, not {type(tools).__name__}")
    for message in messages:
        string_at(message, "role")
        if message.get("content") is not None or not message.get("tool_calls"):
            string_at(message, "content")
        if message.get("weight") not in (None, 0, 1):
            raise DataError(f"'weight' must be 0 or 1, not {message['weight']!r}")
    try:
        if isinstance(template, MarkedTemplate):
            whole, spans = template.render(messages, tools)
            require_written(messages, tools, whole, lambda *given: template.render(*given)[0])
            if any(message.get("weight") == 0 for message in messages):
                raise DataError("'weight' is 0, and the chat template marks itself what is learned: remove it")
        else:
            plain = functools.partial(template, tools=tools)
            whole = plain(messages, False)
            require_written(messages, tools, whole, lambda messages, tools: template(messages, False, tools=tools))
            spans = assistant_spans(messages, whole, plain)
    except DataError:
        raise
    except Exception as error:  # raised by the tokenizer's template, for example for wrong roles or a wrong order
        raise DataError(f"the chat template rejects these messages: {error}") from None
    if not spans:
        raise DataError('"messages" has no message with the role "assistant" to learn')
    found: list[Segment] = []
    done = 0
    for start, end in spans:
        found += [(whole[done:start], False), (whole[start:end], True)]
        done = end
    return [*found, (whole[done:], False)]


def require_written(messages: list[dict], tools: list | None, whole: str, render: Callable[..., str]) -> None:
    """Raise DataError if the text is the same without the tools, or without the calls of a message."""
    way_out = "use a tokenizer whose chat template knows it, or remove it"
    if tools and render(messages, None) == whole:
        raise DataError(f"the chat template does not write 'tools': {way_out}")
    for number, message in enumerate(messages):
        if message.get("tool_calls"):
            others = {key: value for key, value in message.items() if key != "tool_calls"}
            try:
                text = render([*messages[:number], others, *messages[number + 1 :]], tools)
            except Exception:  # it knows calls, and misses these
                continue
            if text == whole:
                raise DataError(f"the chat template does not write 'tool_calls' of message {number + 1}: {way_out}")


def assistant_spans(messages: list[dict], whole: str, template: PlainTemplate) -> list[Span]:
    """Where the text of each assistant message starts and ends, without its header."""
    spans: list[Span] = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant" or message.get("weight") == 0:
            continue
        before, through = text_before(messages[:number], message, template), template(messages[: number + 1], False)
        after = spans[-1][1] if spans else 0
        if whole.startswith(through) and through.startswith(before) and len(before) >= after:
            spans.append((len(before), len(through)))
            continue
        try:
            spans.append(content_span(messages[: number + 1], before, whole, after, template))
        except DataError as error:
            raise DataError(
                f"the chat template {error}, so the assistant's part cannot be separated: mark it with "
                '{% generation %} in the template, or use "prompt" and "completion"'
            ) from None
    return spans


def content_span(messages: list[dict], prompt: str, whole: str, after: int, template: PlainTemplate) -> Span:
    """Where the content of the last of `messages` starts in the whole text, and where the text that ends it ends.

    For templates whose generation prompt has more than the header of a message, such as <think>, and for those that
    write the last message in another way, such as with the only end of the text.
    """
    header, ending = text_around(messages[:-1], messages[-1], template)
    content = messages[-1]["content"] or ""
    starts = [text for text in (prompt, header) if whole.startswith(text) and len(text) >= after]
    for start in starts:
        for text in (content, content.strip()):
            if whole.startswith(text, len(start)):
                end = len(start) + len(text)
                return len(start), end + len(ending) * whole.startswith(ending, end)
    place = f"message {len(messages)}"
    if starts:
        raise DataError(f"changes the content of {place}")
    raise DataError(f"leaves out or changes what is before {place} once it or others follow")


def text_before(earlier: list[dict], message: dict, template: PlainTemplate) -> str:
    """Text up to the content of an assistant message: the generation prompt, if the template has one.

    Else it is found with another content, because the content itself may also occur in the header.
    """
    if earlier and (prompt := template(earlier, True)) != template(earlier, False):
        return prompt
    return text_around(earlier, message, template)[0]


def text_around(earlier: list[dict], message: dict, template: PlainTemplate) -> tuple[str, str]:
    """Text before and after the content of an assistant message that is the last one."""
    before, found, ending = template([*earlier, {**message, "content": PROBE}], False).rpartition(PROBE)
    if not found:
        raise DataError("the chat template leaves out the content of an assistant message")
    return before, ending
