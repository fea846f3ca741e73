"""Train or fine-tune a causal language model on JSON lines with the Trainer of transformers.

  torchrun --nproc-per-node=2 train_framework.py --model-local-dir /models/llama \\
    --data /data/train.jsonl --val /data/val.jsonl --output /out --set bf16=true

A line is {"text": …}, {"prompt": …, "completion": …} or {"messages": […]}. --set takes any field of
transformers.TrainingArguments. SIGTERM saves, and the next start with the same --run-id goes on at
the same sample, also with another number of ranks.
Exit codes: 0 done; 3 at least half of the steps were not finite; 75 stopped and saved; 2 usage.
"""

import argparse
import dataclasses
import hashlib
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from gpuworker.runtime.command_line import escape_output
from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.option_types import natural, positive, positive_int
from gpuworker.runtime.process_group import exit_now
from gpuworker.train.callbacks.durable import Durable, newest
from gpuworker.train.callbacks.guard import Guard
from gpuworker.train.callbacks.lines import Lines
from gpuworker.train.callbacks.stop import Stop
from gpuworker.train.callbacks.tracking import trackers
from gpuworker.train.data import IGNORED, collator, read
from gpuworker.train.train import NOT_LEARNED, check_folder, open_run

ABOUT = "Train or fine-tune a causal language model on JSON lines with transformers' Trainer."
# --output
FIELDS = {field.name for field in dataclasses.fields(TrainingArguments)} - {"output_dir"}


def parse(argv: list[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser("train_framework.py", description=ABOUT, allow_abbrev=False)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", metavar="NAME", help="model on the Hugging Face Hub")
    model.add_argument("--model-local-dir", type=folder, metavar="DIR", help="folder with a model")
    text = "folder with the tokenizer (default: the model's)"
    parser.add_argument("--tokenizer-local-dir", type=folder, metavar="DIR", help=text)
    parser.add_argument("--data", required=True, metavar="FILE", help="JSON lines to learn")
    text = "JSON lines for loss and perplexity (default: val.jsonl beside --data)"
    parser.add_argument("--val", metavar="FILE", help=text)
    run_id = os.environ.get("RUN_ID") or "run"
    flags = {
        "output": (str, "/out", "DIR", "mounted folder for checkpoints"),
        "run-id": (str, run_id, "NAME", "folder in it"),
        "epochs": (positive, 1.0, "N", "how often each sample is learned"),
        "batch": (positive_int, 8, "N", "samples per step of all ranks together"),
        "seq-len": (positive_int, 1024, "TOKENS", "longest sample; the rest is cut off"),
        "lr": (positive, 2e-5, "RATE", "highest learning rate"),
        "seed": (natural, 42, "N", "of new weights and of the order of samples"),
        "save-every": (natural, 0, "STEPS", "save so often beside each epoch's end; 0: never"),
        "keep": (natural, 2, "N", "newest checkpoints to keep, beside the best; 0: all"),
        "lora": (natural, 0, "RANK", "train adapters of this rank only; 0: all weights"),
    }
    for name, (kind, default, metavar, text) in flags.items():
        text += f" (default: {default})"
        parser.add_argument(f"--{name}", default=default, type=kind, metavar=metavar, help=text)
    switches = {
        "local-files-only": "use no network",
        "from-scratch": "new weights for the model's config.json",
    }
    for name, text in switches.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    text = "any field of transformers.TrainingArguments, such as bf16=true; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=text)
    args = parser.parse_args(argv)
    check_folder(parser, args)
    beside = Path(args.data).with_name("val.jsonl")
    if args.val is None and beside.is_file():
        args.val = str(beside)
    return parser, args


def folder(path: str) -> str:
    if not Path(path).is_dir():
        raise argparse.ArgumentTypeError(f"{path}: no such folder")
    return path


def settings(parser: argparse.ArgumentParser, args: argparse.Namespace, world: int):
    """TrainingArguments of our flags, then of --set, which the library reads by the field's
    type.
    """
    if args.batch % world:
        parser.error(f"--batch {args.batch}: must be a multiple of the {world} ranks")
    values = {
        "output_dir": Path(args.output, args.run_id),
        "num_train_epochs": args.epochs,
        "per_device_train_batch_size": args.batch // world,
        "per_device_eval_batch_size": args.batch // world,
        "learning_rate": args.lr,
        "seed": args.seed,
        "eval_strategy": "epoch" if args.val else "no",
        "save_strategy": "epoch",
        "logging_steps": 10,
        "logging_nan_inf_filter": False,  # it would hide them
        "report_to": "none",
        "disable_tqdm": True,
    }
    values |= {"metric_for_best_model": "loss"} if args.val else {}
    if not torch.cuda.is_available():  # else ranks train alone: with no backend, or each in its MPI
        values |= {"use_cpu": True} | ({"ddp_backend": "gloo"} if "RANK" in os.environ else {})
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals or name not in FIELDS:
            parser.error(f"--set {text}: must be NAME=VALUE of transformers.TrainingArguments")
        values[name] = value
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    config = transformers.HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words)[0]
    if config.gradient_accumulation_steps < 1:  # the library would train nothing
        parser.error("--set gradient_accumulation_steps: at least 1")
    return config


def load(args: argparse.Namespace):
    """Tokenizer and model, in 32 bits: mixed precision is a setting of the library."""
    transformers.utils.logging.disable_progress_bar()
    if args.local_files_only:
        os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    source, local = args.model_local_dir or args.model, args.local_files_only
    tokenizer = AutoTokenizer.from_pretrained(
        args.tokenizer_local_dir or source, local_files_only=local
    )
    torch.manual_seed(args.seed)  # new weights: the same on all ranks, and at each start
    if args.from_scratch:
        config = AutoConfig.from_pretrained(source, local_files_only=local)
        model = AutoModelForCausalLM.from_config(config)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, local_files_only=local
        )
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise SystemExit(f"the tokenizer has {len(tokenizer)} tokens, the model {rows}")
    if args.lora:
        from peft import LoraConfig, get_peft_model

        lora = {"r": args.lora, "lora_alpha": 2 * args.lora, "target_modules": "all-linear"}
        torch.manual_seed(args.seed)
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))
    return tokenizer, model


