"""ddp-launch while a run is on: what the program does, and how it ends. A stand-in starts the ranks, in a moment."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.launchers import STAND_IN, Run
from tests.helpers.processes import environment, until

pytestmark = pytest.mark.slow


@pytest.fixture
def run(start, tmp_path):
    return Run(start, tmp_path)


def test_a_program_that_exits_before_init(run):
    program = run.script("import os, sys; print('bad flag'); sys.exit(9 * (os.environ['RANK'] == '3'))")
    for node in range(3):
        run.pod(node, 3, "--join-timeout=30", program=[program], NPROC_PER_NODE=2)
    run.all_end(
        1, "program-failed", "rank 3 of node 1 (pod run-1 on n1): exit code 9; last line: bad flag", within_s=60
    )


def test_a_program_that_says_why_it_exits(run):
    run.pod(0, 1, program=[run.script("import sys; sys.exit('no data under /data')")])
    run.all_end(1, "program-failed", "rank 0 of node 0 (pod run-0 on n0): no data under /data", within_s=60)


def test_a_program_that_is_done_is_not_undone_by_the_interpreters_end(run):
    """As by a thread of Gloo that still has a tensor; what the program itself wants to do at its end is done."""
    program = run.script("""
import atexit, os, sys, threading, time
class Late:
    abort = os.abort
    def __del__(self):
        self.abort()
sys.late = Late()
atexit.register(print, "handled")
threading.Thread(target=lambda: (time.sleep(0.5), print("waited for"))).start()
child = os.fork()
if not child:
    sys.exit(7)  # not the rank's end
os.waitpid(child, 0)
print("not flushed")
""")
    run.pod(0, 1, program=[program])
    assert run.wait() == [0], run.say()
    for word in ("handled", "waited for", "not flushed"):
        assert f"{word}\n" in run.pods[0].output


def test_nodes_on_one_volume_tidy_up_beside_each_other(run):
    for node in range(2):
        run.pod(node, 2, "--join-timeout=30", f"--output-dir={run.folder}", FAULT_RMDIR=1)
    assert run.wait() == [0, 0], run.say()
    assert "Traceback" not in run.say()
    assert not list((run.folder / ".ddp-launch").iterdir())


def test_a_program_that_raises_is_shown_once(run):
    """The first failing rank's traceback is shown; what follows from it is folded, and can be had."""
    program = run.script(
        "import os, time\nlocal = int(os.environ['LOCAL_RANK'])\ntime.sleep(0.4 * local)\n"
        "if local:\n    raise RuntimeError('Connection closed by peer')\n"
        "def backward():\n    raise ValueError('loss is NaN')\nbackward()\n"
    )
    pod = run.pod(0, 1, "--join-timeout=30", f"--output-dir={run.folder}", program=[program], NPROC_PER_NODE=3)
    run.all_end(
        1, "program-failed", "rank 0 of node 0", f"ValueError: loss is NaN ({program.name}:7 in backward)", within_s=60
    )
    assert pod.output.count("Traceback (most recent call last)") == 1, pod.output
    assert "runpy" not in pod.output
    for found in run.folder.glob(".ddp-launch/*/folded-rank-*.txt"):
        assert "Connection closed by peer" in found.read_text()


def test_debug_folds_nothing(run):
    program = run.script("raise RuntimeError('Connection closed by peer')")
    pod = run.pod(0, 1, "--join-timeout=30", program=[program], DEBUG_DISTRIBUTED=1)
    run.all_end(1, "peer-lost", within_s=60)
    assert "folded=" not in pod.output
    assert "RuntimeError: Connection closed by peer" in pod.output
    assert 'torchrun="--nnodes=1 ' in pod.output


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("OSError(28, 'No space left on device')", "disk-full"),
        ("RuntimeError('CUDA out of memory. Tried')", "gpu-out-of-memory"),
    ],
)
def test_a_known_cause_is_named(run, error, cause):
    run.pod(0, 1, program=[run.script(f"raise {error}")])
    run.all_end(1, cause, "rank 0 of node 0", within_s=60)


def test_a_rank_is_killed(run):
    program = "import os, signal, time\nprint('step 5', flush=True)\ntime.sleep(1)\n"
    program += "os.kill(os.getpid(), signal.SIGKILL) if os.environ['RANK'] == '1' else time.sleep(600)"
    for node in range(2):
        run.pod(node, 2, "--join-timeout=30", program=[run.script(program)])
    run.all_end(1, "killed", "rank 1 of node 1 (pod run-1 on n1): ended by SIGKILL; last line: step 5", within_s=60)


def test_a_program_that_torchrun_does_not_start_with_python(run):
    pod = run.pod(0, 1, program=["--no-python", "sh", "-c", "exit 0"])
    run.wait()
    assert len(pod.verdicts) == 1


