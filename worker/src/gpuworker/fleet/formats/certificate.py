"""The certificate: one document to print and sign, with every GPU that was accepted."""

from __future__ import annotations

import hashlib
from html import escape

from gpuworker.fleet.fleet_report import Fleet, describe_coverage, json_pieces
from gpuworker.fleet.formats.page import document
from gpuworker.judgement.report import FAIL, INCOMPLETE, PASS, WARN

SYMBOLS = {PASS: "✓", WARN: "!", FAIL: "✗", INCOMPLETE: "?"}


def certificate(fleet: Fleet) -> str:
    """Names what was tested and how it ended. A rehearsal, or a fleet with faults, is not
    accepted.
    """
    accepted = fleet.verdict in (PASS, WARN) and not fleet.rehearsal
    title = "Accepted" if accepted else "Not accepted"
    facts = [
        ("Verdict", f"{SYMBOLS[fleet.verdict]} {fleet.verdict}"),
        ("Reason", fleet.reason or "all passed"),
    ]
    facts += [("Coverage", describe_coverage(fleet))]
    for name, values in (
        ("Run", {node.run_id for node in fleet.nodes}),
        ("Level", {node.level for node in fleet.nodes}),
        ("Checks", {name for node in fleet.nodes for name in node.checks}),
        ("GPU models", {model for node in fleet.nodes for model in node.models}),
    ):
        facts.append((name, ", ".join(sorted(values)) or "none"))
    if fleet.nodes:
        times = [node.started for node in fleet.nodes]
        facts.append(("Tested", f"{min(times)} to {max(times)}"))
    facts.append(("SHA-256 of report.json", _digest(fleet)))
    about = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts)
    rows = "".join(
        f'<tr><th scope="row">{escape(node.node)}</th><td class="{node.verdict}">{node.verdict}</td>'
        f"<td>{node.gpus_seen} of {node.gpus_expected}</td>"
        f"<td>{escape(', '.join(gpu.serial or gpu.uuid for gpu in node.gpus))}</td></tr>"
        for node in fleet.nodes
    )
    rows += "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="INCOMPLETE">INCOMPLETE</td><td>no report</td><td></td></tr>'
        for name in fleet.coverage.missing
    )
    header = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("Node", "Verdict", "GPUs", "Serial or UUID of each GPU")
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in fleet.notes)
    body = (
        f'<main><h1>GPU acceptance: {title}</h1><dl>{about}</dl>{notes}<table class="fit">'
        f"<thead><tr>{header}</tr></thead><tbody>{rows}"
        '</tbody></table><p class="sign"><span>Date</span><span>Name</span><span>Signature</span></p></main>'
    )
    return document(f"GPU acceptance: {title}", body)


def _digest(fleet: Fleet) -> str:
    digest = hashlib.sha256()
    for piece in json_pieces(fleet):
        digest.update(piece.encode())
    return digest.hexdigest()