class Trainer(transformers.Trainer):
    """Evaluates to the mean over all tokens: the library's mean of means depends on batch and
    ranks.
    """

    def prediction_step(self, model, inputs, *_, **__):
        """Sum of the losses, and number of learned tokens, of each sample."""
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels")[:, 1:]
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs).logits[:, :-1].transpose(1, 2).float()
        losses = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
        return None, losses.sum(1), (labels != IGNORED).sum(1)


def mean_loss(samples: transformers.EvalPrediction) -> dict[str, float]:
    loss = float(samples.predictions.sum(dtype=float) / samples.label_ids.sum())
    return {"loss": loss, "perplexity": math.exp(min(loss, 700))}


def main(argv: list[str] | None = None) -> int:
    escape_output()
    parser, args = parse(argv)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    config = settings(parser, args, world)
    tokenizer, model = load(args)
    args.seq_len = min(args.seq_len, getattr(model.config, "max_position_embeddings", args.seq_len))
    try:
        samples = read(args.data, tokenizer, args.seq_len)
        validation = read(args.val, tokenizer, args.seq_len) if args.val else None
    except (ValueError, OSError) as error:
        parser.error(str(error))
    per_step = config.per_device_train_batch_size * config.gradient_accumulation_steps * world
    # Accelerate repeats samples to fill the last step. Samples without a learned token do not
    # count.
    nothing = {"input_ids": samples[0]["input_ids"][:2], "labels": [IGNORED] * 2}
    padded = samples + [nothing] * (-len(samples) % per_step)
    identity = {
        "data": hashlib.sha256(Path(args.data).read_bytes()).hexdigest()[:16],
        "samples per step": per_step,
        "model": model.config.model_type,
    }
    identity |= {name: getattr(args, name) for name in ("seq_len", "lora")}
    identity |= {name: getattr(config, name) for name in ("seed", "data_seed", "optim")}
    guard = Guard()
    durable = Durable(args.keep, args.save_every, identity)
    tracked = trackers(args.run_id, vars(args))
    trainer = Trainer(
        model=model,
        args=config,
        train_dataset=padded,
        eval_dataset=validation,
        processing_class=tokenizer,
        data_collator=collator(tokenizer),
        compute_metrics=mean_loss,
        callbacks=[guard, Lines(), *tracked, durable, Stop()],
    )
    if bool(config.fsdp) != trainer.is_fsdp_enabled:
        parser.error("--set fsdp: the library does not shard on this device, and leaves it out")
    trainer.remove_callback(PrinterCallback)
    lock = open_run(args) if rank == 0 else None  # held until this process ends  # noqa: F841
    checkpoint = newest(config.output_dir, identity)
    log(Tag.DDP, rank=rank, world=world, device=config.device, torch=torch.__version__)
    resumed = Path(checkpoint).parent.name if checkpoint else "no"
    facts = {
        "samples": len(samples),
        "samples_per_step": per_step,
        "seq_len": args.seq_len,
        "resumed": resumed,
    }
    log(Tag.TRAIN, rank=rank, **facts)
    result = trainer.train(resume_from_checkpoint=checkpoint)
    code, status = (NOT_LEARNED, "not-finite") if guard.failed else (0, "finished")
    seconds, step = result.metrics["train_runtime"], trainer.state.global_step
    facts = {"step": step, "skipped": guard.skipped, "seconds": seconds}
    log(Tag.DONE, rank=rank, status=status, exit_code=code, **facts)
    # Gloo's end holds the interpreter lock while it joins a thread that may wait for that lock to
    # drop a tensor (seen with torch 2.6). NCCL's end waits for the other ranks to have read all.
    if dist.is_initialized() and config.device.type == "cuda":
        dist.destroy_process_group()
    return code


if __name__ == "__main__":
    exit_now(main())
