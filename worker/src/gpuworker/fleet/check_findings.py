"""Findings of the checks of a report, on the node and device that they name."""

from __future__ import annotations

import re

from gpuworker.accept.report import INCOMPLETE, NODE, PASS, SKIP, WORLD
from gpuworker.fleet.fleet_report import Finding

# "rank 5 (node gpu-7, cuda:1)" or "rank 5", and "node 2 (gpu-7)" of the bad-node search
RANK = re.compile(r"\brank (\d{1,9})\b(?: \(node \S+, (cuda:\d+)\))?")
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
    return f"{report['world']['size']} rank{'s' * (report['world']['size'] != 1)} on {nodes}"


def check_findings(report: dict, check: dict) -> list[Finding]:
    """One finding per problem of a check and per place that it names: node and device, "" for a whole node or world.

    Without a list of problems, as in reports of version 2, the whole reason is one problem.
    """
    if check["verdict"] in (PASS, SKIP) and not check["problems"]:
        contradiction = f"{PASS} with a reason: {check['reason']}"
        passes = check["verdict"] == SKIP or not check["reason"]
        return [] if passes else [Finding(INCOMPLETE, contradiction, report["node"], "", check["name"], "coverage")]
    place = world_places if report["scope"] == WORLD else node_places
    reason = check["reason"] or "no reason given"
    if not check["problems"]:
        places = place(report, check, reason) if report["scope"] == WORLD else [(report["node"], "")]
        return [Finding(check["verdict"], reason, *where, check["name"], report["scope"]) for where in places]
    return [
        Finding(problem["verdict"], problem["reason"].removeprefix(f"{device}: "), node, device, check["name"],
                report["scope"])
        for problem in check["problems"]
        for node, device in place(report, check, problem["reason"])
    ]  # fmt: skip


def node_places(report: dict, check: dict, reason: str) -> list[tuple[str, str]]:
    """The node, with the device that the reason starts with."""
    device = reason.partition(": ")[0]
    return [(report["node"], device if device in {m["device"] for m in check["measurements"]} else "")]


def world_places(report: dict, check: dict, reason: str) -> list[tuple[str, str]]:
    """Node and device of every rank, and every node, that the reason names; the fleet if it names none."""
    node_of = {rank: each["node"] for each in report["world"]["nodes"] for rank in each["ranks"]}
    ranks = [(int(rank), device) for rank, device in RANK.findall(reason) if int(rank) in node_of]
    places = [(node_of[rank], device or f"rank {rank}") for rank, device in ranks]
    places += [(name, "") for name in NODE_NAME.findall(reason) if name in node_of.values()]
    return list(dict.fromkeys(places)) or [("", "")]
