"""JSON lines of text, prompt and completion, or messages, as tokens and labels for a Trainer.

A line is encoded as a whole, and a token is learned if it lies in a learned part: all of a text;
the completion; of messages what the chat template marks with {% generation %}, else each answer.
The end-of-text token of a text or completion and the end token of an answer are learned, too.
"""

import copy
import json
import re
from pathlib import Path

from transformers import DataCollatorForSeq2Seq

KINDS = {"messages": ("messages",), "prompt": ("prompt", "completion"), "text": ("text",)}
IGNORED = -100  # label of a token that is not learned: torch's cross entropy leaves it out
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")

Sample = dict[str, list[int]]  # input_ids and labels


class DataError(ValueError):
    """A line of a file that cannot be learned: FILE:LINE: why."""


def read(path: str, tokenizer, limit: int) -> list[Sample]:
    """Samples of at most `limit` tokens. Raises DataError, and OSError for the file."""
    samples, first = [], None
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                kind = kind_of(row)
                if kind != (first := first or kind):
                    raise ValueError(f"has {kind}, the lines before have {first}")
                samples.append(encode(tokenizer, row, kind))
            except Exception as error:  # a template raises classes of jinja2
                text = str(error) or type(error).__name__
                raise DataError(f"{path}:{number}: {text}") from error
    samples = [{key: tokens[:limit] for key, tokens in sample.items()} for sample in samples]
    for sample in samples:  # nothing predicts the first token, but some models count its label
        sample["labels"][:1] = [IGNORED]
    samples = [sample for sample in samples if max(sample["labels"], default=IGNORED) >= 0]
    if not samples:
        raise DataError(f"{path}: no line has a token to learn within {limit} tokens")
    return samples


def kind_of(row: object) -> str:
    if not isinstance(row, dict):
        raise ValueError("must be an object with text, prompt and completion, or messages")
    kind = next((kind for kind in KINDS if kind in row), "")
    if not kind:
        raise ValueError(f"needs text, prompt and completion, or messages; has {', '.join(row)}")
    wanted = list if kind == "messages" else str
    for key in KINDS[kind]:
        if not isinstance(row.get(key), wanted) or not row[key]:
            what = "a list of messages" if wanted is list else "a text"
            raise ValueError(f"{key}: must be {what} that is not empty")
    return kind


def encode(tokenizer, row: dict, kind: str) -> Sample:
    if kind == "messages":
        return encode_messages(tokenizer, row["messages"], row.get("tools"))
    prompt = row["prompt"] if kind == "prompt" else ""
    text = prompt + row["completion" if kind == "prompt" else "text"] + (tokenizer.eos_token or "")
    return label(tokenizer, text, [(len(prompt), len(text))], add_special_tokens=True)


def label(tokenizer, text: str, learned: list[tuple[int, int]], **options) -> Sample:
    """Tokens of the text; those that touch a learned part [start, end) are their own labels."""
    encoded = tokenizer(text, return_offsets_mapping=True, **options)
    pairs = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    labels = [
        token if any(a < end and b > start for start, end in learned) else IGNORED
        for token, (a, b) in pairs
    ]
    return {"input_ids": list(encoded["input_ids"]), "labels": labels}


def encode_messages(tokenizer, messages: list[dict], tools: list | None) -> Sample:
    if GENERATION.search(tokenizer.get_chat_template(tools=tools)):
        marked = tokenizer.apply_chat_template(
            messages, tools=tools, return_dict=True, return_assistant_tokens_mask=True
        )
        pairs = zip(marked["input_ids"], marked["assistant_masks"], strict=True)
        labels = [token if mask else IGNORED for token, mask in pairs]
        return {"input_ids": list(marked["input_ids"]), "labels": labels}

    def written(count: int, **options: object) -> str:
        return tokenizer.apply_chat_template(
            messages[:count], tools=tools, tokenize=False, **options
        )

    for number, message in enumerate(messages):
        given = message if isinstance(message, dict) else {}
        content = "" if given.get("tool_calls") else given.get("content")
        if not isinstance(given.get("role"), str) or not isinstance(content, str):
            raise ValueError(f"messages[{number}]: must have role and content, both texts")
    text, learned = written(len(messages)), []
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            before = written(number, add_generation_prompt=True)
            content = (message.get("content") or "").strip()
            stop = text.find(content, len(before)) + len(content)
            if not text.startswith(before) or stop < len(before) + len(content):
                raise ValueError(
                    f"messages[{number}]: the chat template changes what comes before this answer, "
                    "or the answer; mark what is learned with {% generation %} in the template"
                )
            end = end_of(tokenizer, text, stop, written(number + 1), content)
            if end == stop:
                raise ValueError(
                    f"messages[{number}]: no special token of the tokenizer follows this answer; "
                    "mark what is learned with {% generation %} in the template"
                )
            learned.append((len(before), end))
    if not learned:
        raise ValueError("messages: none has the role assistant, so there is nothing to learn")
    return label(tokenizer, text, learned, add_special_tokens=False)


def end_of(tokenizer, text: str, stop: int, alone: str, content: str) -> int:
    """Where the end tokens are over that follow the answer, which ends at `stop`.

    The next turn may begin with special tokens, too. `alone`, the chat up to this answer, lacks
    them.
    """
    words = sorted(tokenizer.all_special_tokens, key=len, reverse=True)
    word = "|".join(map(re.escape, words))
    ends = re.compile(rf"\s*((?:{word})+)")
    here, last = ends.match(text, stop), ends.match(alone, alone.rfind(content) + len(content))
    if not here:
        return stop
    end, others = here.start(1), re.findall(word, last[1]) if last else []
    for number, token in enumerate(re.findall(word, here[1])):
        if number and others[number : number + 1] != [token]:
            break
        end += len(token)
    return end


def collator(tokenizer) -> DataCollatorForSeq2Seq:
    """Samples as tensors (samples, longest sample), padded on the right."""
    padder = copy.deepcopy(tokenizer)  # the tokenizer is saved with the model, as it came
    padder.padding_side = "right"
    padder.pad_token = (
        tokenizer.pad_token or tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    )
    return DataCollatorForSeq2Seq(padder)
