"""ddp-launch while a run is on: failures, stops, lost nodes and the end. A stand-in starts the ranks, in a moment."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from launchers import STAND_IN, Run, check, free_ports
from processes import alive, descendants, environment, until

pytestmark = pytest.mark.slow

# A program that runs until it is told to stop, and then does what the test says.
TRAINS = """
import os, signal, sys, time
def stop(*_):
    {stop}
signal.signal(signal.SIGTERM, stop)
print("trains", flush=True)
time.sleep(600)
"""


@pytest.fixture
def run(start, tmp_path):
    return Run(start, tmp_path)


def running(run: Run, program: str, nodes: int = 2, *flags: object, **variables: object) -> None:
    """Start all pods and wait until their programs run."""
    for node in range(nodes):
        run.pod(node, nodes, "--deadline=30", *flags, program=[run.script(program)], **variables)
    for pod in run.pods:
        until(lambda pod=pod: "trains" in pod.output, "the program runs")


def test_a_program_that_exits_before_init(run):
    program = run.script("import os, sys; print('bad flag'); sys.exit(9 * (os.environ['RANK'] == '3'))")
    for node in range(3):
        run.pod(node, 3, "--deadline=30", program=[program], NPROC_PER_NODE=2)
    run.all_end(1, "failed", "rank 3 of node 1 (pod run-1 on n1): exit code 9; last line: bad flag", within_s=60)


def test_a_program_that_says_why_it_exits(run):
    run.pod(0, 1, program=[run.script("import sys; sys.exit('no data under /data')")])
    run.all_end(1, "failed", "rank 0 of node 0 (pod run-0 on n0): no data under /data", within_s=60)


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
        run.pod(node, 2, "--deadline=30", f"--out={run.folder}", FAULT_RMDIR=1)
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
    pod = run.pod(0, 1, "--deadline=30", f"--out={run.folder}", program=[program], NPROC_PER_NODE=3)
    run.all_end(1, "failed", "rank 0 of node 0", f"ValueError: loss is NaN ({program.name}:7 in backward)", within_s=60)
    assert pod.output.count("Traceback (most recent call last)") == 1, pod.output
    assert "runpy" not in pod.output
    for found in run.folder.glob(".ddp-launch/*/folded-rank-*.txt"):
        assert "Connection closed by peer" in found.read_text()


def test_debug_folds_nothing(run):
    program = run.script("raise RuntimeError('Connection closed by peer')")
    pod = run.pod(0, 1, "--deadline=30", program=[program], DEBUG_DISTRIBUTED=1)
    run.all_end(1, "peer-gone", within_s=60)
    assert "folded=" not in pod.output
    assert "RuntimeError: Connection closed by peer" in pod.output
    assert 'torchrun="--nnodes=1 ' in pod.output


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("OSError(28, 'No space left on device')", "disk-full"),
        ("RuntimeError('CUDA out of memory. Tried')", "gpu-memory"),
    ],
)
def test_a_known_cause_is_named(run, error, cause):
    run.pod(0, 1, program=[run.script(f"raise {error}")])
    run.all_end(1, cause, "rank 0 of node 0", within_s=60)


def test_a_rank_is_killed(run):
    program = "import os, signal, time\nprint('step 5', flush=True)\ntime.sleep(1)\n"
    program += "os.kill(os.getpid(), signal.SIGKILL) if os.environ['RANK'] == '1' else time.sleep(600)"
    for node in range(2):
        run.pod(node, 2, "--deadline=30", program=[run.script(program)])
    run.all_end(1, "killed", "rank 1 of node 1 (pod run-1 on n1): ended by SIGKILL; last line: step 5", within_s=60)


def test_a_program_that_torchrun_does_not_start_with_python(run):
    pod = run.pod(0, 1, program=["--no-python", "sh", "-c", "exit 0"])
    run.wait()
    assert len(pod.verdicts) == 1


def stop(run: Run, *nodes: int) -> None:
    for node in nodes:
        run.pods[node].started.process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("nodes", [(1,), (0,), (0, 1)])
def test_sigterm_reaches_the_programs_which_save(run, nodes):
    """Also those of pods that were not told: a world without one of its nodes ends."""
    running(run, TRAINS.format(stop="time.sleep(1); print('saved', flush=True); sys.exit(75)"))
    stop(run, *nodes)
    run.all_end(75, "saved", "got SIGTERM; all nodes saved", within_s=60)
    for pod in run.pods:
        assert "saved" in pod.output.splitlines()
        assert pod.verdicts[0].startswith("[DONE]")


def test_sigterm_to_a_program_that_does_not_save(run):
    running(run, TRAINS.format(stop="sys.exit(3 if os.environ['RANK'] == '1' else 75)"))
    stop(run, 0)
    run.all_end(
        143, "stopped", "node 0 (pod run-0 on n0) got SIGTERM; not saved on node 1 (pod run-1 on n1)", within_s=60
    )


def test_sigterm_to_a_program_that_does_not_listen(run):
    """It has its grace time, and not more."""
    running(run, TRAINS.format(stop="pass").replace("time.sleep(600)", "\nwhile True: time.sleep(1)"), 2, "--grace=3")
    children = [pid for pod in run.pods for pid in descendants(pod.started.process.pid)]
    assert len(children) >= 4, "torchrun and the program, twice"
    begun = time.monotonic()
    stop(run, 1)
    run.all_end(143, "stopped", "not saved on node 0 (pod run-0 on n0), node 1", within_s=60)
    assert 3 <= time.monotonic() - begun < 3 + 10
    assert not any(map(alive, children)), "no process is left"


def test_a_program_that_ends_well_on_sigterm_is_done(run):
    running(run, TRAINS.format(stop="sys.exit(0)"))
    stop(run, 0)
    assert run.wait() == [0, 0], run.say()


@pytest.mark.parametrize("node", [0, 1])
def test_a_pod_is_gone_at_once(run, node):
    """Its container was killed: for memory, or by kubectl delete --force."""
    running(run, TRAINS.format(stop="sys.exit(75)"))
    victim = run.pods.pop(node)
    for pid in [victim.started.process.pid, *descendants(victim.started.process.pid)]:
        os.kill(pid, signal.SIGKILL)
    words = "node 0 " if node == 0 else "node 1 (pod run-1 on n1) "
    run.all_end(66, "lost", words + "closed the line without a word", within_s=60)


class Wire:
    """The network between a pod and node 0, which can be cut: packets are then neither delivered nor refused."""

    def __init__(self, far: int):
        self.whole = threading.Event()
        self.whole.set()
        self.near, self.far = free_ports() + 1, far
        self.server = socket.create_server(("127.0.0.1", self.near))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                near = self.server.accept()[0]
                try:
                    far = socket.create_connection(("127.0.0.1", self.far))
                except ConnectionRefusedError:
                    near.close()
                    continue
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self.carry, args=ends, daemon=True).start()

    def carry(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self.whole.wait()
                target.sendall(data)
        except OSError:
            pass  # an end has closed it
        source.close()
        target.close()


@pytest.fixture
def wire(run):
    made = Wire(run.port + 1)
    yield made
    made.server.shutdown(socket.SHUT_RDWR)
    made.server.close()
    made.whole.set()


@pytest.mark.parametrize("back", [True, False], ids=["comes back", "stays away"])
def test_the_network_is_cut(run, wire, back):
    """A cut that is shorter than --silence is survived; one that is longer ends the run on both sides."""
    silence, end = 8, run.folder / "end"
    program = run.script(
        "import os, time\nprint('trains', flush=True)\n" + f"while not os.path.exists({str(end)!r}): time.sleep(0.1)"
    )
    for node, port in enumerate((run.port, wire.near - 1)):
        run.pod(node, 2, "--deadline=30", f"--silence={silence}", program=[program], MASTER_PORT=port)
    for pod in run.pods:
        until(lambda pod=pod: "trains" in pod.output, "the program runs")
    wire.whole.clear()
    time.sleep(silence * 0.5)
    if back:
        wire.whole.set()
        time.sleep(silence)
        end.touch()
        assert run.wait() == [0, 0], run.say()
    else:
        assert run.wait() == [66, 66], run.say()
        check(run.pods[0], 66, "lost", f"node 1 (pod run-1 on n1) was not heard of for {silence} s")
        check(run.pods[1], 66, "lost", f"node 0 was not heard of for {silence} s")


def test_a_frozen_pod_is_named(run):
    running(run, TRAINS.format(stop="sys.exit(75)"), 2, "--silence=4")
    frozen = run.pods.pop(1)
    frozen.started.process.send_signal(signal.SIGSTOP)
    run.all_end(66, "lost", "node 1 (pod run-1 on n1) was not heard of for 4 s", within_s=60)


def test_no_node_is_done_before_all_are(run):
    """A pod that ended well is never started again, so it must not end before it is known that all do."""
    program = "import os, time, sys\ntime.sleep(3 * int(os.environ['RANK']))\nsys.exit(5 * int(os.environ['RANK']))"
    for node in range(2):
        run.pod(node, 2, "--deadline=30", program=[run.script(program)])
    run.all_end(1, "failed", "rank 1 of node 1 (pod run-1 on n1): exit code 5", within_s=60)


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
    pod = run.pod(0, 1, "--deadline=30", program=[program])
    assert run.wait() == [0], run.say()
    assert "sum 14" in pod.output


def test_attempt_and_run_id_reach_the_program(run):
    program = run.script("import os; print('sees', os.environ['ATTEMPT'], os.environ['RUN_ID'])")
    for node in range(2):
        run.pod(node, 2, "--deadline=30", program=[program], ATTEMPT=3 - node, ATTEMPTS_IGNORED="" if node else 1)
    assert run.wait() == [0, 0]
    for pod in run.pods:
        assert "sees 4 test" in pod.output, "node 0 counts for all"
        assert re.search(r"id=test-4-[0-9a-f]{8} ", pod.output)


class TestParked:
    """In a StatefulSet, where a container that ends is started again."""

    def pod(self, run: Run, code: int, attempts: int) -> object:
        folder = run.folder / "park"
        folder.mkdir(exist_ok=True)
        flags = ["--deadline=30", f"--park={folder}", f"--attempts={attempts}"]
        return run.pod(0, 1, *flags, program=[run.script(f"import sys; sys.exit({code})")])

    def test_a_run_that_is_done_sleeps_until_it_is_deleted(self, run):
        pod = self.pod(run, 0, 0)
        until(lambda: "[PARKED] node=0 exit_code=0" in pod.output, "it parks")
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
        command = [sys.executable, "-m", "gpuworker.launch.pack", archive]
        subprocess.run(command, env=environment(TZ=zone), check=True)
        time.sleep(2)  # what a zip knows of time
    assert archives[0].read_bytes() == archives[1].read_bytes()
    own = tmp_path / "own" / "gpuworker"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("MINE = 'the program has its own'\n")
    program = run.script("import gpuworker; print(gpuworker.MINE)")
    pod = run.start(
        archives[0], "--deadline=30", "--", program, NNODES=1, NODE_RANK=0, NPROC_PER_NODE=2, MASTER_ADDR="localhost",
        MASTER_PORT=run.port, GLOO_SOCKET_IFNAME="", PYTHONPATH=f"{STAND_IN}:{own.parent}",
    )  # fmt: skip
    assert pod.wait() == 0, pod.output
    assert pod.output.count("the program has its own") == 2
