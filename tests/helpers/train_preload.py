"""Slow imports of the server that ranks are forked from."""

import torch.distributed  # noqa: F401
import transformers.models.auto.modeling_auto
import transformers.models.llama.modeling_llama  # noqa: F401

import gpuworker.train.train_framework  # noqa: F401
