"""Names for gpu-accept, so that a misspelt one is refused: checks and faults in its schema, others
in a template.
"""

from __future__ import annotations

import json
import sys

from hack.paths import REPO

sys.path.insert(0, str(REPO / "worker/src"))
from gpuworker.accept import fault_injection
from gpuworker.accept.checks.environment import VERSIONS
from gpuworker.fleet.expected import known_limits
from gpuworker.judgement import registry


def definitions() -> dict[str, dict]:
    faults = [fault.id for fault in fault_injection.known_faults(registry.node_checks())]
    return {
        "checkName": {"enum": list(registry.node_checks())},
        "faultName": {"description": "Fault to inject", "enum": ["", *faults]},
    }


def helm() -> str:
    """The template gpu-accept.names: names by the value whose keys they are. No message of a schema
    would list them.
    """
    names = {"limits": sorted(known_limits()), "expect": list(VERSIONS)}
    comment = "{{/* Generated from the checks by `make generate`. */}}"
    return (
        f'{comment}\n{{{{- define "gpu-accept.names" -}}}}\n{json.dumps(names)}\n{{{{- end }}}}\n'
    )
