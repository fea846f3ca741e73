"""Tokens and learned tokens with tokenizers of all families equal those of the whole text."""

from __future__ import annotations

import json

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from gpuworker.train import dataset, token_file
from gpuworker.train.model import token_codec
from tests.helpers.train_worlds import DATA

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the result?  Two spaces; an é, and 日本."},
    {"role": "assistant", "content": "The result is four: naïve 日本 too."},
    {"role": "user", "content": " Leading space"},
    {"role": "assistant", "content": "  two leading spaces\nand a line"},
]
CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }} <|end|>{% else %}{{ m.content }}\n{% endif %}{% endfor %}"
)


def metaspace(scheme: str, split: bool):
    def build():
        made = tokenizers.Tokenizer(models.Unigram())
        made.normalizer = normalizers.NFKC()
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
        made.decoder = decoders.Metaspace(prepend_scheme=scheme, split=split)
        return made, trainers.UnigramTrainer(vocab_size=400, unk_token="<unk>", special_tokens=["<unk>", "<|end|>"])

    return build


def llama2():
    """BPE with byte fallback, and the normalizer of Llama 2, which prepends a space to every text."""
    made = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    return made, trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>", "<|end|>", *bytes_])


def byte_level(prefix: bool):
    def build():
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        return made, trainers.BpeTrainer(vocab_size=500, special_tokens=["<|end|>"], initial_alphabet=alphabet)

    return build


def word_piece():
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made, trainers.WordPieceTrainer(vocab_size=400, special_tokens=["<unk>", "<|end|>"])


FAMILIES = {
    "SentencePiece, first": metaspace("first", True),
    "SentencePiece, always": metaspace("always", False),
    "SentencePiece, never": metaspace("never", True),
    "Llama 2": llama2,
    "GPT-2": byte_level(False),
    "RoBERTa": byte_level(True),
    "BERT": word_piece,
}


@pytest.fixture(scope="module", params=FAMILIES)
def tokenizer(request) -> PreTrainedTokenizerFast:
    """Trained on the included text and on the conversation, so that their characters are known."""
    made, trainer = FAMILIES[request.param]()
    texts = [json.loads(line)["text"] for line in (DATA / "train.jsonl").read_text().splitlines()]
    made.train_from_iterator([*texts, *(each["content"] for each in TALK)], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", unk_token="<unk>")


def encoded(tokenizer, document: dict) -> list[int]:
    codec = token_codec(tokenizer)
    return next(token_file.encode_documents([dataset.segments(document, codec.template)], codec))


def plain(tokens: list[int]) -> list[int]:
    return [token if token >= 0 else -token - 1 for token in tokens]


@pytest.mark.parametrize("template", [CHATML, LLAMA2], ids=["ChatML", "Llama 2"])
def test_a_conversation_has_the_tokens_of_its_template_as_a_whole(tokenizer, template):
    tokenizer.chat_template = template
    tokens = encoded(tokenizer, {"messages": TALK})
    assert plain(tokens) == tokenizer.apply_chat_template(TALK, tokenize=True, return_dict=False)
    whole = tokenizer.apply_chat_template(TALK, tokenize=False)
    places = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True).offset_mapping
    learned = {index for token, place in zip(tokens, places, strict=True) if token >= 0 for index in range(*place)}
    for message in TALK:
        text = message["content"].strip()
        begin = whole.index(text)
        letters = {index for index in range(begin, begin + len(text)) if not whole[index].isspace()}
        assert learned & letters == (letters if message["role"] == "assistant" else set()), message
    assert len(runs(tokens)) == 2


HEADER = "{% for m in messages %}<|{{ m.role }}|>\n"
WITHOUT_BRANCH = HEADER + "{{ m.content | trim }}<|end|>\n{% endfor %}"
MARKED = HEADER + (
    "{% if m.role == 'assistant' %}{%- generation %}{{ m.content }}<|end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
)
GREETING = [{"role": "assistant", "content": "assistant"}, {"role": "user", "content": "a"}]


@pytest.mark.parametrize("talk", [TALK, GREETING + TALK[1:]], ids=["system first", "assistant first"])
@pytest.mark.parametrize(
    "template",
    [CHATML, WITHOUT_BRANCH, MARKED, MARKED.replace("%}{{ m.content }}<|end|>{% endg", "%}{{ m.content }}{% endg")],
    ids=["ChatML", "no branch", "marked", "marked without the end"],
)
def test_of_an_assistants_message_the_header_is_not_learned(template, talk):
    tokenizer = byte_tokenizer(template)
    tokens = encoded(tokenizer, {"messages": talk})
    end = "" if template not in (CHATML, WITHOUT_BRANCH, MARKED) else "<|end|>"
    said = [each["content"] for each in talk if each["role"] == "assistant"]
    if template == WITHOUT_BRANCH:
        said = [text.strip() for text in said]
    found = [tokenizer.decode(run).removesuffix("\n") for run in runs(tokens)]
    assert found == [text + end for text in said]
    if "generation %}" in template and "add_generation" not in template:
        theirs = tokenizer.apply_chat_template(talk, return_dict=True, return_assistant_tokens_mask=True)
        assert [int(token >= 0) for token in tokens] == theirs["assistant_masks"]


