"""Training under ddp-launch: stopped by SIGTERM it exits with 75, and the next attempt continues it."""

from __future__ import annotations

import json
import signal

import pytest

from tests.helpers.launchers import Run
from tests.helpers.processes import SOURCE, until

TRAIN = SOURCE.parent / "app" / "src" / "train.py"
PATIENT = ("--join-timeout=60", "--grace-period=60")


@pytest.mark.slow
def test_data_that_cannot_be_used_end_all_nodes(start, tmp_path):
    data = tmp_path / "train.jsonl"
    data.write_text('{"text": "good"}\n{"txt": "bad"}\n')
    run = Run(start, tmp_path, torch=True)
    for node in range(2):
        model = ("--device", "cpu", "--from-scratch", "gpt2-tiny")
        run.pod(node, 2, *PATIENT, program=(TRAIN.with_name("train_framework.py"), *model, "--data", data))
    assert run.wait() == [1, 1], run.output
    assert all("exit_code=1 cause=program-failed" in pod.verdicts[-1] for pod in run.pods), run.output
    assert "train.jsonl:2: none of the known keys" in run.output


@pytest.mark.slow
def test_a_stopped_run_saves_and_the_next_attempt_finishes_it(start, tmp_path):
    program = (TRAIN, "--device", "cpu", "--output", tmp_path / "out", "--save-every", "0", "--epochs")
    first = Run(start, tmp_path, torch=True)
    for node in range(2):
        first.pod(node, 2, *PATIENT, program=(*program, "2000"))
    until(lambda: "[STEP] node=0 rank=0 step=20/" in first.pods[0].output, "the training starts", 240)
    first.pods[1].started.process.send_signal(signal.SIGTERM)
    assert first.wait() == [75, 75], first.output
    for pod in first.pods:  # the last line is the launcher's, even where the program has logged its end
        assert "exit_code=75 cause=saved" in pod.verdicts[-1] and "all nodes saved" in pod.verdicts[-1], pod.output
    assert "status=saved exit_code=75 checkpoint=epoch-0" in first.pods[0].output
    report = tmp_path / "out" / "test" / "report.json"  # the run is named by RUN_ID
    stopped_at = json.loads(report.read_text())["summary"]["step"]
    # Enough epochs to end soon after the resume.
    epochs = stopped_at // 8 + 2
    second = Run(start, tmp_path, torch=True)
    for node in range(2):
        second.pod(node, 2, *PATIENT, program=(*program, epochs), ATTEMPT=1)
    assert second.wait() == [0, 0], second.output
    ended = json.loads(report.read_text())
    assert ended["attempts"] == 2 and ended["summary"]["step"] == 8 * epochs > stopped_at, second.output
    assert ended["status"] == "finished"
