"""Main function of a rank that trains and prints each model that it builds whole, and its parameters at the end."""

from __future__ import annotations

from gpuworker.train import train_framework
from gpuworker.train.data_parallel import DataParallelModel
from gpuworker.train.model import ModelSource


def main(words: list[str]) -> int:
    load, make_optimizer = ModelSource.load_model, DataParallelModel.make_optimizer

    def loaded(self, *rest, **more):
        print("a whole model in the memory of the host", flush=True)
        return load(self, *rest, **more)

    def made(self) -> None:
        make_optimizer(self)
        print("parameters:", len(self.named), self.parameter_count(), flush=True)

    ModelSource.load_model, DataParallelModel.make_optimizer = loaded, made
    return train_framework.main(words)
