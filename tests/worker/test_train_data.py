"""JSONL to samples: what is learned, what is refused, and that nothing depends on how the work is shared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gpuworker.train import dataset, token_file
from gpuworker.train.distributed import World
from gpuworker.train.schedule import PADDING, Shape, epoch_order, learning_rate, mix, rows, steps_left

EOS = 0


def render(messages: list[dict], prompt: bool) -> str:
    """A chat template: <role>content for each message."""
    written = "".join(f"<{message['role']}>{message['content']};" for message in messages)
    return written + ("<assistant>" if prompt else "")


def codec(**changes) -> token_file.Codec:
    """A byte is a token."""
    settings = {"encode": lambda texts: [list(text.encode()) for text in texts], "bos": None, "eos": EOS}
    return token_file.Codec(**{**settings, "render": render, "digest": "bytes", **changes})


def samples(folder: Path, *documents: dict, length: int = 8, pack: bool = True, **changes) -> token_file.Samples:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return token_file.Samples(token_file.prepare(path, codec(**changes), folder / "cache", World()), length, pack)


def learned_text(found: token_file.Samples) -> bytes:
    """What the labels of all samples say, one after another."""
    _, labels = found.batch(torch.arange(len(found)))
    return bytes(labels[labels != token_file.IGNORED].tolist())


def test_packing_learns_every_token_once(tmp_path):
    texts = ["The first document.", "A second, longer one, of more than one sample.", "é"]
    found = samples(tmp_path, *({"text": text} for text in texts))
    stream = b"\0".join(text.encode() for text in texts) + b"\0"
    assert learned_text(found) == stream[1:]
    inputs, _ = found.batch(torch.tensor([0, 1]))
    assert bytes(inputs.flatten().tolist()) == stream[:16]
    assert int(found.learned.sum()) == len(stream) - 1


def test_without_packing_a_sample_is_a_document(tmp_path):
    found = samples(tmp_path, {"text": "abc"}, {"text": "a text that is cut off"}, pack=False)
    inputs, labels = found.batch(torch.tensor([0, 1, PADDING]))
    assert bytes(inputs[0].tolist()) == b"abc\0\0\0\0\0"
    assert labels[0].tolist() == [98, 99, EOS, *[token_file.IGNORED] * 5]
    assert bytes(labels[1].tolist()) == b" text th"
    assert set(labels[2].tolist()) == {token_file.IGNORED}
    assert found.learned.tolist() == [3, 8] and found.sizes.tolist() == [3, 8]


@pytest.mark.parametrize("pack", [True, False])
def test_only_the_answer_is_learned(tmp_path, pack):
    found = samples(tmp_path, {"prompt": "question ", "completion": "answer"}, length=40, pack=pack)
    assert learned_text(found) == b"answer\0"
    assert found.learned.tolist() == [7]


def test_only_the_assistant_is_learned(tmp_path):
    talk = [("system", "S"), ("user", "Q"), ("assistant", "A1"), ("user", "R"), ("assistant", "A2")]
    found = samples(tmp_path, {"messages": [{"role": role, "content": text} for role, text in talk]}, length=99)
    assert learned_text(found) == b"A1;A2;"


def test_begin_of_text_is_given_and_not_learned(tmp_path):
    found = samples(tmp_path, {"text": "ab"}, {"text": "cd"}, bos=1)
    inputs, labels = found.batch(torch.tensor([0]))
    assert inputs[0].tolist()[:7] == [1, 97, 98, EOS, 1, 99, 100]
    assert labels[0].tolist() == [97, 98, EOS, token_file.IGNORED, 99, 100, EOS, token_file.IGNORED]


BAD = {
    "not JSON": ('{"text": "a"', "not JSON: Expecting ',' delimiter at column"),
    "not UTF-8": (b'{"text": "\xff"}', "not UTF-8: invalid start byte at byte 11"),
    "no object": ("[1]", "a line must be an object"),
    "unknown keys": ('{"txt": "a"}', "none of the known keys; it has 'txt'"),
    "no completion": ('{"prompt": "a"}', "'completion' is missing"),
    "number": ('{"text": 3}', "'text' must be a string, not int"),
    "null": ('{"prompt": "a", "completion": null}', "'completion' must be a string, not NoneType"),
    "no messages": ('{"messages": []}', '"messages" must be a list of'),
    "no assistant": (
        '{"messages": [{"role": "user", "content": "a"}]}',
        '"messages" has no message of the role "assistant"',
    ),
}


@pytest.mark.parametrize("line, words", BAD.values(), ids=BAD)
def test_a_bad_line_is_named_with_its_number(tmp_path, line, words):
    """Whichever process reads it: the line's number is that in the file."""
    bad = line if isinstance(line, bytes) else line.encode()
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"text": "good"}\n' * 40 + b"\n" + bad + b"\n" + b'{"text": "good"}\n' * 3)
    for parts in (1, 3):
        with pytest.raises(dataset.DataError) as error:
            for part in range(parts):
                list(dataset.documents(path, part, parts, render))
        assert str(error.value).startswith(f"{path}:42: {words}"), error.value


