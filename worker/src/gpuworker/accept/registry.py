"""Registry of the checks: one file or folder each in accept/checks/, found by its presence.
Imports no torch.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil

from gpuworker.accept import checks
from gpuworker.accept.check_spec import TAGS, Plan, Spec
from gpuworker.judgement.report import Evidence
from gpuworker.runtime.command_line import first_line


def load() -> dict[str, Spec]:
    """All checks by name, in the order in which they run."""
    found = []
    for module_info in pkgutil.iter_modules(checks.__path__):
        module = importlib.import_module(f"{checks.__name__}.{module_info.name}")
        functions = {
            name: getattr(module, name, None) for name in ("measure", "measure_world", "problems")
        }
        if module.SPEC.ranks:
            ranks = f"{checks.__name__}.{module.SPEC.ranks}"
            functions["measure"] = functools.partial(_here, ranks)
            if module.SPEC.across_nodes:
                functions["measure_world"] = functools.partial(_across, ranks)
        proves = first_line(module.__doc__).rstrip(".")
        its = {"name": module_info.name, "proves": proves, **functions}
        found.append(dataclasses.replace(module.SPEC, **its))
    found.sort(key=lambda check: (TAGS.index(check.tag), check.name))
    return {check.name: check for check in found}


def _here(module: str, plan: Plan) -> Evidence:
    """Run a check of ranks, whose module needs torch, on this node."""
    from gpuworker.accept.distributed import local_world

    ranks = importlib.import_module(module)
    return ranks.evidence(local_world.run(plan, ranks.run, plan=plan), plan, 1)


def _across(module: str, context, plan: Plan) -> Evidence:
    """The same on the ranks of many nodes. Its evidence is that of rank 0."""
    ranks = importlib.import_module(module)
    results = context.gather(module, ranks.run(context, plan))
    return ranks.evidence(results, plan, context.nodes) if results else Evidence()


def node_checks() -> dict[str, Spec]:
    """The checks of accept-node."""
    return {name: check for name, check in load().items() if check.measure}


def world_checks() -> dict[str, Spec]:
    """The checks of ddp-tests. The search for bad nodes is the first: the others need a world
    that works.
    """
    found = {name: check for name, check in load().items() if check.measure_world}
    return dict(sorted(found.items(), key=lambda item: item[0] != "bad_nodes"))
