"""Simulation of the bad-node search: share of faults found, false accusations, rounds and tests needed.

python -m tests.scale.bad_node_search --nodes 512 --seeds 1000
"""

from __future__ import annotations

import argparse
import random
import statistics
from dataclasses import dataclass

from gpuworker.accept.checks.bad_nodes.findings import Findings, Group, Outcome
from gpuworker.accept.checks.bad_nodes.search_plan import BadNodeSearch
from gpuworker.runtime.command_line import escape_output, first_line

HEALTHY_GBPS, NOISE = 48.0, 0.05
SLOW, WRONG, HUNG = "slow", "wrong data", "timed out"


@dataclass
class Fabric:
    """Nodes and links with faults. The severity of a fault is the remaining share of the bandwidth, or a text."""

    bad_nodes: dict[int, float | str]
    bad_links: dict[Group, float | str]
    noise: random.Random
    hints: bool = False  # a test that completes reports which pairs stood out

    @classmethod
    def draw(cls, nodes: int, bad_nodes: int, bad_links: int, seed: int, hints: bool = False) -> Fabric:
        """Faults at random places; bad links join nodes that are good."""
        dice = random.Random(seed)
        places = dice.sample(range(nodes), bad_nodes)
        rest = sorted(set(range(nodes)) - set(places))
        links: set[Group] = set()
        while len(links) < bad_links:
            links.add(tuple(sorted(dice.sample(rest, 2))))
        nodes_and_links = ({place: _severity(dice) for place in places}, {link: _severity(dice) for link in links})
        return cls(*nodes_and_links, dice, hints)

    def test(self, group: Group) -> Outcome:
        """The slowest exchange within the group, ±5 %."""
        inside = set(group)
        found = [severity for node, severity in self.bad_nodes.items() if node in inside]
        found += [severity for link, severity in self.bad_links.items() if inside.issuperset(link)]
        if HUNG in found:
            return Outcome(0.0, HUNG)
        hints = tuple(link for link in self.bad_links if inside.issuperset(link)) if self.hints else ()
        if WRONG in found:
            return Outcome(HEALTHY_GBPS, WRONG, hints)
        slowest = HEALTHY_GBPS * min([1.0, *found]) * self.noise.uniform(1 - NOISE, 1 + NOISE)
        return Outcome(slowest, hints=hints)

    def is_named(self, findings: Findings) -> bool:
        """Whether the findings are exactly the faults."""
        return (
            set(findings.bad_nodes) == set(self.bad_nodes)
            and set(findings.bad_links) == set(self.bad_links)
            and not findings.undecided
            and not findings.unexplained
        )

    def false_accusations(self, findings: Findings) -> list[object]:
        """Healthy nodes and links that the findings name."""
        return [*(set(findings.bad_nodes) - set(self.bad_nodes)), *(set(findings.bad_links) - set(self.bad_links))]


def search(nodes: int, fabric: Fabric, **options: float) -> Findings:
    plan = BadNodeSearch(nodes, **options)
    while groups := plan.next_round():
        plan.record([fabric.test(group) for group in groups])
    return plan.findings


def _severity(dice: random.Random) -> float | str:
    """Remaining bandwidth of 5 % to 70 %, wrong data, or a timeout."""
    return dice.choice([dice.uniform(0.05, 0.7), dice.uniform(0.05, 0.7), WRONG, HUNG])


def table(nodes: int, seeds: int, hints: bool) -> list[dict[str, object]]:
    """One row per mix of faults: how often the findings were exact, and the rounds and tests needed."""
    rows = []
    for bad_nodes, bad_links in [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (0, 1), (0, 3), (1, 1), (5, 2)]:
        runs = []
        for seed in range(seeds):
            fabric = Fabric.draw(nodes, bad_nodes, bad_links, seed, hints)
            findings = search(nodes, fabric)
            runs.append((fabric.is_named(findings), findings.rounds, findings.tests))
        named, rounds, tests = zip(*runs, strict=True)
        rows.append({
            "bad nodes": bad_nodes,
            "bad links": bad_links,
            "named exactly": f"{sum(named)} of {seeds}",
            "rounds (median, most)": f"{statistics.median(rounds):g}, {max(rounds)}",
            "tests (median, most)": f"{statistics.median(tests):g}, {max(tests)}",
        })  # fmt: skip
    return rows


def main() -> None:
    escape_output()
    parser = argparse.ArgumentParser(prog="bad_node_search", description=first_line(__doc__))
    parser.add_argument("--nodes", type=int, default=512)
    parser.add_argument("--seeds", type=int, default=1000, help="random worlds for each mix of faults")
    parser.add_argument("--hints", action="store_true", help="tests report which pairs stood out")
    args = parser.parse_args()
    rows = table(args.nodes, args.seeds, args.hints)
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(map(str, row.values())) + " |")


if __name__ == "__main__":
    main()
