"""What is learned: the labels of each kind of line, and the loss beside a plain loop."""

import itertools
import json

import pytest
import tokenizers
import torch
import transformers

from gpuworker.train.data import IGNORED, DataError, collator, read
from hack import small_models
from hack.small_models import CHATML, ENDS, byte_tokenizer
from tests.helpers.train_runs import texts, write

TURNS = [
    ("system", "S"),
    ("user", "Q1"),
    ("assistant", " A1 "),
    ("user", "Q2"),
    ("assistant", "A2"),
]
MESSAGES = [{"role": role, "content": content} for role, content in TURNS]
HEADER = "<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n"
TEMPLATES = {
    "chatml": (CHATML, [" A1 <|im_end|>", "A2<|im_end|>"]),
    "llama": (
        "{{ bos_token }}{% for m in messages %}{{ '" + HEADER + "' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        ["A1<|eot_id|>", "A2<|eot_id|>"],
    ),
    "mistral": (
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}"
        "{{ ' ' + m['content'] | trim + '</s>' }}"
        "{% else %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% endif %}{% endfor %}",
        [" A1</s>", " A2</s>"],
    ),
    "two ends": (
        CHATML.replace("<|im_end|>", "<|eot_id|><|im_end|>").replace("<|im_end|>\n", "<|im_end|>"),
        [" A1 <|eot_id|><|im_end|>", "A2<|eot_id|><|im_end|>"],
    ),
    "marked": (
        "{% for m in messages %}{{ m['role'] + ': ' }}{% if m['role'] == 'assistant' %}{% generation %}"
        "{{ m['content'] | trim + '<|im_end|>' }}{% endgeneration %}"
        "{% else %}{{ m['content'] }}{% endif %}{% endfor %}",
        ["A1<|im_end|>", "A2<|im_end|>"],
    ),
}  # fmt: skip


def learned(tokenizer, sample: dict[str, list[int]]) -> list[str]:
    """The texts of adjacent tokens that are learned."""
    taught = itertools.groupby(sample["labels"], key=lambda label: label != IGNORED)
    return [tokenizer.decode([*span]) for known, span in taught if known]


def samples_of(tmp_path, tokenizer, *rows: dict, **options) -> list[dict]:
    return read(
        str(write(tmp_path / "data.jsonl", [*rows])),
        tokenizer,
        options.pop("limit", 1000),
        **options,
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_of_messages_the_answers_and_their_end_tokens_are_learned(tmp_path, name):
    template, expected = TEMPLATES[name]
    tokenizer = byte_tokenizer(template, ENDS.get(name, "<|im_end|>"), "<bos>")
    [sample] = samples_of(tmp_path, tokenizer, {"messages": MESSAGES})
    assert learned(tokenizer, sample) == expected
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False)
    assert tokenizer.decode(sample["input_ids"]) == text


def test_of_other_lines_all_or_the_completion_is_learned_with_the_end(tmp_path):
    tokenizer = byte_tokenizer()
    [text] = samples_of(tmp_path, tokenizer, {"text": "ab"})
    assert learned(tokenizer, text) == ["b<|endoftext|>"], "nothing predicts the first token"
    [pair] = samples_of(tmp_path, tokenizer, {"prompt": "ab", "completion": "cdé"})
    assert learned(tokenizer, pair) == ["cdé<|endoftext|>"] and len(pair["input_ids"]) == 7


BAD_TEMPLATES = {
    "drops earlier answers": CHATML.replace("m['content']", "(m['content'] if loop.last else 'x')"),
    "has no end": CHATML.replace("<|im_end|>", ""),
    "refuses the role": "{{ raise_exception('System role not supported') }}",
}


@pytest.mark.parametrize("name", BAD_TEMPLATES)
def test_a_template_that_does_not_show_what_is_learned_is_refused_with_its_line(tmp_path, name):
    with pytest.raises(DataError, match=r"data\.jsonl:2: "):
        lines = [{"messages": MESSAGES[1:2] + MESSAGES[4:]}, {"messages": MESSAGES}]
        long = "{% if messages | length > 2 %}" + BAD_TEMPLATES[name]
        template = long + "{% else %}" + CHATML + "{% endif %}"
        samples_of(tmp_path, byte_tokenizer(template), *lines)


