"""Random values that a chart accepts: the API server, with JobSet's and Kueue's webhooks, accepts
the objects.

VALUES_SETS sets per chart (`make values-server`: 3,334); VALUES_SEED chooses others.
"""

import json
import os
import random
import re

from tests.charts.test_charts_fuzz import outcome
from tests.helpers.kube import Namespace
from tests.helpers.processes import ran
from tests.helpers.rendering import each_chart, schema
from tests.helpers.values_fuzz import Values

SETS = int(os.environ.get("VALUES_SETS", "15"))
SEED = os.environ.get("VALUES_SEED", "1")
AT_ONCE = 50
# Rules between amounts, between mounts, and between the handlers of a probe that is merged with the
# chart's, of which the server's words are as clear as a chart's would be: they name the field and
# what is wrong. The check Job meets them before anything else exists.
AMOUNTS = re.compile(
    r"resources: Forbidden: HugePages require cpu or memory|must be (less than or )?equal to \S+ limit"
    r"|must be an integer|Limit must be set for non overcommitable resources"
    r"|is not positive integer multiple of hugepages-"
    r"|volumeMounts\[\d+\]: Duplicate value|mountPath: Invalid value: \S+: must be unique"
    r"|may not specify more than 1 handler type"
)
COMPLAINT = re.compile(r"\n|(?<![\w.])(?=(?:spec|metadata)\.\w)")  # begins with the path of a field
HEAD = re.compile(r"(^|is invalid:)[\s*[]*$")  # of a list of complaints


def refused(space: Namespace, texts: list[str]) -> str:
    """What the server says against these objects. A dry run stores nothing, so objects of one name
    do not meet.
    """
    said = ""
    for way in (["create"], ["apply", "--server-side", "--force-conflicts"]):
        command = [
            "kubectl",
            "--namespace",
            space.name,
            *way,
            "--dry-run=server",
            "--output=name",
            "-f",
            "-",
        ]
        done = ran(*command, input="\n---\n".join(texts), timeout=600)
        said += done.stderr if done.returncode else ""
    return said


def left_of(message: str) -> list[str]:
    """The complaints of a refusal that are not about amounts."""
    lines = "\n".join(line for line in message.splitlines() if not line.startswith("Warning: "))
    return [
        part
        for part in COMPLAINT.split(lines)
        if part.strip() and not HEAD.search(part) and not AMOUNTS.search(part)
    ]


@each_chart
def test_the_server_accepts_what_a_chart_renders(namespace, chart):
    drawn = Values(schema(chart), random.Random(f"{SEED} server {chart}"))
    rendered: list[tuple[dict, str]] = []
    for _ in range(SETS):
        values, text, _ = outcome(chart, drawn.draw())
        rendered += [(values, text)] if text else []
    assert len(rendered) >= SETS // 5
    wrong = []
    for start in range(0, len(rendered), AT_ONCE):
        some = rendered[start : start + AT_ONCE]
        if refused(namespace, [text for _, text in some]):
            each = [(values, refused(namespace, [text])) for values, text in some]
            wrong += [
                f"{json.dumps(values)}\n{left}"
                for values, message in each
                if (left := left_of(message))
            ]
    print(f"{chart}: {len(rendered)} of {SETS} sets rendered, {len(wrong)} refused by the server")
    assert not wrong, "\n".join(wrong)
