"""ddp-launch during a run: how programs end, and what the launcher reports."""

from __future__ import annotations

import bz2
import gzip
import lzma
import signal
import time
import zipfile
from pathlib import Path

import pytest

from tests.helpers.chart_programs import mount
from tests.helpers.launchers import STAND_IN, Run
from tests.helpers.processes import until

pytestmark = pytest.mark.slow


@pytest.fixture
def run(start, tmp_path):
    return Run(start, tmp_path)


def test_an_exit_code_before_init_process_group_is_reported(run):
    program = run.script("import os, sys; print('bad flag'); sys.exit(9 * (os.environ['RANK'] == '3'))")
    for node in range(3):
        run.pod(node, 3, program=[program], NPROC_PER_NODE=2)
    run.assert_verdict(
        1, "program-failed", "rank 3 of node 1 (pod run-1 on n1)", "exit code 9", "bad flag", within_s=60
    )


def test_the_text_of_sys_exit_is_the_reason(run):
    run.pod(0, 1, program=[run.script("import sys; sys.exit('no data under /data')")])
    run.assert_verdict(1, "program-failed", "rank 0 of node 0 (pod run-0 on n0)", "no data under /data", within_s=60)


def test_exit_code_2_of_the_program_is_the_programs(run):
    """argparse has it, and so has a library or an absent script on a broken node."""
    words = "['--lr'] * int(os.environ['RANK'])"
    program = run.script(f"import argparse, os; argparse.ArgumentParser().parse_args({words})")
    for node in range(2):
        run.pod(node, 2, program=[program])
    run.assert_verdict(1, "program-failed", "exit code 2", "rank 1 of node 1 (pod run-1 on n1)", "--lr", within_s=60)


def test_files_that_the_program_left_open_are_written(run, tmp_path):
    """As the interpreter's finalization does."""
    program = run.script(f"""
import bz2, gzip, io, lzma, os, zipfile
os.chdir({str(tmp_path)!r})
plain, binary = open("plain", "w"), open("binary", "wb")
packed = io.TextIOWrapper(gzip.open("packed.gz", "wb"))
tight, tighter, folder = bz2.open("tight.bz2", "wt"), lzma.open("tighter.xz", "wt"), zipfile.ZipFile("folder.zip", "w")
closed, broken = open("closed", "w"), open("broken", "w")
closed.close()
os.close(broken.fileno())
for file in (plain, packed, tight, tighter):
    file.write("metrics")
binary.write(b"metrics")
broken.write("x")
folder.writestr("inside", "metrics")
class Odd(io.RawIOBase):
    def flush(self):
        raise RuntimeError("odd")
odd = Odd()
""")
    run.pod(0, 1, program=[program])
    assert run.wait() == [0], run.output
    assert (tmp_path / "plain").read_text() == (tmp_path / "binary").read_text() == "metrics"
    for name, opened in (("packed.gz", gzip.open), ("tight.bz2", bz2.open), ("tighter.xz", lzma.open)):
        with opened(tmp_path / name, "rt") as file:
            assert file.read() == "metrics", name
    assert zipfile.ZipFile(tmp_path / "folder.zip").read("inside") == b"metrics"


def test_all_output_is_shown_and_the_verdict_names_the_failure_that_has_a_cause_of_its_own(run):
    program = run.script(
        "import os, time\nlocal = int(os.environ['LOCAL_RANK'])\ntime.sleep(0.4 * (not local))\n"
        "if local:\n    raise RuntimeError('[/pytorch/gloo/transport/tcp/pair.cc:1] Connection closed by peer')\n"
        "def backward():\n    raise ValueError('loss is NaN')\nbackward()\n"
    )
    pod = run.pod(0, 1, program=[program], NPROC_PER_NODE=3)
    run.assert_verdict(
        1, "program-failed", "rank 0 of node 0", f"ValueError: loss is NaN ({program.name}:7 in backward)", within_s=60
    )
    assert pod.output.count("Traceback (most recent call last)") == 3, pod.output


def test_debug_shows_all_output(run):
    program = run.script("raise RuntimeError('[gloo/transport/tcp/pair.cc:1] Connection closed by peer')")
    pod = run.pod(0, 1, program=[program], DEBUG_DISTRIBUTED=1)
    run.assert_verdict(1, "peer-lost", within_s=60)
    assert "Connection closed by peer" in pod.output
    assert "[DEBUG]" in pod.output


def test_a_rank_that_is_killed_is_named_with_its_signal(run):
    program = "import os, signal, time\nprint('step 5', flush=True)\ntime.sleep(1)\n"
    program += "os.kill(os.getpid(), signal.SIGKILL) if os.environ['RANK'] == '1' else time.sleep(600)"
    for node in range(2):
        run.pod(node, 2, program=[run.script(program)])
    run.assert_verdict(1, "killed", "rank 1 of node 1 (pod run-1 on n1)", "SIGKILL", "step 5", within_s=60)


def test_a_program_that_is_not_python_gets_one_verdict(run):
    pod = run.pod(0, 1, program=["--no-python", "sh", "-c", "exit 0"])
    run.wait()
    assert len(pod.verdicts) == 1


