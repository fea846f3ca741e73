"""Slow imports of the server that ranks are forked from."""

import torch.distributed  # noqa: F401
import transformers
import transformers.models.auto.modeling_auto
import transformers.models.gpt2.modeling_gpt2
import transformers.models.llama.modeling_llama  # noqa: F401

import gpuworker.train.language_model
import gpuworker.train.train_framework
import gpuworker.train.train_smoke  # noqa: F401
