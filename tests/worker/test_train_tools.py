"""Tools, their calls and weights of messages: in the text, learned, or refused; and keys that are there twice."""

from __future__ import annotations

import pytest

from gpuworker.train import dataset
from tests.worker.test_train_data import template


def knows_tools(messages: list[dict], prompt: bool, tools: list | None) -> str:
    calls = [{**each, "content": f"{each['content'] or ''}{each.get('tool_calls', '')}"} for each in messages]
    return f"{tools or ''}{template(calls, prompt)}"


CALL = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
ASKS = [{"role": "user", "content": "1+1"}, CALL]


def test_tools_and_their_calls_are_in_the_text_that_is_learned():
    found = dataset.segments({"messages": ASKS, "tools": [{"name": "add"}]}, knows_tools)
    assert found == [("[{'name': 'add'}]<user>1+1;<assistant>", False), ("[{'name': 'add'}];", True), ("", False)]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"messages": [ASKS[0], {**CALL, "content": ""}]}, "does not write 'tool_calls' of message 2"),
        ({"messages": [ASKS[0], {"role": "assistant", "content": "2"}], "tools": [{}]}, "does not write 'tools'"),
        ({"messages": ASKS, "tools": "add"}, "'tools' must be a list"),
        ({"messages": [{"role": "assistant", "content": None}]}, "'content' must be a string"),
        ({"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]}, "'weight' must be 0 or 1"),
        ({"messages": [{"role": "assistant", "content": "a", "weight": 0}]}, "no message .* to learn"),
    ],
)
def test_what_a_template_does_not_write_is_refused(document, words):
    with pytest.raises(dataset.DataError, match=words):
        dataset.segments(document, template)


def test_a_message_of_weight_0_is_not_learned():
    talk = [("user", "q"), ("assistant", "bad"), ("user", "r"), ("assistant", "good")]
    messages = [{"role": role, "content": content, "weight": int(content != "bad")} for role, content in talk]
    learned = [text for text, learn in dataset.segments({"messages": messages}, template) if learn]
    assert learned == ["good;"]


@pytest.mark.parametrize("line", ['{"text": "a", "text": "b"}', '{"messages": [{"role": "user", "role": "system"}]}'])
def test_a_key_that_is_there_twice_is_refused(line):
    with pytest.raises(dataset.DataError, match="twice"):
        dataset.parse_line(line.encode())