def test_a_finished_node_waits_for_the_other_nodes(run):
    """Kubernetes does not start a pod again that ended with 0, so no pod may do so before all nodes are done."""
    program = "import os, time, sys\ntime.sleep(3 * int(os.environ['RANK']))\nsys.exit(5 * int(os.environ['RANK']))"
    for node in range(2):
        run.pod(node, 2, program=[run.script(program)])
    run.assert_verdict(1, "program-failed", "rank 1 of node 1 (pod run-1 on n1)", "exit code 5", within_s=60)


def test_background_processes_of_the_program_may_finish(run):
    """For example an uploader of metrics."""
    upload = f"import time, pathlib; time.sleep(2); pathlib.Path({str(run.folder / 'uploaded')!r}).touch()"
    run.pod(0, 1, program=[run.script(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {upload!r}])")])
    assert run.wait() == [0], run.output
    assert (run.folder / "uploaded").exists()


def test_a_program_may_spawn_processes(run):
    """A spawned process imports the main module again, which must be the program."""
    program = run.script(
        "import multiprocessing\nclass Job:\n    def __call__(self, x):\n        return x * x\n"
        "if __name__ == '__main__':\n    with multiprocessing.get_context('spawn').Pool(2) as pool:\n"
        "        print('sum', sum(pool.map(Job(), [1, 2, 3])))\n"
    )
    pod = run.pod(0, 1, program=[program])
    assert run.wait() == [0], run.output
    assert "sum 14" in pod.output


def test_all_nodes_use_the_run_id_and_the_attempt_of_node_0(run):
    program = run.script("import os; print('attempt', os.environ['ATTEMPT'], 'of', os.environ['RUN_ID'])")
    for node in range(2):
        run.pod(
            node,
            2,
            program=[program],
            ATTEMPT=3 - node,
            GPU_CHARTS_ATTEMPTS_IGNORED="" if node else 1,
        )
    assert run.wait() == [0, 0]
    for pod in run.pods:
        assert "attempt 4 of test" in pod.output


def test_a_full_disk_of_the_node_does_not_turn_a_good_end_into_a_failure(run):
    """The kubelet keeps the termination message on it."""
    pod = run.pod(0, 1, program=[run.script("import sys; sys.exit(75)")], TERMINATION_LOG="/dev/full")
    assert pod.started.wait() == 75, pod.output
    assert len(pod.verdicts) == 1 and "Traceback" not in pod.output


class TestIdleAfterExit:
    """In a StatefulSet, whose kubelet restarts every container that ends."""

    def pod(self, run: Run, code: object, attempts: int) -> object:
        folder = run.folder / "state"
        folder.mkdir(exist_ok=True)
        flags = [f"--idle-after-exit={folder}", f"--max-attempts={attempts}"]
        return run.pod(
            0, 1, *flags, program=[run.script(f"import sys, time\nprint('runs', flush=True)\nsys.exit({code})")]
        )

    def test_a_finished_run_idles_until_its_pod_is_deleted(self, run):
        pod = self.pod(run, 0, 0)
        until(lambda: "[IDLE] node=0 exit_code=0" in pod.output, "the pod idles")
        assert (run.folder / "state" / "ready").exists()
        process = pod.started.process
        before = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        time.sleep(1)
        assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13] == before, (
            "it uses no CPU time"
        )
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
        pod = self.pod(run, f"(__import__('os').unlink({file!r}), __import__('os').mkdir({file!r}), 9)[-1]", 2)
        until(lambda: "[IDLE] node=0 exit_code=1 " in pod.output, "the pod idles")
        assert len(pod.verdicts) == 1 and "Traceback" not in pod.output, pod.output
        assert not (run.folder / "state" / "ready").exists()

    def test_a_folder_that_cannot_be_written_is_named(self, run):
        (run.folder / "state" / "ready").mkdir(parents=True)
        (run.folder / "state" / "attempts").mkdir()
        pod = self.pod(run, 0, 0)
        until(lambda: "[IDLE] node=0 exit_code=1 " in pod.output, "the pod idles")
        assert "cause=launcher-failed" in pod.verdicts[0] and "attempts" in pod.verdicts[0], pod.output

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


def test_the_launcher_of_a_chart_does_not_hide_a_package_gpuworker_of_the_program(run, tmp_path):
    folder = mount("ddp-run", tmp_path / "programs")
    own = tmp_path / "own" / "gpuworker"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("MINE = 'the package of the program'\n")
    program = run.script("import gpuworker; print(gpuworker.MINE)")
    pod = run.start(
        folder / "ddp-launch", "--join-timeout=30", "--", program, NNODES=1, NODE_RANK=0, NPROC_PER_NODE=2,
        MASTER_ADDR="localhost", MASTER_PORT=run.port, GLOO_SOCKET_IFNAME="", PYTHONPATH=f"{STAND_IN}:{own.parent}",
    )  # fmt: skip
    assert pod.wait() == 0, pod.output
    assert pod.output.count("the package of the program") == 2
