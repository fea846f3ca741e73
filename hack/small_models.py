"""Folder with a small causal language model of random weights: python3 -m hack.small_models FOLDER
[KIND].

Its tokenizer has a token for each byte and the special tokens of the usual families, so that it
needs no download.
"""

from __future__ import annotations

import sys
from pathlib import Path

# End token of each family's answers, and the others.
ENDS = {"chatml": "<|im_end|>", "llama": "<|eot_id|>", "gemma": "<end_of_turn>", "mistral": "</s>"}
SPECIAL = ["<|endoftext|>", "<|pad|>", "<bos>", "<|begin_of_text|>", "<|im_start|>", "<|start_header_id|>",
           "<|end_header_id|>", "<start_of_turn>", "[INST]", "[/INST]", *ENDS.values()]  # fmt: skip
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 512}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
# Kind of transformers -> what differs from SIZES.
KINDS = {
    "llama": {}, "mistral": {}, "qwen2": {}, "olmo2": {}, "phi3": {}, "granite": {}, "gpt_neox": {}, "smollm3": {},
    "qwen3": {"head_dim": 16}, "gemma2": {"head_dim": 16}, "gemma3_text": {"head_dim": 16},
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "qwen3_moe": {"head_dim": 16, **EXPERTS}, "mixtral": {"num_local_experts": 4},
}  # fmt: skip


def byte_tokenizer(template: str = CHATML, end: str = "<|endoftext|>", start: str | None = None):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={byte: number for number, byte in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(each, special=True, normalized=False) for each in SPECIAL]
    )
    words = {"eos_token": end, "pad_token": "<|pad|>"} | ({"bos_token": start} if start else {})
    extra = [each for each in SPECIAL if each not in words.values()]
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, extra_special_tokens=extra, **words)
    made.chat_template = template
    return made


def make(folder: Path, kind: str = "llama", seed: int = 1, **changes: object) -> Path:
    """Write the model and its tokenizer; returns the folder. Raises ValueError for a change that
    does not act.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = byte_tokenizer()
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    ends["bos_token_id"] = tokenizer.convert_tokens_to_ids("<bos>")
    settings = {**SIZES, **KINDS[kind], **ends, "vocab_size": len(tokenizer), **changes}
    config = AutoConfig.for_model(kind, **settings)
    if lost := [name for name, value in settings.items() if getattr(config, name) != value]:
        raise ValueError(f"{kind}: {lost} have another name in its configuration, too")
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    make(Path(sys.argv[1]), *sys.argv[2:3])
