"""ddp-tests under torchrun: the all-reduce, checks across nodes, exit codes."""

import json
from pathlib import Path

import jsonschema
import pytest

pytestmark = pytest.mark.slow
DYING = """
import os, time
from gpuworker.accept import ddp_tests
from gpuworker.accept.checks.correctness import ddp_reference

ddp_reference.run = lambda context, plan: os._exit(9) if context.rank else time.sleep(600)
ddp_tests.main()
"""
SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "report.schema.json").read_text())


def test_a_wrong_element_on_one_rank_fails_every_rank(start, tmp_path):
    """By the all-reduce, in every round, and not only on the rank that sees it."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    options = (
        "--device",
        "cpu",
        "--report-dir",
        tmp_path,
        "--numel",
        "1000",
        "--inject",
        "wrong-element",
    )
    program = start(*torchrun, "-m", "gpuworker.accept.ddp_tests", *options)
    assert program.wait() == 1, program.output
    assert "exitcode  : 3" in program.output, "torchrun gives 1 for any of them"
    result = json.loads((tmp_path / "ddp_tests_result.json").read_text())
    assert (result["wrong_iters"], result["ok"]) == (5, False)
    assert program.output.count("ok=false") == 2, "every rank fails"


def test_checks_across_nodes_write_one_report(start, tmp_path):
    """One fault among them: the storage is good, the collectives are not, and the program fails."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    named = ("--collectives", "--stragglers", "--correctness", "--bad-nodes", "--storage", tmp_path)
    options = (
        "--device",
        "cpu",
        "--report-dir",
        tmp_path,
        "--inject",
        "wrong-element",
        "--inject-rank",
        "0",
    )
    log = tmp_path / "termination-log"
    log.touch()
    variables = {"NODE_NAME": "node-a", "POD_NAME": "run-0", "RUN_ID": "7", "TERMINATION_LOG": log}
    program = start(*torchrun, "-m", "gpuworker.accept.ddp_tests", *named, *options, **variables)
    assert program.wait() == 1, program.output
    report = json.loads((tmp_path / "report-world.json").read_text())
    jsonschema.validate(report, SCHEMA)
    assert report["verdicts"] == {
        "bad_nodes": "PASS", "collectives": "FAIL", "correctness": "PASS", "stragglers": "PASS", "storage": "PASS"
    }  # fmt: skip
    assert (report["scope"], report["verdict"], report["requested"]["inject"]) == (
        "world",
        "FAIL",
        "wrong-element",
    )
    assert report["world"] == {"size": 2, "nodes": [{"node": "node-a", "ranks": [0, 1]}]}
    assert (report["node"], report["pod"], report["run_id"]) == ("node-a", "run-0", "7")
    assert "rank 0 (node node-a, cpu)" in report["reason"]
    assert "check=collectives verdict=FAIL" in program.output
    assert log.read_text().startswith(
        "FAIL (CPU rehearsal; wrong-element injected): collectives: rank 0 (node node-a"
    )
    assert not (tmp_path / "ddp_tests_result.json").exists(), "checks run instead of the all-reduce"


def test_a_rank_that_dies_leaves_an_incomplete_report(start, tmp_path):
    (tmp_path / "dying.py").write_text(DYING)
    torchrun = (
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        tmp_path / "dying.py",
    )
    program = start(
        *torchrun, "--device", "cpu", "--report-dir", tmp_path, "--bad-nodes", "--correctness"
    )
    assert program.wait() == 1, program.output
    report = json.loads((tmp_path / "report-world.json").read_text())
    jsonschema.validate(report, SCHEMA)
    assert [*report["verdicts"].values()] == ["PASS", "INCOMPLETE"], report["reason"]
