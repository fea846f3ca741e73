"""What is learned of a chat in each template of a folder: python -m tests.bench.chat_templates FOLDER.

The folder has NAME.jinja as a family ships it, and perhaps NAME_training.jinja, the form with {% generation %} that TRL
uses in its place (trl/chat_templates in TRL's wheel has both). The tokenizer has a token per byte, and special tokens
for what the template writes as such.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from gpuworker.train.data import encode_messages
from hack.small_models import byte_tokenizer
from tests.helpers.train_labels import learned

SPECIAL = re.compile(
    r"<[|｜][^<>'\"\n{}]+?[|｜]>|</?s>|<(?:bos|eos|start_of_turn|end_of_turn|end_of_utterance|turn\||\|turn)>|\[/?INST\]"
)
TURNS = [("user", "Q1"), ("assistant", "A1"), ("user", "Q2"), ("assistant", "A2")]


def tokenizer_of(template: str, also: str = ""):
    made = byte_tokenizer(template, "<|endoftext|>", "<bos>")
    made.add_special_tokens({"additional_special_tokens": sorted({*SPECIAL.findall(template + also)})})
    return made


def taught(tokenizer, messages: list[dict]) -> tuple[list[str], str]:
    """Texts that are learned, and the whole text."""
    sample = encode_messages(tokenizer, messages, None)
    return learned(tokenizer, sample), tokenizer.decode(sample["input_ids"])


def outcome(path: Path) -> tuple[str, str]:
    """What is learned of the template, and how it compares with its training form."""
    template, training = path.read_text(), path.with_name(f"{path.stem}_training.jinja")
    marked = training.read_text() if training.exists() else ""
    messages = [{"role": role, "content": text} for role, text in TURNS]
    try:
        ours, text = taught(tokenizer_of(template, marked), messages)
    except Exception as error:
        return f"refused: {str(error).partition(';')[0][:90]}", ""
    shown = " ".join(repr(each) for each in ours)
    if not marked:
        return shown, "no training form"
    theirs, other = taught(tokenizer_of(marked, template), messages)
    if other != text:
        return shown, "its training form writes another text"
    return shown, "the same" if theirs == ours else f"learns {' '.join(map(repr, theirs))}"


def main() -> None:
    print("| template | learned of the answers A1 and A2 | TRL's training form |\n|---|---|---|")
    for path in sorted(Path(sys.argv[1]).glob("*.jinja")):
        if not path.stem.endswith("_training"):
            row = outcome(path)
            cells = (each.replace("|", "\\|").replace("\n", "⏎") for each in (path.stem, *row))
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
