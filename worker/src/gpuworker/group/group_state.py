"""Plan of a group, and the state that its ranks share while it runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """One task: the hosts of its ranks, whether the group needs its success, and its
    dependencies (task -> state).
    """

    name: str
    hosts: tuple[str, ...]
    primary: bool = True
    depends_on: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupPlan:
    """The group as the chart wrote it to group.json.

    `stop_on_failure`: a failed primary task ends the others. `plain_jobs`: the agents do that,
    because no JobSet does.
    """

    domain: str
    join_timeout_s: float
    stop_on_failure: bool
    plain_jobs: bool
    tasks: dict[str, Task]

    @staticmethod
    def load(path: Path) -> GroupPlan:
        data = json.loads(path.read_text())
        tasks = {}
        for name, task in data["tasks"].items():
            hosts = tuple(f"{name}-{rank}" for rank in range(task["numNodes"]))
            tasks[name] = Task(name, hosts, task["primary"], task.get("dependsOn") or {})
        stop, plain_jobs = data["onFailure"] == "stop", data["workload"] == "jobs"
        return GroupPlan(data["domain"], data["timeoutSeconds"], stop, plain_jobs, tasks)

    @property
    def line_limit(self) -> int:
        """Bytes of the longest message: every host four times, once with an exit code, and the
        other fields.
        """
        return 4096 + 4 * sum(len(host) + 8 for host in self.hosts)

    @property
    def hosts(self) -> list[str]:
        return [host for task in self.tasks.values() for host in task.hosts]

    @property
    def primaries(self) -> list[str]:
        return [host for task in self.tasks.values() if task.primary for host in task.hosts]

    def task_of(self, host: str) -> Task:
        return next(task for task in self.tasks.values() if host in task.hosts)


@dataclass
class GroupState:
    """State of one attempt of a group. Nothing in it is ever taken back, so states merge in any
    order.

    `released`: every rank has joined. `started` and `done` are hosts, `failed` maps a host to its
    exit code.
    """

    released: bool = False
    started: list = field(default_factory=list)
    done: list = field(default_factory=list)
    failed: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ValueError, so that no part of an invalid state is ever merged."""
        for host in [*self.started, *self.done]:
            if not isinstance(host, str):
                raise ValueError("a host is not a text")
        for code in self.failed.values():
            if type(code) is not int or not 0 < code < 256:
                raise ValueError("an exit code is not a number from 1 to 255")

    def merge(self, other: GroupState, hosts: list[str]) -> None:
        """Add what `other` has of `hosts`."""
        self.released |= other.released
        self.started = sorted({*self.started, *(set(other.started) & set(hosts))})
        self.done = sorted({*self.done, *(set(other.done) & set(hosts))})
        self.failed = self.failed | {
            host: code for host, code in other.failed.items() if host in hosts
        }

    def pending_dependencies(self, task: Task, plan: GroupPlan) -> dict[str, str]:
        """Dependencies of `task` that are not met. The state `ready` is left out, because only
        DNS shows it.
        """
        reached = {"started": {*self.started, *self.done}, "done": set(self.done)}
        return {
            name: state
            for name, state in task.depends_on.items()
            if state in reached and not set(plan.tasks[name].hosts) <= reached[state]
        }

    def after_setup(self, task: Task) -> str | None:
        """Answer to a rank whose `setup` has succeeded: "run", or "fail RANK"; None while
        another one is in its own.
        """
        missing = set(task.hosts) - {*self.started, *self.done}
        failed = sorted(missing & self.failed.keys())
        return f"fail {failed[0]}" if failed else None if missing else "run"

    def end_reason(self, host: str, plan: GroupPlan) -> str | None:
        """Why the rank `host` must end: "done" (the group succeeded) or "failed RANK CODE"; None
        if it must not.
        """
        primaries = set(plan.primaries)
        failed = {
            name: code for name, code in self.failed.items() if name in primaries and name != host
        }
        needed = set(plan.task_of(host).depends_on)
        lost = next((name for name in self.failed if plan.task_of(name).name in needed), None)
        over = primaries <= {*self.done, *self.failed}
        if failed and ((plan.stop_on_failure and plan.plain_jobs) or over):
            return "failed {} {}".format(*next(iter(failed.items())))
        if lost and host not in self.started:  # the dependency will never be met
            return f"failed {lost} {self.failed[lost]}"
        if over and host not in primaries:
            return "done"
        if over and self.failed:
            return "failed {} {}".format(*next(iter(self.failed.items())))
        return None
