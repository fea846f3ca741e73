"""Registry of the checks: one file or folder each in accept/checks/, found by its presence.
Imports no torch.
"""

from __future__ import annotations

import importlib
import pkgutil

from gpuworker.accept import checks
from gpuworker.accept.check_spec import TAGS, Registered
from gpuworker.runtime.command_line import first_line


def load() -> dict[str, Registered]:
    """All checks by name, in the order in which they run."""
    found = []
    for module_info in pkgutil.iter_modules(checks.__path__):
        module = importlib.import_module(f"{checks.__name__}.{module_info.name}")
        proves = first_line(module.__doc__).rstrip(".")
        names = ("measure", "measure_world", "problems")
        functions = (getattr(module, name, None) for name in names)
        found.append(Registered(module_info.name, proves, module.SPEC, *functions))
    found.sort(key=lambda check: (TAGS.index(check.spec.tag), check.name))
    return {check.name: check for check in found}


def node_checks() -> dict[str, Registered]:
    """The checks of accept-node."""
    return {name: check for name, check in load().items() if check.measure}


def world_checks() -> dict[str, Registered]:
    """The checks of ddp-tests. The search for bad nodes is the first: the others need a world
    that works.
    """
    found = {name: check for name, check in load().items() if check.measure_world}
    return dict(sorted(found.items(), key=lambda item: item[0] != "bad_nodes"))
