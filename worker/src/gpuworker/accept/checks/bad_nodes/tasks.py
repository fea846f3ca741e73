"""Tasks of the bad-node search: generators that request group tests, and functions on groups of nodes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator

from gpuworker.accept.checks.bad_nodes.findings import Group, Outcome

# A task yields groups to test, in any rounds, and is sent their outcomes in the same order.
Task = Generator[list[Group], list[Outcome], None]


class RunningTask:
    """A task and the groups whose outcomes it waits for."""

    def __init__(self, task: Task) -> None:
        self.task, self.groups, self.outcomes = task, [], None

    def resume(self) -> bool:
        """Run the task to its next request; False if it is done."""
        answers = (
            None
            if self.outcomes is None
            else [self.outcomes[index] for index in range(len(self.groups))]
        )
        try:
            self.groups = self.task.send(answers)
        except StopIteration:
            return False
        self.outcomes: dict[int, Outcome] = {}
        return True

    def open(self) -> list[tuple[int, Group]]:
        return [
            (index, group) for index, group in enumerate(self.groups) if index not in self.outcomes
        ]


def group_of(*nodes: int) -> Group:
    return tuple(sorted(nodes))


def halves(group: Group) -> tuple[Group, Group]:
    middle = (len(group) + 1) // 2
    return group[:middle], group[middle:]


def without_singles(groups: list[list[int]]) -> list[Group]:
    """Merge a last group of one node into the group before it: a node alone tests nothing."""
    if len(groups[-1]) == 1:
        groups = [*groups[:-2], groups[-2] + groups[-1]]
    return [group_of(*group) for group in groups]


def upper_median(values: list[float]) -> float:
    """The median of the better quarter: correct while an eighth of the groups is healthy, and
    not an outlier.
    """
    best = sorted(values, reverse=True)[: math.ceil(len(values) / 4)]
    return statistics.median_high(best) if best else 0.0