def test_no_node_is_done_before_all_are(run):
    """A pod that ended well is never started again, so it must not end before it is known that all do."""
    program = "import os, time, sys\ntime.sleep(3 * int(os.environ['RANK']))\nsys.exit(5 * int(os.environ['RANK']))"
    for node in range(2):
        run.pod(node, 2, "--join-timeout=30", program=[run.script(program)])
    run.all_end(1, "program-failed", "rank 1 of node 1 (pod run-1 on n1): exit code 5", within_s=60)


def test_what_the_program_leaves_behind_may_finish(run):
    """As an uploader of metrics."""
    upload = f"import time, pathlib; time.sleep(2); pathlib.Path({str(run.folder / 'uploaded')!r}).touch()"
    run.pod(0, 1, program=[run.script(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {upload!r}])")])
    assert run.wait() == [0], run.say()
    assert (run.folder / "uploaded").exists()


def test_a_program_may_start_processes_of_its_own(run):
    """Spawned ones import the program again, by its name and not by that of what runs it."""
    program = run.script(
        "import multiprocessing\nclass Job:\n    def __call__(self, x):\n        return x * x\n"
        "if __name__ == '__main__':\n    with multiprocessing.get_context('spawn').Pool(2) as pool:\n"
        "        print('sum', sum(pool.map(Job(), [1, 2, 3])))\n"
    )
    pod = run.pod(0, 1, "--join-timeout=30", program=[program])
    assert run.wait() == [0], run.say()
    assert "sum 14" in pod.output


def test_attempt_and_run_id_reach_the_program(run):
    program = run.script("import os; print('sees', os.environ['ATTEMPT'], os.environ['RUN_ID'])")
    for node in range(2):
        run.pod(
            node,
            2,
            "--join-timeout=30",
            program=[program],
            ATTEMPT=3 - node,
            GPU_CHARTS_ATTEMPTS_IGNORED="" if node else 1,
        )
    assert run.wait() == [0, 0]
    for pod in run.pods:
        assert "sees 4 test" in pod.output, "node 0 counts for all"
        assert re.search(r"id=test-4-[0-9a-f]{8} ", pod.output)


class TestParked:
    """In a StatefulSet, where a container that ends is started again."""

    def pod(self, run: Run, code: int, attempts: int) -> object:
        folder = run.folder / "park"
        folder.mkdir(exist_ok=True)
        flags = ["--join-timeout=30", f"--idle-after-exit={folder}", f"--max-attempts={attempts}"]
        return run.pod(0, 1, *flags, program=[run.script(f"import sys; sys.exit({code})")])

    def test_a_run_that_is_done_sleeps_until_it_is_deleted(self, run):
        pod = self.pod(run, 0, 0)
        until(lambda: "[IDLE] node=0 exit_code=0" in pod.output, "it parks")
        assert (run.folder / "park" / "ready").exists()
        process = pod.started.process
        before = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        time.sleep(1)
        assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13] == before, "it is awake"
        process.send_signal(signal.SIGTERM)
        assert pod.started.wait(10) == 0

    def test_a_run_that_fails_tries_again_so_often_and_is_not_ready(self, run):
        for attempt in range(2):
            pod = self.pod(run, 9, 2)
            assert pod.started.wait() == 1
            assert f"attempt={attempt} " in pod.output
        pod = self.pod(run, 9, 2)
        until(lambda: "all 3 attempts have failed" in pod.output, "it parks")
        assert not (run.folder / "park" / "ready").exists()

    def test_a_stop_is_not_counted(self, run):
        for _ in range(2):
            pod = self.pod(run, 75, 0)
            assert pod.started.wait() == 75
            assert "attempt=0 " in pod.output


def test_the_launcher_is_one_file_for_any_image(run, tmp_path):
    """Without gpuworker installed; and the program's own gpuworker is not hidden by it."""
    archives = [tmp_path / name for name in ("one", "two")]
    for archive, zone in zip(archives, ("UTC", "Asia/Tokyo"), strict=True):
        command = [sys.executable, "-m", "gpuworker.launch.build_zipapp", archive]
        subprocess.run(command, env=environment(TZ=zone), check=True)
        time.sleep(2)  # what a zip knows of time
    assert archives[0].read_bytes() == archives[1].read_bytes()
    own = tmp_path / "own" / "gpuworker"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("MINE = 'the program has its own'\n")
    program = run.script("import gpuworker; print(gpuworker.MINE)")
    pod = run.start(
        archives[0], "--join-timeout=30", "--", program, NNODES=1, NODE_RANK=0, NPROC_PER_NODE=2,
        MASTER_ADDR="localhost", MASTER_PORT=run.port, GLOO_SOCKET_IFNAME="", PYTHONPATH=f"{STAND_IN}:{own.parent}",
    )  # fmt: skip
    assert pod.wait() == 0, pod.output
    assert pod.output.count("the program has its own") == 2
