"""Files and parts of files generated from the contract table,
worker/src/gpuworker/runtime/contract.py.
"""

from __future__ import annotations

import json
import re
import sys

from hack.gen import pod_schema, programs
from hack.paths import REPO

sys.path.insert(0, str(REPO / "worker/src"))
from gpuworker.runtime import contract

SOURCE = "Generated from worker/src/gpuworker/runtime/contract.py by `make generate`."


def helm(chart: str) -> str:
    """The template CHART.contract: JSON, to be read with fromJson, which takes a tenth of the time
    of fromYaml.
    """
    groups = chart == "job-group"
    reserved = contract.reserved_names(groups=groups)
    variables = [
        each for each in contract.VARIABLES if chart in each.charts or len(each.charts) > 1
    ]
    table = {
        "exitCodes": {code.name: code.value for code in contract.ExitCode},
        "ports": {
            "rendezvous": contract.RENDEZVOUS_PORT,
            "launcherOffset": contract.LAUNCHER_PORT_OFFSET,
            "groupAgent": contract.GROUP_AGENT_PORT,
            "report": contract.REPORT_PORT,
        },
        "limits": {
            "name": contract.NAME_LIMIT,
            "podSets": contract.KUEUE_POD_SETS,
        },
        "longestName": contract.LONGEST_NAME,
        "reservedMounts": contract.RESERVED_MOUNTS,
        "programs": programs.CHARTS[chart],
        "keyFile": contract.KEY_FILE,
        "mergeKeys": pod_schema.merge_keys(),
        "internalPrefix": contract.INTERNAL_PREFIX,
        "user": contract.USER_NAME,
        "agreesWith": {each.name: each.agrees_with for each in variables if each.agrees_with},
        "accepts": {each.name: list(each.accepts) for each in variables if each.accepts[0]},
        "reserved": {name: instead(name, chart) for name in reserved},
    }
    text = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in table.items())
    return f'{{{{/* {SOURCE} */}}}}\n{{{{- define "{chart}.contract" -}}}}\n{{{text}}}\n{{{{- end }}}}\n'


def instead(name: str, chart: str) -> str:
    """Path of the value to set in place of a reserved variable; empty if no value may change it."""
    variables = {each.name: each for each in contract.VARIABLES}
    variable = variables.get(name)
    if variable is None or not variable.agrees_with:
        return variable.instead.get(chart, "") if variable else ""
    if variables[variable.agrees_with].override is contract.Override.FOLLOWED:
        return f"ENV.{variable.agrees_with}"
    return instead(variable.agrees_with, chart)


def filled(schema: str) -> str:
    """Text of a schema with the contract's constants in place of $NAME."""
    return re.sub(
        r"(?<= )\$([A-Z_]+)$",
        lambda found: str(getattr(contract, found[1])),
        schema,
        flags=re.MULTILINE,
    )


def reserved_pattern() -> str:
    """Regular expression of the names that a group's variables and secrets must not have."""
    return f"({contract.INTERNAL_PREFIX}|({'|'.join(contract.reserved_names(groups=True))})$)"


def jobgen() -> str:
    """The module jobgen/contract.py."""
    given = {each.name: each.accepts for each in contract.VARIABLES if each.accepts[0]}
    accepts = "\n".join(
        f'    "{name}": (\n        "{words}",\n        r"{pattern}",\n    ),'
        for name, (words, pattern) in given.items()
    )
    return f'''"""Facts that jobgen shares with the chart job-group.

{SOURCE}
"""

VERSION = "{contract.VERSION}"
VALUES_SCHEMA_VERSION = {contract.VALUES_SCHEMA_VERSION}
NAME_LIMIT = {contract.NAME_LIMIT}
KUEUE_POD_SETS = {contract.KUEUE_POD_SETS}
LONGEST_NAME = "{contract.LONGEST_NAME}"  # group, task, rank
FILES_LIMIT_BYTES = {contract.FILES_LIMIT_BYTES:_}
DELAY_LIMIT_SECONDS = {contract.DELAY_LIMIT_SECONDS:_}
# Variables that a task may set, in words and as a pattern.
ACCEPTS = {{
{accepts}
}}
SHARED_MEMORY_MOUNT = "{contract.SHARED_MEMORY_MOUNT}"  # a podTemplate may replace it
RESERVED_MOUNTS = ({", ".join(f'"{path}"' for path in contract.RESERVED_MOUNTS)})
'''


def chart(name: str) -> str:
    """Chart.yaml with the version of the project."""
    text = (REPO / f"charts/{name}/Chart.yaml").read_text()
    return re.sub(r"(?m)^(version|appVersion): .*$", rf"\g<1>: {contract.VERSION}", text)
