"""ddp-launch when a program ends in unusual ways: nothing is destroyed, nothing hangs, and nobody else is blamed.

The ranks are processes on the loopback interface.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.launchers import Run
from tests.helpers.processes import alive, environment, free_port, until

pytestmark = pytest.mark.slow


@pytest.fixture
def run(start, tmp_path):
    return Run(start, tmp_path)


SAVE = """
import os, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
print("READY", flush=True)
while not stop:
    time.sleep(0.05)
if os.environ["LOCAL_RANK"] == "0":
    time.sleep(5)
    open(sys.argv[1] + os.environ["RANK"], "w").write("saved")
"""


@pytest.mark.parametrize("end", ["sys.exit(75)", "os._exit(75)"])
def test_a_stop_waits_for_the_rank_that_still_saves(run, end):
    """Its siblings end at once; torchrun would end it with them."""
    program = run.script(SAVE + end)
    for node in range(2):
        run.pod(node, 2, program=[program, run.folder / "checkpoint-"], NPROC_PER_NODE=2)
    until(lambda: all(pod.output.count("READY") == 2 for pod in run.pods), "the programs run")
    run.pods[1].started.process.send_signal(signal.SIGTERM)
    run.assert_verdict(75, "saved", within_s=60)
    assert [(run.folder / f"checkpoint-{rank}").exists() for rank in (0, 2)] == [True, True]


@pytest.mark.parametrize(
    "program",
    [
        ["python", "os._exit(0)"],
        ["python", "os.execv('/bin/true', ['true'])"],
        ["--no-python", "pass"],
    ],
)
def test_a_rank_that_ends_with_0_ends_no_sibling(run, program):
    """The other rank needs longer than torchrun and the launcher would wait."""
    mode, end = program
    text = "import os, sys, time\n"
    text += f"if os.environ['LOCAL_RANK'] == '1':\n    {end}\n"
    text += "else:\n    time.sleep(6)\n    open(sys.argv[1], 'w').write('final')\n"
    final = run.folder / "final"
    command = [run.script(text), final]
    run.pod(0, 1, program=command if mode == "python" else ["--no-python", sys.executable, *command], NPROC_PER_NODE=2)
    assert run.wait() == [0], run.output
    assert final.read_text() == "final"


def test_a_shell_passes_sigterm_on_and_its_exit_code_counts(run):
    program = run.script(SAVE + "sys.exit(75)")
    shell = f"{sys.executable} -u {program} {run.folder}/checkpoint-; exit $?"
    run.pod(0, 1, program=["--no-python", "bash", "-c", shell])
    until(lambda: "READY" in run.pods[0].output, "the program runs")
    run.pods[0].started.process.send_signal(signal.SIGTERM)
    run.assert_verdict(75, "saved", within_s=60)


@pytest.mark.parametrize(
    ("program", "code", "word"),
    [
        ("import atexit, os; atexit.register(os._exit, 3)", 1, "exit code 3"),
        ("import atexit, os; atexit.register(os.kill, os.getpid(), 11)", 1, "SIGSEGV"),
        ("import os; os.close(1); os.close(2); os._exit(7)", 1, "exit code 7"),
        ("import os, ctypes; os.kill(os.getpid(), 6)", 1, "SIGABRT"),
    ],
)
def test_the_real_exit_code_is_reported(run, program, code, word):
    run.pod(0, 1, program=[run.script(program)])
    codes = run.wait()
    assert codes == [code], run.output
    assert word in run.pods[0].verdicts[0]


def test_a_thread_that_keeps_a_finished_rank_is_named(run):
    program = run.script(
        "import os, threading, time\n"
        "def upload():\n    time.sleep(600)\n"
        "if os.environ['RANK'] == '1':\n    threading.Thread(target=upload, name='uploader').start()\n"
    )
    for node in range(2):
        run.pod(node, 2, "--exit-timeout=3", program=[program])
    run.assert_verdict(70, "exit-timeout", "rank 1 of node 1", "uploader", f"{program.name}:3 in upload", within_s=60)


@pytest.mark.parametrize(
    ("end", "shown"),
    [
        ("print('result=42', end='')", "result=42"),
        ("sys.stderr.write('fatal: no shard'); sys.exit(4)", "fatal: no shard"),
    ],
)
def test_a_last_line_without_newline_is_shown(run, end, shown):
    run.pod(0, 1, program=[run.script(f"import sys; {end}")])
    run.wait()
    assert re.search(f"^{shown}$", run.pods[0].output, re.MULTILINE), run.output
    assert shown in run.pods[0].verdicts[0] or run.pods[0].verdicts[0].startswith("[DONE]")


def test_a_progress_bar_is_shown_live(run):
    program = run.script("import sys, time\nsys.stdout.write('50%\\r'); sys.stdout.flush()\ntime.sleep(600)\n")
    pod = run.pod(0, 1, program=[program])
    until(lambda: "50%" in pod.output, "the bar", 30)
    pod.started.process.send_signal(signal.SIGTERM)
    run.wait()


def test_a_flood_of_short_lines_is_not_a_lost_node(run):
    """Each rank has its own process for its output, so heartbeats go on."""
    program = run.script(
        "import os, time\nend = time.monotonic() + 8\nwhile time.monotonic() < end:\n    os.write(1, b'x\\n' * 1000)\n"
    )
    for node in range(2):
        run.pod(node, 2, "--heartbeat-timeout=5", program=[program], NPROC_PER_NODE=2)
    assert run.wait() == [0, 0], [pod.verdicts for pod in run.pods]


class Unread:
    """A pod whose output nobody reads for a while, as when the node's disk for logs stalls."""

    def __init__(self, *arguments: object, **variables: object):
        command = [sys.executable, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(**variables), text=True)
        self.output = ""

    def wait(self) -> int:
        self.output = self.process.communicate(timeout=60)[0]
        return self.process.returncode


