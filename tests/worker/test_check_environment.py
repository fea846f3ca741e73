"""The environment check tells what is missing."""

import pytest
import torch

from gpuworker.accept.checks import environment
from gpuworker.accept.registry import Plan

pytestmark = pytest.mark.slow


def test_missing_gpus_are_told_from_too_few(monkeypatch):
    none = environment.measure(Plan("cuda", 8))
    assert (none.wrong, none.missing) == ([], ["torch sees no GPU, 8 expected"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 7)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H200")
    few = environment.measure(Plan("cuda", 8))
    assert few.wrong == ["torch sees 7 GPUs, 8 expected"]
    assert (few.facts["gpus_seen"], few.facts["gpus_expected"]) == (7, 8)
