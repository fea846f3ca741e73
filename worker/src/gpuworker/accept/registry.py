"""Registry of the checks: one file or folder each in accept/checks/, found by its presence.
Imports no torch.
"""

from __future__ import annotations

import importlib
import pkgutil

from gpuworker.accept import checks
from gpuworker.accept.check_spec import TAGS, Plan, Registered
from gpuworker.judgement.report import Evidence
from gpuworker.runtime.command_line import first_line


def load() -> dict[str, Registered]:
    """All checks by name, in the order in which they run."""
    found = []
    for module_info in pkgutil.iter_modules(checks.__path__):
        module = importlib.import_module(f"{checks.__name__}.{module_info.name}")
        proves, spec = first_line(module.__doc__).rstrip("."), module.SPEC
        here = getattr(module, "measure", None)
        across = getattr(module, "measure_world", None)
        if spec.ranks:
            ranks = OfRanks(module_info.name, f"{checks.__name__}.{spec.ranks}")
            here, across = ranks.here, ranks.across if spec.across_nodes else None
        problems = getattr(module, "problems", None)
        found.append(Registered(module_info.name, proves, spec, here, across, problems))
    found.sort(key=lambda check: (TAGS.index(check.spec.tag), check.name))
    return {check.name: check for check in found}


class OfRanks:
    """The measuring of a check whose module runs on every rank, and needs torch."""

    def __init__(self, name: str, module: str) -> None:
        self.name, self.module = name, module

    def here(self, plan: Plan) -> Evidence:
        from gpuworker.accept.distributed import local_world

        ranks = importlib.import_module(self.module)
        return ranks.evidence(local_world.run(plan, ranks.run, plan=plan), plan, 1)

    def across(self, context, plan: Plan) -> Evidence:
        ranks = importlib.import_module(self.module)
        results = context.gather(self.name, ranks.run(context, plan))
        return ranks.evidence(results, plan, context.nodes) if results else Evidence()


def node_checks() -> dict[str, Registered]:
    """The checks of accept-node."""
    return {name: check for name, check in load().items() if check.measure}


def world_checks() -> dict[str, Registered]:
    """The checks of ddp-tests. The search for bad nodes is the first: the others need a world
    that works.
    """
    found = {name: check for name, check in load().items() if check.measure_world}
    return dict(sorted(found.items(), key=lambda item: item[0] != "bad_nodes"))
