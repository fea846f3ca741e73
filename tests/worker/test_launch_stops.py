"""ddp-launch during a run: SIGTERM and lost nodes. A fast stand-in replaces torchrun."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import threading
import time

import pytest

from tests.helpers.hostile_messages import listens
from tests.helpers.launchers import Run, assert_verdict
from tests.helpers.processes import descendants, free_port, until

pytestmark = pytest.mark.slow

# A program that runs until SIGTERM and then executes the statement of the test.
HELD = 1500  # connections
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
        run.pod(node, nodes, *flags, program=[run.script(program)], **variables)
    for pod in run.pods:
        until(lambda pod=pod: "trains" in pod.output, "the program runs")


def stop(run: Run, *nodes: int) -> None:
    for node in nodes:
        run.pods[node].started.process.send_signal(signal.SIGTERM)


def test_a_hang_up_of_a_launcher_with_nohup_is_no_stop(run):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        running(run, TRAINS.format(stop="sys.exit(75)"))
    finally:
        signal.signal(signal.SIGHUP, before)
    run.pods[1].started.process.send_signal(signal.SIGHUP)
    time.sleep(1)
    assert not run.pods[1].verdicts
    stop(run, 1)
    run.assert_verdict(75, "saved", "node 1 (pod run-1 on n1) got SIGTERM", within_s=60)


def test_a_program_that_a_signal_to_the_whole_pod_ended_is_stopped(run):
    """The program may die of SIGTERM before the launcher has reported its own."""
    running(run, "import time; print('trains', flush=True); time.sleep(600)")
    (program,) = [pid for pid in descendants(run.pods[1].started.process.pid) if is_program(pid)]
    os.kill(program, signal.SIGTERM)
    time.sleep(0.5)
    stop(run, 1)
    run.assert_verdict(143, "stopped", "got SIGTERM", within_s=60)


def is_program(pid: int) -> bool:
    with open(f"/proc/{pid}/cmdline") as file:
        return "program-" in file.read() and not descendants(pid)


def test_a_node_that_is_done_and_drained_ends_nobody(run):
    text = "import os, sys, time\nif os.environ['RANK'] == '0':\n    time.sleep(6)\n    open(sys.argv[1], 'w')\n"
    for node in range(2):
        program = [run.script(text + "print('end', flush=True)"), run.folder / "late"]
        run.pod(node, 2, program=program)
    until(lambda: "end" in run.pods[1].output, "node 1 is done")
    time.sleep(1)  # until it has said so
    stop(run, 1)
    assert run.wait() == [0, 0], run.output
    assert (run.folder / "late").exists()


class Link:
    """A network link between a pod and node 0. When it is cut, packets are neither delivered nor
    refused.
    """

    def __init__(self, far: int):
        self.connected = threading.Event()
        self.connected.set()
        self.near, self.far = free_port(2) + 1, far
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
                    threading.Thread(target=self.forward, args=ends, daemon=True).start()

    def forward(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self.connected.wait()
                target.sendall(data)
        except OSError:
            pass  # an end has closed the connection
        source.close()
        target.close()


@pytest.fixture
def link(run):
    made = Link(run.port + 1)
    yield made
    made.server.shutdown(socket.SHUT_RDWR)
    made.server.close()
    made.connected.set()


@pytest.mark.parametrize("short", [True, False], ids=["short cut", "long cut"])
def test_a_network_cut_ends_the_run_only_after_the_heartbeat_timeout(run, link, short):
    """A run survives a shorter cut. A longer one ends the run on both sides."""
    timeout_s, end = 8, run.folder / "end"
    program = run.script(
        "import os, time\nprint('trains', flush=True)\n"
        + f"while not os.path.exists({str(end)!r}): time.sleep(0.1)"
    )
    for node, port in enumerate((run.port, link.near - 1)):
        run.pod(node, 2, f"--heartbeat-timeout={timeout_s}", program=[program], MASTER_PORT=port)
    for pod in run.pods:
        until(lambda pod=pod: "trains" in pod.output, "the program runs")
    link.connected.clear()
    time.sleep(timeout_s * 0.5)
    if short:
        link.connected.set()
        time.sleep(timeout_s)
        end.touch()
        assert run.wait() == [0, 0], run.output
    else:
        assert run.wait() == [71, 71], run.output
        assert_verdict(
            run.pods[0], 71, "node-lost", "node 1 (pod run-1 on n1)", "heartbeat", f"{timeout_s} s"
        )
        assert_verdict(run.pods[1], 71, "node-lost", "node 0 ", "heartbeat", f"{timeout_s} s")


@pytest.mark.parametrize("key", [b"", b"k" * 32], ids=["without a key", "key"])
@pytest.mark.parametrize(
    "hard", [None, 1024], ids=["hard limit of this machine", "hard limit 1024"]
)
def test_connections_of_strangers_do_not_keep_a_node_out(run, tmp_path, key, hard):
    """They could take all file descriptors that a container has; one that is closed is opened
    again.
    """
    limits, over, held = resource.getrlimit(resource.RLIMIT_NOFILE), threading.Event(), {}
    (tmp_path / "key").write_bytes(key)
    variables = {"GPU_CHARTS_KEY_FILE": tmp_path / "key"} if key else {}
    first = run.pod(0, 2, "--join-timeout=90", **variables)
    resource.prlimit(first.started.process.pid, resource.RLIMIT_NOFILE, (256, hard or limits[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    until(lambda: listens("127.0.0.1", run.port + 1), "node 0 listens")

    def hold() -> None:
        with contextlib.suppress(ConnectionError):  # the run has ended
            while not over.wait(0.01):
                while len(held) < HELD:
                    held[socket.create_connection(("127.0.0.1", run.port + 1), timeout=60)] = None
                poll = select.poll()
                for connection in held:
                    poll.register(connection, select.POLLIN)
                for number, _ in poll.poll(0):
                    closed = next(each for each in held if each.fileno() == number)
                    del held[closed]
                    closed.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        until(lambda: len(held) >= HELD or not thread.is_alive(), "they are connected")
        run.pod(1, 2, "--join-timeout=90", **variables)
        assert run.wait() == [0, 0], run.output
        assert "out of system resource" not in first.output and "Traceback" not in first.output, (
            first.output
        )
    finally:
        over.set()
        thread.join()
        for connection in held:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
