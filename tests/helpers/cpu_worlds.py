"""Plans for tests of single checks on the present devices, and the verdict on a check's evidence."""

import torch

from gpuworker.accept import check_process
from gpuworker.judgement import registry
from gpuworker.judgement.check_spec import Plan, Spec
from gpuworker.judgement.limits import Limits
from gpuworker.judgement.report import Evidence
from gpuworker.judgement.verdict import Check, judge_check

GPUS = torch.cuda.device_count()
# The same tests run on GPUs where present. Comparisons of devices need two of them.
PLANS = {"cpu": Plan("cpu", 0, seconds=1)} | (
    {"cuda": Plan("cuda", GPUS, seconds=4)} if GPUS else {}
)


def verdict_on(check, evidence: Evidence, plan: Plan) -> Check:
    """The verdict of a check's module on its evidence, without limits of any model."""
    return judge_check(registered(check), evidence, Limits(), plan)


def measured(check, plan: Plan) -> Evidence:
    """The evidence of a check's module, with what its facts show."""
    evidence = check_process.measure(registered(check), plan)
    if registered(check).problems:
        registered(check).problems(evidence, plan)
    return evidence


def registered(check) -> Spec:
    return registry.load()[check.__name__.rpartition(".")[2]]
