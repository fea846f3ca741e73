"""A terminal as SVG: a command and what it printed, for the pages."""

import re
import textwrap
from html import escape

COLUMNS, STEP, LETTER = 108, 20, 8.0
STYLE = """\
  <style>
    .window { fill: #1d2733 }
    text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #e6eaef; white-space: pre }
    .command { fill: #9fb4cc } .bad { fill: #ff8a84; font-weight: 700 } .good { fill: #8fd6a8 }
  </style>
"""


def picture(title: str, command: str, printed: str, marks: dict[str, str]) -> str:
    """The SVG; `marks` are regular expressions of words and their class, bad or good."""
    rows = [f'<tspan class="command">$ {escape(command)}</tspan>']
    for line in printed.splitlines():
        indent = "    " + " " * (len(line) - len(line.lstrip()))
        parts = textwrap.wrap(line, COLUMNS, subsequent_indent=indent, break_on_hyphens=False)
        rows += [_marked(escape(part, quote=False), marks) for part in parts or [""]]
    width, height = int(COLUMNS * LETTER) + 32, len(rows) * STEP + 24
    lines = [
        f'  <text x="16" y="{28 + STEP * number}">{row}</text>\n' for number, row in enumerate(rows)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
        f"  <title>{escape(title)}</title>\n{STYLE}"
        f'  <rect class="window" width="{width}" height="{height}" rx="8"/>\n{"".join(lines)}</svg>\n'
    )


def _marked(text: str, marks: dict[str, str]) -> str:
    for pattern, kind in marks.items():
        text = re.sub(pattern, rf'<tspan class="{kind}">\g<0></tspan>', text)
    return text