def test_output_that_nobody_reads_is_not_a_lost_node(run):
    """The pipe of node 0 stays full for longer than the heartbeat time-out."""
    program = run.script("import os, time\nos.write(1, b'x' * 300_000 + b'\\n')\n")
    start = run.start
    for node in range(2):
        run.start = start if node else Unread
        run.pod(node, 2, "--heartbeat-timeout=4", program=[program])
    time.sleep(10)
    assert run.wait() == [0, 0], [pod.verdicts for pod in run.pods]
    assert "x" * 300_000 + "\n" in run.pods[0].output


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("fault", ["TMPDIR", "--grace-period=1x", "program"])
def test_a_launcher_that_cannot_start_ends_all_nodes_with_one_cause(run, failing, fault):
    """No node waits for one that has already failed."""
    for node in range(2):
        flags, variables, program = [], {}, None
        if node == failing and fault == "program":
            program = [run.folder / "missing.py"]
        elif node == failing and fault == "TMPDIR":
            variables = {"FAULT_NO_TEMPORARY_FOLDER": "1"}
        elif node == failing:
            flags = [fault]
        run.pod(node, 2, *flags, program=program or (), **variables)
    code, cause = (67, "node-unfit") if fault == "TMPDIR" else (2, "usage")
    run.assert_verdict(code, cause, f"node {failing} (pod run-{failing} on n{failing})", within_s=25)


def test_a_long_temporary_path_works(run):
    folder = run.folder / ("x" * 120)
    folder.mkdir()
    run.pod(0, 1, program=[run.script("print('worked')")], TMPDIR=folder)
    assert run.wait() == [0], run.output
    assert "worked" in run.output


def test_the_verdict_does_not_wait_for_processes_left_behind(run):
    """On a machine of one's own nothing else would end the workers of a failed rank."""
    program = run.script(
        "import os, signal, sys, time\nif child := os.fork():\n    print('LEFT', child, flush=True)\n    sys.exit(3)\n"
        "os.setsid()\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)\n"
    )
    pod = run.pod(0, 1, program=[program])
    run.assert_verdict(1, "program-failed", "exit code 3", within_s=15)
    assert not alive(int(re.search(r"LEFT (\d+)", pod.output)[1]))


