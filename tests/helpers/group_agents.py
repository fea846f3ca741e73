"""Groups of real processes on loopback addresses: one agent and one entry script of the chart per
rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from tests.helpers.processes import PATIENCE_S, SOURCE, until

REPO = Path(__file__).parents[2]
ENTRY = REPO / "charts/job-group/files/entry.sh"
DOMAIN = "rl.default.svc.cluster.local"


def entry_settings(root: Path, host: str) -> dict[str, object]:
    """Variables that the chart gives the entry script."""
    return {
        "GPU_CHARTS_ROOT": root,
        "GPU_CHARTS_HOST": host,
        "GPU_CHARTS_AGENT": "yes",
        "GPU_CHARTS_DELAY_S": 0,
        "GPU_CHARTS_GRACE_S": 20,
        "GPU_CHARTS_IN_PLACE": "yes",
        "GPU_CHARTS_MAX_RESTARTS": 0,
        "HOME": root / "home",
        "SKYPILOT_NODE_RANK": 0,
        "SKYPILOT_NUM_GPUS_PER_NODE": 0,
    }


def stub_conda(folder: Path) -> Path:
    """A folder for PATH, whose `conda` names an image's installation; its activation prints what is
    activated.
    """
    base, commands = folder / "base", folder / "bin"
    (base / "etc/profile.d").mkdir(parents=True)
    (base / "etc/profile.d/conda.sh").write_text('conda() { echo "conda $*"; }\n')
    commands.mkdir()
    (commands / "conda").write_text(f"#!/bin/sh\necho {base}\n")
    (commands / "conda").chmod(0o755)
    return commands


class Rank:
    """One pod. `publish_name()` adds it to DNS, `start_agent()` and `start_task()` start its
    containers.
    """

    def __init__(self, group: Group, host: str, number: int, attempt: str):
        self.group, self.host, self.attempt = group, host, attempt
        self.address = f"{group.network}.{number}"
        self.root = group.folder / f"{host}.{number}"
        for name in ("scripts", "state", "home"):
            (self.root / name).mkdir(parents=True)
        self.processes: list[subprocess.Popen] = []

    @property
    def workdir(self) -> Path:
        """Where setup and run start, once the entry script has made it."""
        return self.root / "home/sky_workdir"

    def touch(self, name: str):
        """Make a file that the task waits for."""
        until(self.workdir.is_dir, f"{self.host} has a working folder")
        (self.workdir / name).touch()

    def publish_name(self) -> Rank:
        with self.group.names.open("a") as names:
            names.write(f"{self.host}.{DOMAIN} {self.address}\n")
        return self

    def start_agent(self, *flags: str) -> Rank:
        agent = Path(__file__).with_name("loopback_agent.py")
        command = [sys.executable, agent, "--plan", self.group.plan]
        command += ["--host", self.host, "--state-dir", self.root / "state", *flags]
        variables = {"ADDRESS": self.address, "NAMES": self.group.names}
        self.sidecar = self.start("agent", command, **variables | self.group.agent_settings)
        return self

    def kill_agent(self):
        self.sidecar.kill()
        self.sidecar.wait()

    def start_task(
        self,
        run: str = "true",
        setup: str = "",
        files: str = "",
        shell: str = "sh",
        process_1: bool = False,
        **settings: object,
    ) -> Rank:
        """`process_1`: in a process namespace of its own, as in a container; needs root."""
        for name, text in (("run", run), ("setup", setup), ("files", files)):
            (self.root / "scripts" / name).write_text(text)
        defaults = entry_settings(self.root, self.host)
        own_namespace = (
            ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if process_1 else []
        )
        self.main = self.start("task", [*own_namespace, shell, ENTRY], **defaults | settings)
        return self

    def start(self, name: str, command: list, **variables: object) -> subprocess.Popen:
        env = os.environ | {"PYTHONPATH": str(SOURCE), "RUN_ID": "rl-1", "POD_NAME": "p-x"}
        env["ATTEMPT"] = self.attempt
        env |= {key: str(value) for key, value in variables.items()}
        with (self.root / name).open("w") as out:
            streams = {"stdout": out, "stderr": out, "start_new_session": True}
            words = [*map(str, command)]
            process = subprocess.Popen(words, env=env, cwd=self.root, **streams)
        self.processes.append(process)
        return process

    def output(self, name: str = "task") -> str:
        return (self.root / name).read_text(errors="replace")  # a program may print any bytes

    def until_output(self, text: str):
        until(
            lambda: text in self.output(),
            f"{self.host} prints {text!r}; it printed {self.output()}",
        )

    def wait(self) -> int:
        code = self.main.wait(PATIENCE_S)
        self.lose()
        return code

    def lose(self):
        """Remove the pod: its processes and its name."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # orphans, too
            process.wait()
        lines = self.group.names.read_text().splitlines()
        self.group.names.write_text(
            "".join(f"{line}\n" for line in lines if line.split()[1] != self.address)
        )


def codes(*ranks: Rank) -> list[int]:
    """With which they end."""
    return [rank.wait() for rank in ranks]


class Group:
    def __init__(self, folder: Path):
        self.folder = folder
        self.names, self.plan = folder / "names", folder / "group.json"
        self.names.touch()
        self.agent_settings: dict[str, object] = {}
        self.ranks: list[Rank] = []
        # All agents listen on one port, so each test uses different loopback addresses.
        self.network = f"127.{random.randrange(1, 255)}.{random.randrange(255)}"

    def set_key(self, key: bytes):
        """Give every pod that starts from now on the same key."""
        file = self.folder / "key"
        file.write_bytes(key)
        self.agent_settings["GPU_CHARTS_KEY_FILE"] = file

    def write_plan(
        self,
        tasks: dict[str, dict],
        timeout: float = 60,
        workload: str = "jobset",
        stop: bool = True,
    ):
        full = {
            name: {"numNodes": 1, "primary": True, "dependsOn": {}} | task
            for name, task in tasks.items()
        }
        failure = "stop" if stop else "continue"
        plan = {"domain": DOMAIN, "timeoutSeconds": timeout, "onFailure": failure}
        plan |= {"workload": workload, "tasks": full}
        self.plan.write_text(json.dumps(plan))

    def new_rank(self, host: str, attempt: str = "0") -> Rank:
        """A pod without running containers; the second one of a host replaces the first."""
        self.ranks.append(Rank(self, host, len(self.ranks) + 1, attempt))
        return self.ranks[-1]

    def start_rank(
        self, host: str, run: str = "true", attempt: str = "0", **settings: object
    ) -> Rank:
        return self.new_rank(host, attempt).publish_name().start_agent().start_task(run, **settings)
