"""What is known about a group before it starts, and what its ranks learn from each other while it runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """One task: its ranks' hosts, whether the group is done without it, and what it waits for (task -> state)."""

    name: str
    hosts: tuple[str, ...]
    primary: bool = True
    depends_on: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """The group as the chart wrote it. `stop`: a failed primary ends the others; `jobs`: nobody else would end them."""

    domain: str
    timeout_s: float
    stop: bool
    jobs: bool
    tasks: dict[str, Task]

    @staticmethod
    def load(path: Path) -> Plan:
        data = json.loads(path.read_text())
        tasks = {
            name: Task(
                name,
                tuple(f"{name}-{rank}" for rank in range(task["numNodes"])),
                task["primary"],
                task.get("dependsOn") or {},
            )
            for name, task in data["tasks"].items()
        }
        stop, jobs = data["onFailure"] == "stop", data["layout"] == "jobs"
        return Plan(data["domain"], data["timeoutSeconds"], stop, jobs, tasks)

    @property
    def hosts(self) -> list[str]:
        return [host for task in self.tasks.values() for host in task.hosts]

    @property
    def primaries(self) -> list[str]:
        return [host for task in self.tasks.values() if task.primary for host in task.hosts]

    def task_of(self, host: str) -> Task:
        return next(task for task in self.tasks.values() if host in task.hosts)


@dataclass
class Facts:
    """Things that, once true in one attempt of a group, stay true; so ranks may tell each other in any order."""

    released: bool = False
    started: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    failed: dict[str, int] = field(default_factory=dict)  # host -> exit code

    def merge(self, data: dict, hosts: list[str]) -> None:
        """Add what `data` says about `hosts`. Raises KeyError, TypeError or ValueError if it is not facts at all."""
        self.released |= data["released"] is True
        self.started |= set(data["started"]) & set(hosts)
        self.done |= set(data["done"]) & set(hosts)
        self.failed |= {host: int(code) for host, code in data["failed"].items() if host in hosts}

    def data(self) -> dict:
        return {
            "released": self.released,
            "started": sorted(self.started),
            "done": sorted(self.done),
            "failed": dict(self.failed),
        }

    def waiting_for(self, task: Task, plan: Plan) -> dict[str, str]:
        """What `task` still waits for, without `ready`, which only DNS knows."""
        seen = {"started": self.started | self.done, "done": self.done}
        return {
            name: state
            for name, state in task.depends_on.items()
            if state in seen and not set(plan.tasks[name].hosts) <= seen[state]
        }

    def verdict(self, host: str, plan: Plan) -> str | None:
        """Why this rank must end now: "done" (the group succeeded), "failed RANK CODE"; None if it need not."""
        primaries = set(plan.primaries)
        failed = {name: code for name, code in self.failed.items() if name in primaries and name != host}
        needed = set(plan.task_of(host).depends_on)
        lost = next((name for name in self.failed if plan.task_of(name).name in needed), None)
        over = primaries <= self.done | self.failed.keys()
        if failed and ((plan.stop and plan.jobs) or over):
            return "failed {} {}".format(*next(iter(failed.items())))
        if lost and host not in self.started:  # what it waits for will never come
            return f"failed {lost} {self.failed[lost]}"
        if over and host not in primaries:
            return "done"
        if over and self.failed:
            return "failed {} {}".format(*next(iter(self.failed.items())))
        return None
