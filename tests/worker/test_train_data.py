"""From JSONL to samples: what is learned, what is refused, and independence of the number of processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gpuworker.train import dataset, token_file, train_framework
from gpuworker.train.distributed import DistributedContext
from gpuworker.train.schedule import (
    PADDING,
    BatchLayout,
    derive_seed,
    epoch_order,
    learning_rate,
    rank_rows,
    steps_left,
)

EOS = 0


def template(messages: list[dict], prompt: bool, tools: list | None = None) -> str:
    """A chat template: <role>content for each message."""
    written = "".join(f"<{message['role']}>{message['content']};" for message in messages)
    return written + ("<assistant>" if prompt else "")


def encode_bytes(texts: list[str]) -> list[token_file.Encoded]:
    found = []
    for text in texts:
        places = [(index, index + 1) for index, letter in enumerate(text) for _ in letter.encode()]
        found.append((list(text.encode()), places))
    return found


def codec(**changes) -> token_file.TokenCodec:
    """One token per byte."""
    settings = {"encode": encode_bytes, "bos": None, "eos": EOS}
    return token_file.TokenCodec(**{**settings, "template": template, "digest": "bytes", **changes})


def samples(folder: Path, *documents: dict, length: int = 8, pack: bool = True, **changes) -> token_file.TokenDataset:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return token_file.TokenDataset(
        token_file.prepare([path], codec(**changes), folder / "cache", DistributedContext()), length, pack
    )


def write_with_bad_line(path: Path, line: str | bytes) -> Path:
    """JSONL file whose line 42 is `line`."""
    bad = line if isinstance(line, bytes) else line.encode()
    path.write_bytes(b'{"text": "good"}\n' * 40 + b"\n" + bad + b"\n" + b'{"text": "good"}\n' * 3)
    return path


def text_of_labels(found: token_file.TokenDataset) -> bytes:
    """Labels of all samples as one text."""
    _, labels = found.batch(torch.arange(len(found)))
    return bytes(labels[labels != token_file.IGNORE_INDEX].tolist())


def test_packed_samples_learn_every_token_once(tmp_path):
    texts = ["The first document.", "A second, longer one, of more than one sample.", "é"]
    found = samples(tmp_path, *({"text": text} for text in texts))
    stream = b"\0".join(text.encode() for text in texts) + b"\0"
    assert text_of_labels(found) == stream[1:]
    inputs, _ = found.batch(torch.tensor([0, 1]))
    assert bytes(inputs.flatten().tolist()) == stream[:16]
    assert int(found.label_counts.sum()) == len(stream) - 1


def test_a_sample_without_packing_is_one_document(tmp_path):
    found = samples(tmp_path, {"text": "abc"}, {"text": "a text that is cut off"}, pack=False)
    inputs, labels = found.batch(torch.tensor([0, 1, PADDING]))
    assert bytes(inputs[0].tolist()) == b"abc\0\0\0\0\0"
    assert labels[0].tolist() == [98, 99, EOS, *[token_file.IGNORE_INDEX] * 5]
    assert bytes(labels[1].tolist()) == b" text th"
    assert set(labels[2].tolist()) == {token_file.IGNORE_INDEX}
    assert found.label_counts.tolist() == [3, 8] and found.token_counts.tolist() == [3, 8]


def test_samples_without_a_label_are_left_out_and_what_is_cut_is_counted(tmp_path):
    """One prompt is longer than a sample, and one completion does not fit."""
    pairs = [("long prompt, no room", "x"), ("ab", "cd"), ("ab", "cdefghijkl")]
    found = samples(
        tmp_path, *({"prompt": prompt, "completion": completion} for prompt, completion in pairs), pack=False
    )
    assert len(found) == 2 and text_of_labels(found) == b"cd\0cdefghi"
    assert found.describe() == {
        "documents": 3, "learned": "40.0%", "cut_documents": 2, "cut_tokens": 17, "cut_learned": 6, "left_out": 1,
    }  # fmt: skip
    packed = samples(tmp_path, *({"prompt": prompt, "completion": completion} for prompt, completion in pairs))
    assert packed.describe()["split_documents"] == 3 and all(packed.label_counts > 0)


@pytest.mark.parametrize("bos", [None, 1])
@pytest.mark.parametrize(
    "document, prompts",
    [
        ({"text": "abc"}, False),
        ({"prompt": "a", "completion": "b"}, True),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, True),
    ],
)
def test_data_with_prompts_are_distinguished_from_text(tmp_path, bos, document, prompts):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(document) + "\n")
    made = codec(bos=bos)
    assert token_file.has_prompts(token_file.prepare([path], made, tmp_path, DistributedContext()), made) == prompts


def test_validation_data_with_prompts_are_not_packed_beside_text_that_is(tmp_path, capfd):
    (tmp_path / "train.jsonl").write_text('{"text": "some words of text"}\n' * 40)
    (tmp_path / "val.jsonl").write_text('{"prompt": "2+2", "completion": "4"}\n' * 4)
    flags = ("--from-scratch", "gpt2-tiny", "--device", "cpu", "--seq-len", "16", "--max-steps", "1")
    flags = (*flags, "--cache", str(tmp_path / "cache"), "--data", str(tmp_path / "train.jsonl"))
    for options, packed in (((), "false"), (("--pack",), "true")):
        assert train_framework.main([*flags, *options]) == 0
        lines = [line for line in capfd.readouterr().out.splitlines() if "pack=" in line]
        assert [line.split("pack=")[1].split()[0] for line in lines] == ["true", packed]


def test_a_prompt_beside_messages_is_another_key(tmp_path):
    """Some published conversations have their first message as `prompt`, too."""
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    assert text_of_labels(samples(tmp_path, {"prompt": "Q", "messages": messages}, length=99)) == b"A;"


@pytest.mark.parametrize("pack", [True, False])
def test_only_the_completion_of_a_prompt_is_learned(tmp_path, pack):
    found = samples(tmp_path, {"prompt": "question ", "completion": "answer"}, length=40, pack=pack)
    assert text_of_labels(found) == b"answer\0"
    assert found.label_counts.tolist() == [7]


def test_only_the_assistants_messages_are_learned(tmp_path):
    talk = [("system", "S"), ("user", "Q"), ("assistant", "A1"), ("user", "R"), ("assistant", "A2")]
    found = samples(tmp_path, {"messages": [{"role": role, "content": text} for role, text in talk]}, length=99)
    assert text_of_labels(found) == b"A1;A2;"


def test_the_begin_token_is_read_and_not_learned(tmp_path):
    found = samples(tmp_path, {"text": "ab"}, {"text": "cd"}, bos=1)
    inputs, labels = found.batch(torch.tensor([0]))
    assert inputs[0].tolist() == [1, 97, 98, EOS, 1, 99, 100]
    assert labels[0].tolist() == [97, 98, EOS, token_file.IGNORE_INDEX, 99, 100, EOS]


BAD_LINES = {
    "text and a completion": ('{"text": "a", "prompt": "b", "completion": "c"}', ("'completion'", "'text'", "one")),
    "text and messages": ('{"text": "a", "messages": [{"role": "user", "content": "b"}]}', ("'messages'", "'text'")),
    "messages and a completion": ('{"prompt": "a", "completion": "b", "messages": []}', ("'messages'", "'completion'")),
    "not JSON": ('{"text": "a"', ("not JSON", "at column")),
    "not UTF-8": (b'{"text": "\xff"}', ("not UTF-8", "byte 11")),
    "half a character": ('{"text": "a\\ud800b"}', ("'text'", "surrogate", "character 2")),
    "a long number": ('{"text": "a", "n": ' + "1" * 5000 + "}", ("digits",)),
    "many brackets": ('{"text": "a", "n": ' + "[" * 100_000 + "]" * 100_000 + "}", ("recursion",)),
    "no object": ("[1]", ("object",)),
    "unknown keys": ('{"txt": "a"}', ("'txt'",)),
    "no completion": ('{"prompt": "a"}', ("'completion'", "missing")),
    "number": ('{"text": 3}', ("'text'", "string", "int")),
    "null": ('{"prompt": "a", "completion": null}', ("'completion'", "string", "NoneType")),
    "no messages": ('{"messages": []}', ('"messages"', "list")),
    "no assistant": (
        '{"messages": [{"role": "user", "content": "a"}]}',
        ('"messages"', '"assistant"'),
    ),
}


@pytest.mark.parametrize("line, facts", BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_refused_with_its_number_in_the_file_whichever_process_reads_it(tmp_path, line, facts):
    path = write_with_bad_line(tmp_path / "data.jsonl", line)
    for parts in (1, 3):
        with pytest.raises(dataset.DataError) as error:
            for part in range(parts):
                list(dataset.read_documents([path], part, parts, template))
        text = str(error.value)
        assert text.startswith(f"{path}:42: ") and all(fact in text for fact in facts), text


def test_messages_need_a_chat_template():
    with pytest.raises(dataset.DataError, match="needs a chat template"):
        dataset.segments({"messages": [{"role": "user", "content": "a"}]}, None)


def test_a_chat_template_that_rewrites_earlier_messages_is_refused():
    def last_only(messages, prompt, tools):
        return template(messages[-2:], prompt)

    talk = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]
    with pytest.raises(dataset.DataError, match="leaves out or changes what is before message 4"):
        dataset.segments({"messages": talk}, last_only)


def test_a_chat_template_that_changes_a_content_is_refused():
    def shouting(messages, prompt, tools):
        return template(
            [{**each, "content": each["content"].upper()} for each in messages[:-1]] + messages[-1:], prompt
        )

    talk = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    with pytest.raises(dataset.DataError, match="content of message 2"):
        dataset.segments({"messages": talk}, shouting)


def test_all_parts_of_a_file_together_have_every_document_once_and_in_order(tmp_path):
    """With lines of all lengths, empty lines, and no newline at the end."""
    path = tmp_path / "data.jsonl"
    lines = [json.dumps({"text": "x" * (number * 7 % 41)}) for number in range(60)]
    path.write_text("\n\n".join(lines))
    whole = list(dataset.read_documents([path], 0, 1, None))
    assert len(whole) == 60
    for parts in (2, 3, 7, 64, 5000):
        shared = [one for part in range(parts) for one in dataset.read_documents([path], part, parts, None)]
        assert shared == whole, parts


def test_the_token_file_is_built_once_and_again_when_the_data_changes(tmp_path):
    calls = []

    def encode(texts):
        calls.append(len(texts))
        return encode_bytes(texts)

    first = samples(tmp_path, {"text": "abc"}, encode=encode)
    again = samples(tmp_path, {"text": "abcdef"}, encode=encode)
    path = tmp_path / "data.jsonl"
    token_file.prepare([path], codec(encode=encode), tmp_path / "cache", DistributedContext())
    assert calls == [1, 1]
    assert (text_of_labels(first), text_of_labels(again)) == (b"bc\0", b"bcdef\0")


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_data_without_a_document_is_refused(tmp_path, content):
    path = tmp_path / "data.jsonl"
    path.write_text(content)
    with pytest.raises(dataset.DataError, match="contains no document"):
        token_file.prepare([path], codec(), tmp_path / "cache", DistributedContext())


@pytest.mark.parametrize("samples_, batch, accumulate", [(100, 4, 1), (101, 3, 2), (5, 8, 2), (64, 4, 4)])
def test_all_ranks_take_every_sample_once_in_the_same_number_of_steps(samples_, batch, accumulate):
    order = epoch_order(samples_, seed=7, epoch=3)
    for world in (1, 2, 4):
        layout, position, taken, steps = BatchLayout(batch, accumulate, world), 0, [], 0
        expected = steps_left(samples_, 0, layout)
        while position < samples_:
            mine = [rank_rows(order, position, layout, rank) for rank in range(world)]
            assert {each.shape for each in mine} == {(accumulate, batch)}
            step = [row for each in mine for row in each.flatten().tolist() if row != PADDING]
            assert sorted(step) == sorted(order[position : position + layout.samples_per_step].tolist())
            taken += step
            position, steps = position + layout.samples_per_step, steps + 1
        assert sorted(taken) == list(range(samples_))
        assert steps == expected


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("batch, accumulate", [(4, 1), (101, 1), (10**11, 1), (4, 10**8), (10**11, 10**8), (26, 3)])
def test_a_batch_larger_than_the_data_takes_no_more_than_the_data(world, batch, accumulate):
    """Every step takes the same samples as without a limit, and no memory for more rows than there are samples."""
    samples_, layout = 101, BatchLayout.of(101, batch, accumulate, world)
    assert min(samples_, layout.samples_per_step) == min(samples_, batch * accumulate * world)
    assert layout.samples_per_step < samples_ + layout.batch * world
    assert layout.batch <= batch and layout.batch * world < samples_ + world and layout.accumulate <= accumulate
    rows = [rank_rows(epoch_order(samples_, 7, 0), 0, layout, rank) for rank in range(world)]
    taken = [row for each in rows for row in each.flatten().tolist() if row != PADDING]
    assert len(taken) == len(set(taken)) == min(samples_, batch * accumulate * world)


@pytest.mark.parametrize("pack", [True, False])
def test_samples_are_no_wider_than_the_data(tmp_path, pack):
    found = samples(tmp_path, {"text": "abc"}, {"text": "a longer text"}, length=10**9, pack=pack)
    inputs, labels = found.batch(torch.arange(len(found)))
    assert inputs.shape == labels.shape == ((1, 17) if pack else (2, 13))
    assert text_of_labels(found) == (b"bc\0a longer text\0" if pack else b"bc\0 longer text\0")


def test_every_epoch_and_every_seed_has_another_order():
    orders = {tuple(epoch_order(50, seed, epoch).tolist()) for seed in (1, 2, 3) for epoch in range(4)}
    assert len(orders) == 12
    assert (
        len({derive_seed(seed, step, rank) for seed in range(9) for step in range(30) for rank in range(9)})
        == 9 * 30 * 9
    )


def test_the_learning_rate_warms_up_and_decays():
    rates = [learning_rate(step / 100, 1.0, 0.1, "cosine") for step in range(1, 101)]
    assert rates[4] == pytest.approx(0.5) and max(rates) == pytest.approx(1.0)
    assert rates.index(max(rates)) == 9 and rates[-1] == pytest.approx(0.1)
    assert learning_rate(0.9, 1.0, 0.1, "constant") == 1.0


@pytest.mark.parametrize("block", [1, 3, 8, 1000])
def test_labels_are_counted_the_same_for_every_block_size(monkeypatch, block):
    """With positions at the ends of blocks, at the end of the file, and repeated ones."""
    monkeypatch.setattr(token_file, "BLOCK_TOKENS", block)
    stream = torch.tensor([5, -1, -2, 7, 0, -1, 3, 3], dtype=torch.int32)
    positions = torch.tensor([0, 1, 1, 3, 4, 6, 8, 8])
    expected = [sum(1 for token in stream[:position] if token >= 0) for position in positions]
    assert token_file.labels_before(stream, positions).tolist() == expected


def test_long_documents_are_tokenized_a_few_at_a_time():
    """The tokenizer needs 200 bytes for each character, whatever the number of documents."""
    documents = iter([[("x" * 300_000, True)] for _ in range(10)])
    chunks = []
    while chunk := token_file.next_chunk(documents):
        chunks.append(len(chunk))
    assert chunks == [4, 4, 2]