def test_one_rank_that_exits_with_75_does_not_end_the_others(run):
    program = run.script("import os, sys, time\ntime.sleep(4 * int(os.environ['RANK']))\nsys.exit(75)")
    for node in range(2):
        run.pod(node, 2, program=[program])
    run.assert_verdict(75, "saved", within_s=60)
    assert all(pod.seconds > 4 for pod in run.pods)


def test_restarts_without_progress_are_counted_in_the_end(run):
    run.pod(0, 1, program=[run.script("import sys; sys.exit(75)")], ATTEMPT=3)
    run.assert_verdict(1, "restart-loop", within_s=60)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(("attempt", "code", "cause"), [(2, 71, "node-lost"), (3, 1, "restart-loop")])
def test_nodes_that_are_lost_again_and_again_are_counted_in_the_end(run, victim, attempt, code, cause):
    """Kubernetes does not count exit code 71. Node 0 reports the loss, or another node if node 0 is lost."""
    program = run.script("import time\nprint('runs', flush=True)\ntime.sleep(600)")
    for node in range(2):
        run.pod(node, 2, program=[program], ATTEMPT=attempt)
    until(lambda: all("runs" in pod.output for pod in run.pods), "the program runs")
    run.pods.pop(victim).started.process.kill()
    run.assert_verdict(code, cause, f"node {victim}", "closed the connection", within_s=60)


@pytest.mark.parametrize(
    "error",
    [
        "ConnectionRefusedError(111, 'Connection refused')",
        "OSError(98, 'Address already in use')",
        "TimeoutError('database: Timed out waiting 5000ms')",
        "RuntimeError('cannot reach the queue: Temporary failure in name resolution')",
    ],
)
def test_an_error_of_the_program_keeps_its_class_and_its_traceback(run, error):
    for node in range(2):
        run.pod(node, 2, program=[run.script(f"raise {error}")])
    run.assert_verdict(1, "program-failed", within_s=60)
    # The other rank may be stopped before it comes to its own error.
    [named] = {re.search(r" of node (\d)", pod.verdicts[0])[1] for pod in run.pods}
    assert "Traceback (most recent call last)" in run.pods[int(named)].output, run.output


def test_a_warning_before_an_exit_is_not_the_cause(run):
    program = run.script("import sys; print('wandb: WARNING Connection refused'); print('x'); sys.exit(3)")
    run.pod(0, 1, program=[program])
    run.assert_verdict(1, "program-failed", "exit code 3", within_s=60)


def test_a_reader_of_the_program_s_output_outlives_its_stop(run):
    """A program that prints while it saves must not find a broken pipe; two readers, one behind the other."""
    prints = "[(print('saving', n, flush=True), time.sleep(0.2)) for n in range(10)]"
    program = run.script(SAVE + f"import time\n{prints}\nprint('SAVED', flush=True)\nsys.exit(75)")
    line = f"{sys.executable} -u {program} {run.folder}/checkpoint- | grep --line-buffered '' | tee {run.folder}/log"
    run.pod(0, 1, program=["--no-python", "bash", "-c", f"set -o pipefail; {line}"])
    until(lambda: "READY" in run.pods[0].output, "the program runs")
    run.pods[0].started.process.send_signal(signal.SIGTERM)
    run.assert_verdict(75, "saved", within_s=60)
    assert "SAVED" in (run.folder / "log").read_text()


def test_no_progress_ends_the_run_with_all_places(run):
    program = run.script("import time\nprint('start', flush=True)\ndef load():\n    time.sleep(600)\nload()\n")
    for node in range(2):
        run.pod(node, 2, "--progress-timeout=4", "--progress-action=end", program=[program])
    run.assert_verdict(70, "no-progress", f"{program.name}:4 in load", within_s=60)


