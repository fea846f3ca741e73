"""Registry of the checks: one file or folder each in accept/checks/, found by its presence.
Imports no torch.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

from gpuworker.accept import checks
from gpuworker.accept.check_spec import LEVELS, RUNNER_FAULTS, TAGS, Registered, Spec
from gpuworker.runtime.command_line import first_line


def load() -> dict[str, Registered]:
    """All checks by name, in the order in which they run.

    Raises ValueError for a file that is not a check, and for a fault id that two checks use.
    """
    found = []
    for module_info in pkgutil.iter_modules(checks.__path__):
        module = importlib.import_module(f"{checks.__name__}.{module_info.name}")
        spec = getattr(module, "SPEC", None)
        measure, measure_world = (
            getattr(module, name, None) for name in ("measure", "measure_world")
        )
        described = module.__doc__ or sys.flags.optimize > 1  # python -OO removes docstrings
        if (
            not isinstance(spec, Spec)
            or not described
            or not (callable(measure) or callable(measure_world))
        ):
            raise ValueError(
                f"{module.__file__}: a check needs a docstring, SPEC = Spec(…) and measure(plan)"
            )
        if (
            spec.tag not in TAGS
            or bool(spec.seconds) != callable(measure)
            or set(spec.seconds) - set(LEVELS)
        ):
            raise ValueError(
                f"{module.__file__}: tag must be one of {TAGS}, seconds need levels of {LEVELS}"
            )
        if bool(spec.across_nodes) != callable(measure_world):
            raise ValueError(
                f"{module.__file__}: measure_world(context, plan) and SPEC.across_nodes need each other"
            )
        proves = first_line(module.__doc__).rstrip(".")
        problems = getattr(module, "problems", None)
        found.append(Registered(module_info.name, proves, spec, measure, measure_world, problems))
    owners = dict.fromkeys(RUNNER_FAULTS, "the runner")
    for check in found:
        for fault in check.spec.faults:
            if (owner := owners.setdefault(fault, check.name)) != check.name:
                raise ValueError(
                    f"the fault {fault} belongs to {owner} and to {check.name}: rename one"
                )
    return {
        check.name: check for check in sorted(found, key=lambda c: (TAGS.index(c.spec.tag), c.name))
    }


def node_checks() -> dict[str, Registered]:
    """The checks of accept-node."""
    return {name: check for name, check in load().items() if check.measure}


def world_checks() -> dict[str, Registered]:
    """The checks of ddp-tests. The search for bad nodes is the first: the others need a world
    that works.
    """
    found = {name: check for name, check in load().items() if check.measure_world}
    return dict(sorted(found.items(), key=lambda item: item[0] != "bad_nodes"))
