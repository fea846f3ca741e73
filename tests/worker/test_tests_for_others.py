"""Files of gitops/nvsentinel, by stand-ins of those who use them, written from their public
designs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpuworker.fleet.marks import CONDITION, UNFIT
from gpuworker.judgement.report import EXIT_CODES, FAIL, INCOMPLETE, PASS, WARN
from tests.helpers.processes import environment

REPO = Path(__file__).resolve().parents[2]
FILES = REPO / "gitops/nvsentinel"
VALUES = yaml.safe_load((FILES / "validation.yaml").read_text())
CONFIG = VALUES["lifecycle-manager"]["config"]
JOB, CRON_JOB = yaml.safe_load_all((FILES / "job.yaml").read_text())


def phase(codes: list[int], retries: int) -> str:
    """Of a validation whose Jobs, with backoffLimit 0, end with these codes, one per try."""
    for code in codes[: retries + 1]:
        if code == 0:  # the Job has the condition Complete
            return "Succeeded"
    return "Failed"


@pytest.mark.parametrize(("verdict", "wanted"), [(PASS, "Succeeded"), (WARN, "Succeeded"), (FAIL, "Failed"),
                                                 (INCOMPLETE, "Failed")])  # fmt: skip
def test_only_a_pass_gives_the_node_back_and_a_second_try_does_not(
    verdict: str, wanted: str
) -> None:
    retries = CONFIG["providers"]["k8s-job-provider"]["retries"]
    assert phase([EXIT_CODES[verdict], 0], retries) == wanted


@pytest.mark.parametrize("command", [CONFIG["tests"]["gpu-accept"]["command"],
                                     JOB["spec"]["template"]["spec"]["containers"][0]["command"]])  # fmt: skip
def test_the_command_fails_where_nothing_could_be_tested(
    command: list[str], tmp_path: Path
) -> None:
    """This machine has no GPU: INCOMPLETE."""
    program, *arguments = command
    assert program == "accept-node"
    arguments = [each.replace("/tmp/reports", str(tmp_path)) for each in arguments]
    variables = environment(CUDA_VISIBLE_DEVICES="", TERMINATION_LOG=tmp_path / "log")
    done = subprocess.run(
        [sys.executable, "-m", "gpuworker.accept.accept_node", *arguments],
        env=variables, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == EXIT_CODES[report["verdict"]] and done.returncode in (1, 3), (
        done.stderr
    )


def test_the_names_are_those_that_the_page_writes() -> None:
    (policy,) = VALUES["kubernetes-object-monitor"]["policies"]
    expression = policy["predicate"]["expression"]
    assert f'"{CONDITION}"' in expression and '"False"' in expression
    rule = yaml.safe_load((FILES / "node-readiness-rule.yaml").read_text())["spec"]
    assert rule["conditions"] == [{"type": CONDITION, "requiredStatus": "True"}]
    for job in (JOB["spec"], CRON_JOB["spec"]["jobTemplate"]["spec"]):
        pod = job["template"]["spec"]
        assert job["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"
        assert {each["key"] for each in pod["tolerations"]} >= {
            UNFIT,
            "node.kubernetes.io/unschedulable",
        }


@pytest.mark.parametrize(("code", "drained"), [(0, False), (72, True), (3, False), (2, False)])
def test_slurm_drains_a_node_for_a_proven_fault_only(
    code: int, drained: bool, tmp_path: Path
) -> None:
    program = tmp_path / "accept-node"
    program.write_text(
        f'#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $NUM_GPUS_PER_NODE $*" > {tmp_path}/seen\nexit {code}\n'
    )
    program.chmod(0o755)
    script = (FILES / "slurm-prolog.sh").read_text().replace("PATH=", f"PATH={tmp_path}:")
    done = subprocess.run(
        ["sh", "-c", script], env={"SLURM_JOB_GPUS": "2,5,7", "SLURM_JOB_ID": "9"}, timeout=30
    )
    assert bool(done.returncode) is drained
    assert (tmp_path / "seen").read_text().startswith("2,5,7 3 --level prolog")


def test_slurm_tests_nothing_for_a_job_without_gpus() -> None:
    assert (
        subprocess.run(
            ["sh", FILES / "slurm-prolog.sh"], env={"SLURM_JOB_ID": "9"}, timeout=30
        ).returncode
        == 0
    )