def test_messages_need_a_template():
    with pytest.raises(dataset.DataError, match="the tokenizer has none"):
        dataset.pieces({"messages": [{"role": "user", "content": "a"}]}, None)


def test_template_that_rewrites_is_refused():
    def last_only(messages, prompt):
        return render(messages[-2:], prompt)

    talk = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]
    with pytest.raises(dataset.DataError, match="writes earlier messages anew"):
        dataset.pieces({"messages": talk}, last_only)


def test_parts_make_up_the_whole(tmp_path):
    """Lines of all lengths, empty ones, and no newline at the end: every document once, in order."""
    path = tmp_path / "data.jsonl"
    lines = [json.dumps({"text": "x" * (number * 7 % 41)}) for number in range(60)]
    path.write_text("\n\n".join(lines))
    whole = list(dataset.documents(path, 0, 1, None))
    assert len(whole) == 60
    for parts in (2, 3, 7, 64, 5000):
        shared = [one for part in range(parts) for one in dataset.documents(path, part, parts, None)]
        assert shared == whole, parts


def test_tokens_are_made_once_and_anew_when_the_data_changes(tmp_path):
    calls = []

    def encode(texts):
        calls.append(len(texts))
        return [list(text.encode()) for text in texts]

    first = samples(tmp_path, {"text": "abc"}, encode=encode)
    again = samples(tmp_path, {"text": "abcdef"}, encode=encode)
    path = tmp_path / "data.jsonl"
    token_file.prepare(path, codec(encode=encode), tmp_path / "cache", World())
    assert calls == [1, 1]
    assert (learned_text(first), learned_text(again)) == (b"bc\0", b"bcdef\0")


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_empty_data_is_refused(tmp_path, content):
    path = tmp_path / "data.jsonl"
    path.write_text(content)
    with pytest.raises(dataset.DataError, match="holds no document"):
        token_file.prepare(path, codec(), tmp_path / "cache", World())


def test_missing_data_is_named(tmp_path):
    with pytest.raises(dataset.DataError, match=r"no-such\.jsonl: no such file"):
        token_file.prepare(tmp_path / "no-such.jsonl", codec(), tmp_path / "cache", World())


@pytest.mark.parametrize("samples_, batch, accumulate", [(100, 4, 1), (101, 3, 2), (5, 8, 2), (64, 4, 4)])
def test_every_sample_is_taken_once_and_steps_are_alike(samples_, batch, accumulate):
    order = epoch_order(samples_, seed=7, epoch=3)
    for world in (1, 2, 4):
        shape, position, taken, steps = Shape(batch, accumulate, world), 0, [], 0
        expected = steps_left(samples_, 0, shape)
        while position < samples_:
            mine = [rows(order, position, shape, rank) for rank in range(world)]
            assert {each.shape for each in mine} == {(accumulate, batch)}
            step = [row for each in mine for row in each.flatten().tolist() if row != PADDING]
            assert sorted(step) == sorted(order[position : position + shape.step].tolist())
            taken += step
            position, steps = position + shape.step, steps + 1
        assert sorted(taken) == list(range(samples_))
        assert steps == expected


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(epoch_order(50, seed, epoch).tolist()) for seed in (1, 2, 3) for epoch in range(4)}
    assert len(orders) == 12
    assert len({mix(seed, step, rank) for seed in range(9) for step in range(30) for rank in range(9)}) == 9 * 30 * 9


def test_learning_rate_rises_and_falls():
    rates = [learning_rate(step / 100, 1.0, 0.1, "cosine") for step in range(1, 101)]
    assert rates[4] == pytest.approx(0.5) and max(rates) == pytest.approx(1.0)
    assert rates.index(max(rates)) == 9 and rates[-1] == pytest.approx(0.1)
    assert learning_rate(0.9, 1.0, 0.1, "constant") == 1.0


@pytest.mark.parametrize("block", [1, 3, 8, 1000])
def test_learned_tokens_are_counted_in_blocks(monkeypatch, block):
    """Places at the ends of blocks, at the very end, and several alike."""
    monkeypatch.setattr(token_file, "BLOCK", block)
    stream = torch.tensor([5, -1, -2, 7, 0, -1, 3, 3], dtype=torch.int32)
    places = torch.tensor([0, 1, 1, 3, 4, 6, 8, 8])
    expected = [sum(1 for token in stream[:place] if token >= 0) for place in places]
    assert token_file.learned_before(stream, places).tolist() == expected
