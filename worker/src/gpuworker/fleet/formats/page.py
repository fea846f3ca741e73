"""The page of a fleet: one static document whose script, page.js, shows the JSON of its report.

Served, the script asks the collector for report.json; a saved page has the JSON in it. Names from
reports are only ever text nodes, no other script or style runs, and nothing else is loaded.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from gpuworker.judgement.fleet_report import Fleet, json_text

HERE = Path(__file__).parent
STYLE = (HERE / "page.css").read_text(encoding="utf-8")
SCRIPT = (HERE / "page.js").read_text(encoding="utf-8")


def hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; style-src {hash_of(STYLE)}; script-src {hash_of(SCRIPT)}; "
    "connect-src 'self'"
)


def page(fleet: Fleet) -> str:
    """The page as a file, with its data and their SHA-256."""
    data = json_text(fleet)
    return document(data.replace("<", "\\u003c"), hashlib.sha256(data.encode()).hexdigest())


def document(data: str = "", digest: str = "") -> str:
    """What stands still; the script fills the rest. `data`: of a saved page."""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>GPU acceptance</title>
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body><header>
<h1><a href="#">GPU acceptance</a></h1><span id="name" class="dim"></span>
<input id="q" type="search" autocapitalize="none" aria-label="Search"
 placeholder="Search node, rack, serial, FAIL …">
<nav aria-label="Views"><a href="#">Causes</a><a id="measures" href="#">Measurements</a>
<a href="#certificate=1">Certificate</a></nav>
<nav id="files" aria-label="Downloads"><a href="page.html" download="page.html">This page</a>
<a href="report.json">JSON</a><a href="reports">Reports</a></nav>
<p id="status" role="status" class="dim"></p>
</header>
<main id="main"></main>
<script type="application/json" data-sha256="{digest}" id="data">{data}</script>
<script>{SCRIPT}</script></body></html>
"""


SERVED = document()