def test_a_thread_that_still_uploads_is_no_lack_of_progress(run):
    program = run.script(
        "import threading, time\nprint('start', flush=True)\n"
        "def upload():\n    time.sleep(8)\n    print('UPLOADED', flush=True)\nthreading.Thread(target=upload).start()\n"
    )
    for node in range(2):
        run.pod(node, 2, "--progress-timeout=3", "--exit-timeout=60", program=[program])
    assert run.wait() == [0, 0], run.output
    assert all("UPLOADED" in pod.output for pod in run.pods)


def test_a_program_that_replaces_its_process_is_not_ended_by_a_question(run):
    """It has lost the handler of the signal that asks for stacks."""
    program = run.script("import os\nprint('start', flush=True)\nos.execvp('sh', ['sh', '-c', 'sleep 9'])\n")
    for node in range(2):
        flags = ("--progress-timeout=3", "--progress-action=warn")
        run.pod(node, 2, *flags, program=[program])
    assert run.wait() == [0, 0], run.output
    assert 'phase="no progress"' in run.pods[0].output, run.output


def test_a_lack_of_progress_can_be_a_warning(run):
    program = run.script("import time\nprint('start', flush=True)\ntime.sleep(9)\n")
    pod = run.pod(0, 1, "--progress-timeout=3", "--progress-action=warn", program=[program])
    assert run.wait() == [0], run.output
    assert len(re.findall(r'phase="no progress"', pod.output)) == 1
    assert f"{program.name}:3 in <module>" in pod.output


def test_a_failed_program_starts_again_in_place(run):
    text = "import os, pathlib, sys\nmark = pathlib.Path(sys.argv[1] + os.environ['RANK'])\n"
    text += "if not mark.exists():\n    mark.write_text('')\n    sys.exit(9 * (os.environ['RANK'] == '1'))\n"
    text += "print('SECOND')\n"
    program = run.script(text)
    for node in range(2):
        run.pod(node, 2, "--max-restarts-in-place=1", program=[program, run.folder / "mark-"])
    assert run.wait() == [0, 0], run.output
    for pod in run.pods:
        assert "SECOND" in pod.output
        assert len(re.findall('phase="restart in place".*rank 1 of node 1', pod.output)) == 1


def test_restarts_in_place_have_a_limit(run):
    for node in range(2):
        run.pod(node, 2, "--max-restarts-in-place=2", program=[run.script("raise SystemExit(9)")])
    run.assert_verdict(1, "program-failed", "exit code 9", within_s=60)
    assert all(pod.output.count("restart in place") == 2 for pod in run.pods)


SLOW_END = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "1":
    print("FAILS", flush=True)
    sys.exit(9)
time.sleep(4)
"""


@pytest.mark.parametrize(
    ("number", "after_s"), [(signal.SIGKILL, s) for s in (0.4, 2.5, 4.0)] + [(signal.SIGSTOP, 3.0)]
)
def test_a_node_that_is_lost_around_a_restart_in_place_ends_the_run(run, number, after_s):
    """Before, while and after the ranks of node 0 end; the join time-out is ten times as long."""
    flags = ("--join-timeout=120", "--heartbeat-timeout=6", "--max-restarts-in-place=5")
    for node in range(2):
        run.pod(node, 2, *flags, program=[run.script(SLOW_END)])
    until(lambda: "FAILS" in run.pods[1].output, "rank 1 fails")
    time.sleep(after_s)
    run.pods[1].started.process.send_signal(number)
    run.pods[0].started.wait()
    (verdict,) = run.pods[0].verdicts
    # Node 1 had failed before it was lost, or was lost after that.
    assert "cause=program-failed" in verdict or "cause=node-lost" in verdict, run.output
    assert "node 1 (pod run-1 on n1)" in verdict, run.output
    assert run.pods[0].seconds < 60, run.output
    assert "socket.send()" not in run.output


def test_a_script_of_a_shell_passes_sigterm_on(run):
    """Its process has the name of the script and not that of the shell."""
    program = run.script(SAVE + "sys.exit(75)")
    script = run.folder / "train.sh"
    script.write_text(
        f"#!/bin/bash\n{sys.executable} -u {program} {run.folder}/checkpoint- | cat\nexit ${{PIPESTATUS[0]}}\n"
    )
    script.chmod(0o755)
    run.pod(0, 1, program=["--no-python", script])
    until(lambda: "READY" in run.pods[0].output, "the program runs")
    run.pods[0].started.process.send_signal(signal.SIGTERM)
    run.assert_verdict(75, "saved", within_s=60)


AGAIN = """
import os, signal, sys, time
stop, mark = [], os.path.join(sys.argv[1], "mark-" + os.environ["RANK"])
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
first = not os.path.exists(mark)
open(mark, "w").close()
if first and os.environ["RANK"] == "1":
    time.sleep(1)
    sys.exit(3)
