"""The fleet report as JUnit XML: one suite per node and per world, one case per check, and one
suite for the fleet.
"""

from __future__ import annotations

import re
from collections import defaultdict
from xml.etree import ElementTree

from gpuworker.fleet.fleet_report import Finding, Fleet, part_of
from gpuworker.judgement.report import FAIL, INCOMPLETE, PASS, SKIP

# JUnit has failure and error: FAIL is a proven fault, INCOMPLETE is missing evidence.
ELEMENTS = {FAIL: "failure", INCOMPLETE: "error"}
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(fleet: Fleet) -> str:
    """JUnit XML. A WARN is a passed case with its reason in system-out, since JUnit has no
    warnings.
    """
    root = ElementTree.Element("testsuites", name="gpu-accept")
    by_node = defaultdict(list)
    for finding in fleet.findings:
        by_node[finding.node].append(finding)
    for node in fleet.nodes:
        cases = {name: [] for name in node.checks}
        for finding in by_node[node.node]:
            cases.setdefault(finding.check or finding.found_by, []).append(finding)
        _suite(
            root,
            node.node,
            cases,
            skipped={name for name, verdict in node.checks.items() if verdict == SKIP},
        )
    for world in fleet.worlds:
        cases = {name: [f for f in world.findings if f.check == name] for name in world.checks}
        _suite(
            root,
            world.name,
            cases,
            skipped={name for name, verdict in world.checks.items() if verdict == SKIP},
        )
    reported = {node.node for node in fleet.nodes}
    rest = [
        each for each in fleet.findings if each.node not in reported and each.found_by != "world"
    ]
    _suite(root, "fleet", {"coverage": rest}, skipped=set())
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(
    root: ElementTree.Element, name: str, cases: dict[str, list[Finding]], skipped: set[str]
) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name=_clean(name))
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for case, findings in cases.items():
        element = ElementTree.SubElement(
            suite, "testcase", classname=_clean(name), name=_clean(case)
        )
        counts["tests"] += 1
        verdicts = {finding.verdict for finding in findings}
        kind = next((verdict for verdict in (FAIL, INCOMPLETE) if verdict in verdicts), PASS)
        text = _clean(
            "\n".join(f"{f.verdict} {part_of(f)}: {f.reason} [{f.found_by}]" for f in findings)
        )
        if kind in ELEMENTS:
            ElementTree.SubElement(
                element, ELEMENTS[kind], message=text.partition("\n")[0]
            ).text = text
            counts[f"{ELEMENTS[kind]}s"] += 1
        elif case in skipped:
            ElementTree.SubElement(element, "skipped")
            counts["skipped"] += 1
        elif text:
            ElementTree.SubElement(element, "system-out").text = text
    suite.attrib.update({key: str(count) for key, count in counts.items()})


def _clean(text: str) -> str:
    return NOT_XML.sub("?", text)
