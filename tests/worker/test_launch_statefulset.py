"""ddp-launch in a StatefulSet, whose kubelet restarts every container that ends."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.helpers.launchers import Run
from tests.helpers.processes import until

pytestmark = pytest.mark.slow


@pytest.fixture
def run(start, tmp_path):
    return Run(start, tmp_path)


class TestIdleAfterExit:
    """In a StatefulSet, whose kubelet restarts every container that ends."""

    def pod(self, run: Run, code: object, attempts: int) -> object:
        folder = run.folder / "state"
        folder.mkdir(exist_ok=True)
        flags = [f"--idle-after-exit={folder}", f"--max-attempts={attempts}"]
        return run.pod(
            0,
            1,
            *flags,
            program=[run.script(f"import sys, time\nprint('runs', flush=True)\nsys.exit({code})")],
        )

    def test_a_finished_run_idles_until_its_pod_is_deleted(self, run):
        pod = self.pod(run, 0, 0)
        until(lambda: "[IDLE] node=0 exit_code=0" in pod.output, "the pod idles")
        assert (run.folder / "state" / "ready").exists()
        process = pod.started.process
        before = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        time.sleep(1)
        assert (
            Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            == before
        ), "it uses no CPU time"
        process.send_signal(signal.SIGTERM)
        assert pod.started.wait(10) == 0

    def test_a_failed_run_restarts_until_max_attempts_and_then_is_not_ready(self, run):
        for attempt in range(2):
            pod = self.pod(run, 9, 2)
            assert pod.started.wait() == 1
            assert f"attempt={attempt} " in pod.output
        pod = self.pod(run, 9, 2)
        until(lambda: "[IDLE] node=0 exit_code=1 " in pod.output, "the pod idles")
        assert not (run.folder / "state" / "ready").exists()

    def test_a_saved_stop_is_an_attempt_that_is_not_counted_as_a_failure(self, run):
        for attempt in range(2):
            pod = self.pod(run, 75, 0)
            assert pod.started.wait() == 75
            assert f"attempt={attempt} " in pod.output

    def test_a_count_that_cannot_be_stored_ends_the_attempts(self, run):
        """Else a container on a full disk would be restarted without end."""
        file = str(run.folder / "state" / "attempts")
        pod = self.pod(
            run, f"(__import__('os').unlink({file!r}), __import__('os').mkdir({file!r}), 9)[-1]", 2
        )
        until(lambda: "[IDLE] node=0 exit_code=1 " in pod.output, "the pod idles")
        assert len(pod.verdicts) == 1 and "Traceback" not in pod.output, pod.output
        assert not (run.folder / "state" / "ready").exists()

    def test_a_folder_that_cannot_be_written_is_named(self, run):
        (run.folder / "state" / "ready").mkdir(parents=True)
        (run.folder / "state" / "attempts").mkdir()
        pod = self.pod(run, 0, 0)
        until(lambda: "[IDLE] node=0 exit_code=1 " in pod.output, "the pod idles")
        assert "cause=launcher-failed" in pod.verdicts[0] and "attempts" in pod.verdicts[0], (
            pod.output
        )

    def killed(self, run: Run, attempts: int) -> object:
        pod = self.pod(run, "time.sleep(600)", attempts)
        until(lambda: "runs" in pod.output, "the program runs")
        pod.started.process.kill()
        pod.started.wait()
        return pod

    def test_a_killed_launcher_counts(self, run):
        """The kernel ends the whole container if its memory is full."""
        assert "attempt=0 " in self.killed(run, 1).output
        assert "attempt=1 " in self.killed(run, 1).output
        pod = self.pod(run, 0, 1)
        until(lambda: "[IDLE] node=0 exit_code=1 " in pod.output, "the pod idles")
        assert "runs" not in pod.output

    def test_a_launcher_that_ended_with_its_machine_does_not_count(self, run):
        self.killed(run, 0)
        (run.folder / "state" / "attempts").write_text("an-earlier-boot-of-the-machine")
        pod = self.pod(run, 0, 0)
        until(lambda: "[IDLE] node=0 exit_code=0 " in pod.output, "the run is done")
