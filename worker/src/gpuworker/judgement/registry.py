"""Registry of the checks: one file or folder each in accept/checks/, found by its presence.

What measures stands on this package and not the other way round, so the folder is known by name
only. Imports no torch.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

from gpuworker.judgement.check_spec import TAGS, Spec
from gpuworker.runtime.command_line import first_line

CHECKS = "gpuworker.accept.checks"


def load() -> dict[str, Spec]:
    """All checks by name, in the order in which they run."""
    found = []
    for module_info in pkgutil.iter_modules(importlib.import_module(CHECKS).__path__):
        module = importlib.import_module(f"{CHECKS}.{module_info.name}")
        functions = {
            name: getattr(module, name, None) for name in ("measure", "measure_world", "problems")
        }
        proves = first_line(module.__doc__).rstrip(".")
        its = {"name": module_info.name, "proves": proves, **functions}
        found.append(dataclasses.replace(module.SPEC, **its))
    found.sort(key=lambda check: (TAGS.index(check.tag), check.name))
    return {check.name: check for check in found}


def node_checks() -> dict[str, Spec]:
    """The checks of accept-node."""
    return {name: check for name, check in load().items() if check.seconds}


def world_checks() -> dict[str, Spec]:
    """The checks of ddp-tests. The search for bad nodes is the first: the others need a world
    that works.
    """
    found = {name: check for name, check in load().items() if check.across_nodes}
    return dict(sorted(found.items(), key=lambda item: item[0] != "bad_nodes"))
