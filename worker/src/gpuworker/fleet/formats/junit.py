"""The result as JUnit XML: a suite a node, a case a check, and a suite for what the fleet found."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from gpuworker.accept.report import FAIL, INCOMPLETE, PASS, SKIP
from gpuworker.fleet.fleet_report import Finding, Fleet, where

# JUnit knows failed and error: a FAIL is proven, an INCOMPLETE says that nobody knows.
KINDS = {FAIL: "failure", INCOMPLETE: "error"}
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(fleet: Fleet) -> str:
    """A WARN is a passed case with its reason in system-out; JUnit has no word for it."""
    root = ElementTree.Element("testsuites", name="gpu-accept")
    for node in fleet.nodes:
        cases = {name: [] for name in node.checks}
        for finding in fleet.findings:
            if finding.node == node.node:
                cases.setdefault(finding.check or finding.found_by, []).append(finding)
        _suite(root, node.node, cases, skipped={name for name, verdict in node.checks.items() if verdict == SKIP})
    reported = {node.node for node in fleet.nodes}
    rest = [finding for finding in fleet.findings if finding.node not in reported]
    _suite(root, "fleet", {"coverage": rest} if rest else {"coverage": []}, skipped=set())
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ElementTree.Element, name: str, cases: dict[str, list[Finding]], skipped: set[str]) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name=_clean(name))
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for case, findings in cases.items():
        element = ElementTree.SubElement(suite, "testcase", classname=_clean(name), name=_clean(case))
        counts["tests"] += 1
        verdicts = {finding.verdict for finding in findings}
        kind = next((verdict for verdict in (FAIL, INCOMPLETE) if verdict in verdicts), PASS)
        said = _clean("\n".join(f"{f.verdict} {where(f)}: {f.reason} [{f.found_by}]" for f in findings))
        if kind in KINDS:
            ElementTree.SubElement(element, KINDS[kind], message=said.partition("\n")[0]).text = said
            counts[f"{KINDS[kind]}s"] += 1
        elif case in skipped:
            ElementTree.SubElement(element, "skipped")
            counts["skipped"] += 1
        elif said:
            ElementTree.SubElement(element, "system-out").text = said
    suite.attrib.update({key: str(count) for key, count in counts.items()})


def _clean(text: str) -> str:
    return NOT_XML.sub("?", text)
