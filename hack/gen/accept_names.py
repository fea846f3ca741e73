"""Names for the schema of gpu-accept: checks, limits, versions and faults, so that a misspelt one is refused."""

from __future__ import annotations

import sys

from hack.paths import REPO

sys.path.insert(0, str(REPO / "worker/src"))
from gpuworker.accept import fault_injection, registry
from gpuworker.accept.checks import environment
from gpuworker.accept.rejudge import known_checks, known_limits


def definitions() -> dict[str, dict]:
    faults = [fault.id for fault in fault_injection.known_faults(registry.node_checks())]
    return {
        "checkName": {"enum": known_checks()},
        "limitName": {"enum": sorted(known_limits())},
        "versionName": {"enum": list(environment.VERSIONS)},
        "faultName": {"description": "Fault to inject", "enum": ["", *faults]},
    }
