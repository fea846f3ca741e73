"""ddp-launch while a run is on: SIGTERM, and nodes that are lost. A stand-in starts the ranks, in a moment."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time

import pytest

from tests.helpers.launchers import Run, check, free_ports
from tests.helpers.processes import alive, descendants, until

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
        run.pod(node, nodes, "--join-timeout=30", *flags, program=[run.script(program)], **variables)
    for pod in run.pods:
        until(lambda pod=pod: "trains" in pod.output, "the program runs")


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
    running(
        run, TRAINS.format(stop="pass").replace("time.sleep(600)", "\nwhile True: time.sleep(1)"), 2, "--grace-period=3"
    )
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
    run.all_end(66, "node-lost", words + "closed the connection without a report", within_s=60)


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
    """A cut that is shorter than --heartbeat-timeout is survived; one that is longer ends the run on both sides."""
    silence, end = 8, run.folder / "end"
    program = run.script(
        "import os, time\nprint('trains', flush=True)\n" + f"while not os.path.exists({str(end)!r}): time.sleep(0.1)"
    )
    for node, port in enumerate((run.port, wire.near - 1)):
        run.pod(node, 2, "--join-timeout=30", f"--heartbeat-timeout={silence}", program=[program], MASTER_PORT=port)
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
        check(run.pods[0], 66, "node-lost", f"node 1 (pod run-1 on n1) sent no heartbeat for {silence} s")
        check(run.pods[1], 66, "node-lost", f"node 0 sent no heartbeat for {silence} s")


def test_a_frozen_pod_is_named(run):
    running(run, TRAINS.format(stop="sys.exit(75)"), 2, "--heartbeat-timeout=4")
    frozen = run.pods.pop(1)
    frozen.started.process.send_signal(signal.SIGSTOP)
    run.all_end(66, "node-lost", "node 1 (pod run-1 on n1) sent no heartbeat for 4 s", within_s=60)