ONE_END = HEADER + "{{ m.content }}\n{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
LAST_THINKS = (
    HEADER + "{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|end|>\n{% endfor %}" + PROMPT
)
OTHERS = {  # template -> what ends the messages of the assistant, and what begins the last one
    "the prompt thinks": (CHATML.replace("<|assistant|>\n", "<|assistant|>\n<think>\n"), ("<|end|>\n",) * 2, ""),
    "one end": (ONE_END + "</s>", ("", "\n</s>"), ""),
    "one end or a prompt": (ONE_END + PROMPT.replace("{% endif", "{% else %}</s>{% endif"), ("", "\n</s>"), ""),
    "one end and a prompt": (ONE_END + "</s>" + PROMPT, ("", "\n</s>"), ""),
    "the last one thinks": (LAST_THINKS, ("<|end|>\n",) * 2, "<think>\n\n</think>\n\n"),
}


@pytest.mark.parametrize("contents", [(" four", "s"), ("<think>\n4", "</s>"), ("", "<|end|>")], ids=repr)
@pytest.mark.parametrize("template, ends, begin", OTHERS.values(), ids=OTHERS)
def test_a_message_is_separated_although_it_is_written_in_another_way_alone(template, ends, begin, contents):
    talk = [dict(each) for each in TALK]
    talk[2]["content"], talk[4]["content"] = contents
    tokenizer = byte_tokenizer(template)
    tokens = encoded(tokenizer, {"messages": talk})
    assert tokenizer.decode(plain(tokens)) == tokenizer.apply_chat_template(talk, tokenize=False)
    if "<|assistant|>\n<think>" in template and contents[0].startswith("<think>"):
        contents = (contents[0].removeprefix("<think>\n"), contents[1])  # of the prompt
    said = [contents[0] + ends[0], begin + contents[1] + ends[1]]
    assert [tokenizer.decode(run) for run in runs(tokens)] == [text for text in said if text]


def byte_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """One token per byte, so that what is learned is a text."""
    made = tokenizers.Tokenizer(models.BPE(vocab=(vocab := byte_vocab()), merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=next(iter(vocab)), chat_template=template)


def byte_vocab() -> dict[str, int]:
    return {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def test_a_completion_has_the_tokens_of_the_whole_line_and_the_end(tokenizer):
    prompt, completion = "Question: what is two and two?\nAnswer:", " It is four."
    tokens = encoded(tokenizer, {"prompt": prompt, "completion": completion})
    whole = tokenizer(prompt + completion, add_special_tokens=False).input_ids
    assert plain(tokens) == [*whole, tokenizer.eos_token_id]
    (learned,) = runs(tokens)
    assert learned[-1] == tokenizer.eos_token_id
    before = len(tokenizer(prompt, add_special_tokens=False).input_ids)
    assert len(tokens) - len(learned) == before


def test_text_without_a_prompt_is_learned_whole(tokenizer):
    assert min(encoded(tokenizer, {"text": "All of it, 日本 too."})) >= 0


def runs(tokens: list[int]) -> list[list[int]]:
    """Consecutive learned tokens."""
    found, last = [], False
    for token in tokens:
        if token >= 0:
            found = [*found[:-1], [*found[-1], token]] if last else [*found, [token]]
        last = token >= 0
    return found


DATED = "{{ strftime_now('%d %b %Y') }}|"


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["plain", "marked"])
def test_a_template_that_writes_the_date_needs_one(tokenizer, template):
    """Else the tokens of the same data would be others on the next day, and another training's."""
    tokenizer.chat_template = DATED + template
    with pytest.raises(dataset.DataError, match="set --chat-date"):
        dataset.segments({"messages": TALK}, token_codec(tokenizer).template)
    codecs = [token_codec(tokenizer, date) for date in ("2026-01-31", "2026-02-01")]
    texts = ["".join(text for text, _ in dataset.segments({"messages": TALK}, each.template)) for each in codecs]
    assert [text.partition("|")[0] for text in texts] == ["31 Jan 2026", "01 Feb 2026"]
    assert codecs[0].digest != codecs[1].digest
    tokenizer.chat_template = template
    assert texts[0].partition("|")[2] == tokenizer.apply_chat_template(TALK, tokenize=False)
    assert token_codec(tokenizer, "2026-01-31").digest == token_codec(tokenizer).digest


WITH_TOOLS = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"


def test_tools_are_written_as_the_template_writes_them(tokenizer):
    tokenizer.chat_template = WITH_TOOLS + CHATML
    parameters = {"type": "object", "properties": {}}
    tools = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": parameters}}]
    found = dataset.segments({"messages": TALK, "tools": tools}, token_codec(tokenizer).template)
    whole = tokenizer.apply_chat_template(TALK, tools=tools, tokenize=False)
    assert "".join(text for text, _ in found) == whole and whole.startswith("[add]")
