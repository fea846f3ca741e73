"""The launchers of one run as processes on the loopback interface, in place of pods."""

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.processes import SOURCE, free_port, until

HERE = Path(__file__).parent
STAND_IN, FAULTS = HERE / "torch_stand_in", HERE / "launch_faults"
UNRESOLVABLE = (
    "x" * 64 + ".invalid"
)  # longer than a DNS label may be, so no query leaves this machine
JOIN_TIMEOUT_S = 30  # a launcher starts in 0.3 s, on a busy machine in many seconds
MODULE = ("-m", "gpuworker.launch.launcher")
# Variables that a pod of a run has.
CONTRACT = {
    "NNODES": "4",
    "NODE_RANK": "0",
    "NPROC_PER_NODE": "8",
    "MASTER_ADDR": "run-0.run.ml.svc.cluster.local",
    "MASTER_PORT": "29500",
    "RUN_ID": "llm",
    "ATTEMPT": "3",
}


@dataclass
class Pod:
    node: int
    started: object
    message_file: Path

    @property
    def output(self) -> str:
        return self.started.output

    @property
    def verdicts(self) -> list[str]:
        return re.findall(r"^\[(?:FATAL|DONE)\].*", self.output, re.MULTILINE)

    @property
    def seconds(self) -> float:
        """Run time as the launcher measures it, without the start of Python, which a busy machine
        delays.
        """
        return float(re.search(r" seconds=(\S+)$", self.verdicts[0])[1])

    @property
    def termination_message(self) -> str:
        return self.message_file.read_text()


class Run:
    """The pods of a run. With `torch` False, a stand-in replaces torchrun."""

    def __init__(self, start, folder: Path, torch: bool = False):
        self.start, self.folder, self.torch = start, folder, torch
        self.port = free_port(2)
        self.pods: list[Pod] = []

    def pod(
        self, node: int, nodes: int, *flags: object, program: tuple = (), **variables: object
    ) -> Pod:
        """Start one pod. If a flag is given twice, the last one counts."""
        paths = [FAULTS, SOURCE] if self.torch else [FAULTS, STAND_IN, SOURCE]
        message = self.folder / f"message-{len(self.pods)}"
        message.touch()
        world = {
            "NNODES": nodes,
            "NODE_RANK": node,
            "NPROC_PER_NODE": 1,
            "RUN_ID": "test",
            "ATTEMPT": 0,
        }
        place = {
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": self.port,
            "POD_NAME": f"run-{node}",
            "NODE_NAME": f"n{node}",
        }
        python = {
            "PYTHONPATH": ":".join(map(str, paths)),
            "PYTHONDONTWRITEBYTECODE": 1,
            "TERMINATION_LOG": message,
        }
        contract = world | place | python
        if not self.torch:
            contract["GLOO_SOCKET_IFNAME"] = ""
        wanted = [
            f"--join-timeout={JOIN_TIMEOUT_S}",
            "--heartbeat-timeout=20",
            "--grace-period=20",
            *map(str, flags),
        ]
        started = self.start(
            *MODULE, *wanted, "--", *(program or [self.script("pass")]), **contract | variables
        )
        self.pods.append(Pod(node, started, message))
        return self.pods[-1]

    def script(self, text: str) -> Path:
        path = self.folder / f"program-{abs(hash(text))}.py"
        path.write_text(text)
        return path

    def wait(self) -> list[int]:
        """Exit codes of all pods."""
        return [pod.started.wait() for pod in self.pods]

    def until_ready(self, each: int):
        """Until so many programs of each pod have printed READY."""
        until(lambda: all(pod.output.count("READY") == each for pod in self.pods), "programs run")

    def stop(self, node: int):
        self.pods[node].started.process.send_signal(signal.SIGTERM)

    @property
    def output(self) -> str:
        return "\n".join(f"--- node {pod.node}\n{pod.output}" for pod in self.pods)

    def assert_verdict(
        self, code: int, cause: str, *words: str, within_s: float = JOIN_TIMEOUT_S + 5
    ):
        """Every pod ends in time with the same verdict: one log line, and the termination message."""
        codes = self.wait()
        assert set(codes) == {code}, self.output
        for pod in self.pods:
            assert_verdict(pod, code, cause, *words)
            assert pod.seconds < within_s, self.output


def assert_verdict(pod: Pod, code: int, cause: str, *words: str):
    assert len(pod.verdicts) == 1, pod.output
    assert f"exit_code={code} cause={cause} " in pod.verdicts[0], pod.output
    assert pod.termination_message.startswith(f"exit code {code} ({cause}): "), (
        pod.termination_message
    )
    for word in words:
        assert word in pod.verdicts[0], (word, pod.output)
        assert word in pod.termination_message.replace("\n", " "), (word, pod.termination_message)
