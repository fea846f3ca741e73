"""The examples of other training libraries under ddp-launch, with the real libraries: make
test-trainers.

A run of two nodes is stopped and resumed, and ends with the weights of a run that was not stopped.
The verdict names a rank that crashes, and one that hangs.
"""

import re
import signal
from pathlib import Path

import pytest
import safetensors.torch
import torch

from hack.paths import REPO
from tests.helpers.launchers import Run
from tests.helpers.processes import until

PATIENT = ("--join-timeout=60", "--grace-period=60")
FINAL = {
    "accelerate": "final/model.safetensors",
    "huggingface": "final/model.safetensors",
    "lightning": "final.pt",
}
# Runs an example with a fault in the tenth optimizer step of rank 1.
FAULTY = """
import os, runpy, signal, sys
from torch.optim.optimizer import register_optimizer_step_post_hook
steps = []
def fail(*_):
    steps.append(1)
    if len(steps) == 10 and os.environ["RANK"] == "1":
        FAULT
register_optimizer_step_post_hook(fail)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# Runs an example with a folder of its own for each rank.
APART = """
import os, runpy, sys
sys.argv = sys.argv[1:]
sys.argv[sys.argv.index("--output") + 1] += "-" + os.environ["RANK"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
pytestmark = pytest.mark.trainers
libraries = pytest.mark.parametrize("library", FINAL)


def example(library: str) -> Path:
    return REPO / "values-examples" / f"ddp-run-{library}" / "code" / "train.py"


def begin(
    start, folder: Path, out: Path, *program: object, flags: tuple = (), attempt: int = 0
) -> Run:
    run = Run(start, folder, torch=True)
    for node in range(2):
        command = (*program, "--output", out)
        run.pod(node, 2, *PATIENT, *flags, program=command, ATTEMPT=attempt)
    return run


def steps(text: str) -> list[int]:
    found = re.findall(r"^\[STEP\] (?:node=0 )?rank=0 step=(\d+)", text, re.MULTILINE)
    return [*map(int, found)]


def weights(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        return safetensors.torch.load_file(path)
    found = torch.load(path, weights_only=True)
    return found.get("state_dict", found)


@libraries
def test_a_stopped_run_saves_and_the_next_start_continues_it(start, tmp_path, library):
    whole = begin(start, tmp_path, tmp_path / "whole", example(library), "--steps", 300)
    assert whole.wait() == [0, 0], whole.output
    first = begin(start, tmp_path, tmp_path / "out", example(library), "--steps", 300)
    until(lambda: max(steps(first.pods[0].output), default=0) >= 10, "the training starts", 240)
    first.pods[1].started.process.send_signal(signal.SIGTERM)
    assert first.wait() == [75, 75], first.output
    for pod in first.pods:
        assert "exit_code=75 cause=saved" in pod.verdicts[-1], pod.output
    stopped_at = int(
        re.search(r"^\[DONE\] .*status=saved .*step=(\d+)", first.output, re.MULTILINE)[1]
    )
    assert 10 <= stopped_at < 300
    second = begin(start, tmp_path, tmp_path / "out", example(library), "--steps", 300, attempt=1)
    assert second.wait() == [0, 0], second.output
    found = steps(second.output)
    assert stopped_at < min(found) <= stopped_at + 5 and max(found) == 300
    resumed, expected = (
        weights(tmp_path / name / "test" / FINAL[library]) for name in ("out", "whole")
    )
    assert expected and all(torch.equal(resumed[name], expected[name]) for name in expected)


@libraries
def test_a_crash_is_named(start, tmp_path, library):
    fault = Run(start, tmp_path).script(
        FAULTY.replace("FAULT", "raise FileNotFoundError('no such shard')")
    )
    run = begin(start, tmp_path, tmp_path / "out", fault, example(library))
    assert run.wait() == [1, 1], run.output
    for pod in run.pods:
        assert "cause=program-failed" in pod.verdicts[-1] and "rank 1" in pod.verdicts[-1], (
            pod.output
        )
        assert "no such shard" in pod.verdicts[-1], pod.output


@libraries
def test_a_hang_is_found(start, tmp_path, library):
    fault = Run(start, tmp_path).script(FAULTY.replace("FAULT", "while True: signal.pause()"))
    run = begin(
        start,
        tmp_path,
        tmp_path / "out",
        fault,
        example(library),
        flags=("--progress-timeout=60", "--progress-action=end"),
    )
    assert run.wait() == [70, 70], run.output
    for pod in run.pods:
        assert "cause=no-progress" in pod.verdicts[-1] and fault.name in pod.verdicts[-1], (
            pod.output
        )


def test_ranks_that_see_other_checkpoints_are_refused(start, tmp_path):
    """Each rank of Lightning looks for the newest checkpoint before there is a process group."""
    apart = Run(start, tmp_path).script(APART)
    first = begin(start, tmp_path, tmp_path / "out", apart, example("lightning"), "--steps", 50)
    assert first.wait() == [0, 0], first.output
    assert not list((tmp_path / "out-1").rglob("*.ckpt")), "rank 0 writes the checkpoint"
    second = begin(
        start, tmp_path, tmp_path / "out", apart, example("lightning"), "--steps", 100, attempt=1
    )
    assert second.wait() == [1, 1], second.output
    assert "rank 1 resumes at step 0, rank 0 at step 50" in second.pods[0].verdicts[-1], (
        second.output
    )
