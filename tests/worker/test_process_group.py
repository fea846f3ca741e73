"""Process group helpers: devices, tensors that outlive a collective, and the end of a process."""

import os
import subprocess
import sys

import pytest
import torch

from gpuworker.runtime import process_group
from tests.helpers.processes import SOURCE


def test_exit_now_skips_the_interpreters_finalization():
    program = (
        "import os, sys; from gpuworker.runtime.process_group import exit_now\n"
        "class Late:\n    abort = os.abort\n    def __del__(self): self.abort()\n"
        "sys.late = Late(); print('printed'); exit_now(5)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (5, "printed\n"), ended.stderr


def test_the_last_cpu_tensors_stay_alive():
    tensors = [torch.zeros(1) for _ in range(process_group.KEPT_TENSORS + 2)]
    assert all(process_group.keep_alive(tensor) is tensor for tensor in tensors)
    assert [
        kept is tensor for kept, tensor in zip(process_group._kept, tensors[2:], strict=True)
    ].count(False) == 0


def test_a_local_rank_without_a_gpu_is_refused():
    assert process_group.select_device("cpu", 3) == torch.device("cpu")
    with pytest.raises(
        process_group.DeviceError, match=f"local rank 64 has no GPU: {torch.cuda.device_count()} "
    ):
        process_group.select_device("cuda", 64)
