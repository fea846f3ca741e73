"""Findings of reports of scope "world": the nodes and devices that cross-node checks name."""

from __future__ import annotations

import re

from gpuworker.accept.report import NODE, PASS, SKIP
from gpuworker.fleet.fleet_report import Finding

# "rank 5 (node gpu-7, cuda:1)" or "rank 5", and "node 2 (gpu-7)" of the bad-node search
RANK = re.compile(r"\brank (\d+)(?: \(node \S+, ([^\s)]+)\))?")
NODE_NAME = re.compile(r"\bnode \d+ \(([^\s)]+)\)")


def subject(report: dict) -> str:
    """The node of a report; all nodes and checks of a report of scope "world". The newest report per subject counts."""
    if report["scope"] == NODE:
        return report["node"]
    nodes = " ".join(each["node"] for each in report["world"]["nodes"])
    return f"{nodes}: {' '.join(check['name'] for check in report['checks'])}"


def world_name(report: dict) -> str:
    """A short name of the world for people."""
    names = [each["node"] for each in report["world"]["nodes"]]
    nodes = f"{len(names)} nodes ({names[0]} … {names[-1]})" if len(names) > 2 else " and ".join(names)
    return f"{report['world']['size']} ranks on {nodes}"


def findings_by_place(report: dict, check: dict) -> list[Finding]:
    """One finding per problem of a check and per place that it names; about the fleet if it names none."""
    node_of = {rank: each["node"] for each in report["world"]["nodes"] for rank in each["ranks"]}
    problems = check["problems"] or [{"verdict": check["verdict"], "reason": check["reason"] or "no reason given"}]
    found = []
    for problem in problems if check["verdict"] not in (PASS, SKIP) else ():
        ranks = [(int(rank), device) for rank, device in RANK.findall(problem["reason"]) if int(rank) in node_of]
        places = [(node_of[rank], device or f"rank {rank}") for rank, device in ranks]
        places += [(name, "") for name in NODE_NAME.findall(problem["reason"]) if name in node_of.values()]
        for node, device in dict.fromkeys(places) or [("", "")]:
            found.append(Finding(problem["verdict"], problem["reason"], node, device, check["name"], "world"))
    return found