while not stop:
    time.sleep(0.05)
print("SAVES", flush=True)
time.sleep(4)
open(os.path.join(sys.argv[1], "checkpoint"), "w").close()
sys.exit(75)
"""


@pytest.mark.parametrize("node", [0, 1])
def test_a_stop_during_a_restart_in_place_destroys_nothing(run, node):
    """Rank 0 of the first start still saves when the pod gets SIGTERM."""
    for index in range(2):
        run.pod(index, 2, "--max-restarts-in-place=2", program=[run.script(AGAIN), run.folder])
    until(lambda: "SAVES" in run.pods[0].output, "rank 0 saves")
    run.pods[node].started.process.send_signal(signal.SIGTERM)
    run.assert_verdict(143, "stopped", f"node {node}", within_s=60)
    assert (run.folder / "checkpoint").exists(), run.output


def test_a_restart_in_place_leaves_nothing_of_the_start_before(run):
    """A process with a session of its own, which ignores SIGTERM and holds a port."""
    program = run.script(
        "import os, signal, socket, sys, time\n"
        "mark = os.path.join(sys.argv[1], 'mark')\n"
        "server = socket.create_server(('127.0.0.1', int(sys.argv[2])))\n"
        "if os.path.exists(mark):\n    print('SECOND')\n    sys.exit()\n"
        "open(mark, 'w').close()\n"
        "if not os.fork():\n    os.setsid()\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    time.sleep(600)\n"
        "sys.exit(3)\n"
    )
    port = free_port(2)
    pod = run.pod(0, 1, "--max-restarts-in-place=1", program=[program, run.folder, port])
    assert run.wait() == [0], run.output
    assert "SECOND" in pod.output


def test_help_is_printed_to_a_pipe(start):
    shown = start("-m", "gpuworker.launch.launcher", "--help")
    assert shown.wait() == 0
    assert "--join-timeout" in shown.output


# As that of an AssertionError with a tensor of a GPU that hangs.
BLOCKS = "import time\nclass E(Exception):\n    def __str__(self):\n        time.sleep(600)\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("class E(Exception):\n    def __str__(self):\n        raise ValueError('no')\nraise E()", "E: <str() of"),
        (BLOCKS + "raise E()", "E (program-"),
        (BLOCKS + "raise ExceptionGroup('two', [E()])", "first of E"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt ("),
        ("raise SystemExit(2**70)", "exit code 255"),
        ("raise ExceptionGroup('two', [LookupError('shard 7'), ValueError()])", "first of LookupError: shard 7"),
    ],
)
def test_unusual_exceptions_are_named(run, text, shown):
    run.pod(0, 1, program=[run.script(text)])
    run.assert_verdict(1, "program-failed", "rank 0 of node 0", shown, within_s=60)


def test_a_text_of_sys_exit_that_blocks_is_bounded_by_the_exit_timeout(run):
    program = run.script(BLOCKS + "raise SystemExit(E())")
    run.pod(0, 1, "--exit-timeout=3", program=[program])
    run.assert_verdict(70, "exit-timeout", "rank 0 of node 0", within_s=60)