@pytest.mark.parametrize("tokens", [{"pad_token": "p"}, {"eos_token": "p"}, {}], ids=str)
def test_a_batch_is_padded_on_the_right(tokens):
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "p": 1}, unk_token="a"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, padding_side="left", **tokens
    )
    before = dict(tokenizer.special_tokens_map)
    batch = collator(tokenizer)(
        [{"input_ids": [1, 2], "labels": [-100, 2]}, {"input_ids": [3], "labels": [3]}]
    )
    assert batch["input_ids"].tolist() == [[1, 2], [3, 1 if tokens else 0]]
    assert (tokenizer.special_tokens_map, tokenizer.padding_side) == (before, "left")
    assert batch["labels"].tolist() == [[-100, 2], [3, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]


class Losses(transformers.TrainerCallback):
    def __init__(self):
        self.found = []

    def on_log(self, args, state, control, logs=None, **_):
        self.found += [logs["loss"]] if "loss" in logs else []


def reference(tokenizer, row: dict) -> tuple[list[int], list[int]]:
    """Tokens and labels, written down without the code under test."""
    end, encode = tokenizer.eos_token_id, tokenizer.encode
    if "text" in row:
        ids = [*encode(row["text"]), end]
        return ids, ids
    if "prompt" in row:
        prompt, rest = encode(row["prompt"]), [*encode(row["completion"]), end]
        return prompt + rest, [IGNORED] * len(prompt) + rest
    ids, labels = [], []
    for message in row["messages"]:
        head = encode(f"<|im_start|>{message['role']}\n")
        body, newline = encode(message["content"] + "<|im_end|>"), encode("\n")
        answer = message["role"] == "assistant"
        ids += head + body + newline
        labels += (
            [IGNORED] * len(head)
            + (body if answer else [IGNORED] * len(body))
            + [IGNORED] * len(newline)
        )
    return ids, labels


def plain_loop(model, tokenizer, rows: list[dict], steps: int) -> list[float]:
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0), []
    for step in range(steps):
        total, count = 0.0, 0
        for ids, labels in (reference(tokenizer, row) for row in rows[4 * step : 4 * step + 4]):
            tokens = sum(label != IGNORED for label in labels[1:])
            total = total + tokens * model(torch.tensor([ids]), labels=torch.tensor([labels])).loss
            count += tokens
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((total / count).item())
    return losses


ROWS = {
    "text": [{"text": text} for text in texts(16)],
    "prompt": [{"prompt": text[:20], "completion": text[20:]} for text in texts(16)],
    "messages": [{"messages": [{"role": "user", "content": text[:9]}, {"role": "assistant", "content": text[9:]}]}
                 for text in texts(16)],
}  # fmt: skip


@pytest.mark.parametrize("kind", small_models.KINDS)
@pytest.mark.parametrize("rows", ROWS)
def test_the_losses_are_those_of_a_plain_loop(tmp_path, kind, rows):
    """One sample at a time, without padding, and labels by hand."""
    small_models.make(tmp_path, kind)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    models = [
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        for _ in range(2)
    ]
    expected = plain_loop(models[0].train(), tokenizer, ROWS[rows], 4)
    settings = {
        "per_device_train_batch_size": 4, "max_steps": 4, "learning_rate": 1e-3, "logging_steps": 1,
        "lr_scheduler_type": "constant", "report_to": "none", "save_strategy": "no", "use_cpu": True,
        "disable_tqdm": True, "train_sampling_strategy": "sequential", "output_dir": str(tmp_path),
    }  # fmt: skip
    losses, samples = Losses(), samples_of(tmp_path, tokenizer, *ROWS[rows])
    transformers.Trainer(
        models[1],
        transformers.TrainingArguments(**settings),
        collator(tokenizer),
        samples,
        callbacks=[losses],
    ).train()
    assert expected and max(abs(a - b) for a, b in zip(losses.found, expected, strict=True)) < 1e-5
    assert json.dumps(losses.found) != json.dumps(losses.found[:1] * 4)
