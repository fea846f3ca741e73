"""accept-node as a pod runs it: one report, one verdict, one exit code, once a run."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import jsonschema
import pytest

from gpuworker.accept import accept_node, checks

# Python 3.12 and newer warn of fork in a process with threads, which pytest-xdist makes of this
# one.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "report.schema.json").read_text())
CHECK = '''"""{proves}."""

from gpuworker.judgement.check_spec import Measure, Spec
from gpuworker.judgement.report import Evidence, Measurement

MEASURES = {{"speed": Measure("GB/s", "that it runs")}}
SPEC = Spec("STORAGE", {{"quick": 1, "burn-in": 3}}, MEASURES, {{"{name}-fault": "slow"}})


def measure(plan):
    {body}
    return Evidence([Measurement("speed", 5.0, "GB/s", name) for name in plan.devices], {{"seconds": plan.seconds}})
'''


@pytest.fixture
def accept(monkeypatch, tmp_path, termination_log):
    """Runs accept-node in this process; gives the exit code and the report, checked against its
    schema.
    """
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("NODE_NAME", "gpu-12")

    def run(*arguments: object) -> tuple[int, dict]:
        monkeypatch.setattr(
            sys, "argv", ["accept-node", "--report-dir", str(tmp_path), *map(str, arguments)]
        )
        with pytest.raises(SystemExit) as end:
            accept_node.main()
        return end.value.code, published(tmp_path)

    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def add_check(monkeypatch, tmp_path):
    """Adds a check the way anybody does: as one file."""
    folder = tmp_path / "more-checks"
    folder.mkdir()
    monkeypatch.setattr(checks, "__path__", [*checks.__path__, str(folder)])

    def write(name: str, body: str = "pass", proves: str = "A new check runs") -> None:
        (folder / f"{name}.py").write_text(CHECK.format(name=name, body=body, proves=proves))

    yield write
    for path in folder.glob("*.py"):
        sys.modules.pop(f"{checks.__name__}.{path.stem}", None)


def published(folder: Path) -> dict:
    report = json.loads((folder / "report.json").read_text())
    jsonschema.Draft7Validator(SCHEMA).validate(report)
    return report


def by_name(report: dict) -> dict[str, dict]:
    return {check["name"]: check for check in report["checks"]}


def test_a_rehearsal_passes_and_says_so_everywhere(start, tmp_path, termination_log):
    """In a process of its own, as in a pod: the only test that must not share torch with others."""
    program = start(
        "-m", "gpuworker.accept.accept_node", "--device", "cpu", "--report-dir", tmp_path, "--check", "compute",
        "--check", "environment", NODE_NAME="gpu-12",
    )  # fmt: skip
    assert program.wait() == 0, program.output
    report = published(tmp_path)
    assert (report["verdict"], report["reason"], report["node"], report["run_id"]) == (
        "PASS",
        "",
        "gpu-12",
        "1",
    )
    asked = {"device": "cpu", "gpus": 0, "level": "quick", "checks": ["compute", "environment"]}
    assert report["requested"] == {**asked, "limits": {}, "inject": ""}
    assert list(by_name(report)) == ["environment", "compute"]
    assert report["facts"]["torch"] and report["facts"]["kernel"]
    lines = program.stdout.read_text().splitlines()
    said = [re.match(r"\[(\w+)\]( node=gpu-12 )?", line)[1] for line in lines]
    assert said == ["ENV", "COMPUTE", "RESULT"]
    words = termination_log.read_text()
    assert words.startswith("PASS (CPU rehearsal; ") and "gemm_fp32 cpu " in words


def test_a_run_with_a_report_is_not_run_again_and_a_new_run_is(accept, add_check, tmp_path, capsys):
    add_check("simple")
    one = ("--device", "cpu", "--check", "simple")
    code, report = accept(*one, "--limit", "speed=6")
    assert code == 1
    assert report["reason"] == "simple: cpu: speed 5 GB/s is below the limit of 6 (limits.speed)"
    assert report["requested"]["limits"] == {"speed": 6}

    capsys.readouterr()
    assert accept(*one) == (1, report), (
        "Kubernetes starts an init container again after a reboot: the verdict stands"
    )
    assert "this run has a report already" in capsys.readouterr().out
    assert accept(*one, "--exit-zero") == (0, report)

    code, report = accept(*one, "--run-id", "2", "--limit", "speed=4")
    assert (code, report["verdict"], report["run_id"]) == (0, "PASS", "2")


@pytest.mark.parametrize(
    "other",
    [("--device", "cuda", "--gpus", "8"), ("--check", "second")],
)
def test_a_report_of_another_request_is_not_taken_for_this_one(accept, add_check, capsys, other):
    """The id of a run is 1 by default, and a folder may hold the report of a rehearsal."""
    add_check("simple")
    add_check("second")
    one = ("--device", "cpu", "--check", "simple")
    assert accept(*one)[0] == 0
    assert accept(*one, *other)[0] == 2
    assert "is a report of run 1 with " in capsys.readouterr().err


def test_a_node_without_its_gpus_says_so_at_once(accept):
    code, report = accept("--device", "cuda", "--gpus", 2, "--exit-zero")
    assert code == 0, "--exit-zero says that there is a report"
    assert report["verdict"] in ("FAIL", "INCOMPLETE")
    assert "0 of 2 GPUs seen" in report["reason"]
    assert set(report["verdicts"].values()) <= {"FAIL", "INCOMPLETE"}
    assert set(by_name(report)) == {"environment"}, (
        "products on GPUs that are not there tell nothing"
    )


def test_a_sigterm_writes_what_is_there(accept, add_check):
    add_check("stopped", f"import os, time; os.kill({os.getpid()}, 15); time.sleep(600)")
    add_check("untouched")
    code, report = accept(
        "--device", "cpu", "--check", "stopped", "--check", "untouched", "--check", "environment"
    )
    assert (code, report["verdict"]) == (3, "INCOMPLETE")
    assert report["verdicts"]["environment"] in ("PASS", "WARN")
    assert report["reason"] == "stopped: stopped by SIGTERM; untouched: not run: stopped by SIGTERM"


def test_a_broken_torch_is_a_finding(accept, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    code, report = accept("--device", "cpu")
    assert (code, report["verdict"]) == (3, "INCOMPLETE")
    assert report["reason"].startswith("runner: ModuleNotFoundError: ")
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "code"), [([], 3), (["--exit-zero"], 0)])
def test_a_start_after_a_killed_one_is_incomplete(accept, tmp_path, termination_log, options, code):
    (tmp_path / "started").write_text("7")
    (tmp_path / "report.json").write_text("")  # cut off: no report
    assert accept("--device", "cpu", "--run-id", "7", *options)[0] == code
    report = published(tmp_path)
    assert report["verdict"] == "INCOMPLETE"
    assert report["reason"] == "start: an earlier attempt of this run was killed (out of memory?)"
    assert termination_log.read_text().startswith(
        "INCOMPLETE (CPU rehearsal): start: an earlier attempt"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda"], "--gpus, the number of GPUs"),
        ([], "--gpus, the number of GPUs"),
        (["--device", "cpu", "--gpus", "2"], "is for --device cuda"),
        (["--device", "cpu", "--check", "compute_"], "--check compute_: .*known: .*compute"),
        (["--device", "cpu", "--inject", "gremlin"], "--inject gremlin: .*hung-check"),
        (["--device", "cpu", "--limit", "gemm_fp3=1"], "--limit gemm_fp3: .*known: .*gemm_fp32"),
        (["--device", "cpu", "--limit", "gemm_fp32=fast"], "write it as KEY=NUMBER"),
        (["--device", "cpu", "--volume", "outputs=/none"], "--volume outputs=/none: "),
        (["--device", "cpu", "--expect", "driver"], "write it as NAME=VALUE"),
        (["--device", "cpu", "--expect", "drivers=570"], "--expect drivers: .*known: .*driver"),
    ],
)  # fmt: skip
def test_wrong_usage_is_refused_before_anything_runs(
    monkeypatch, capsys, tmp_path, arguments, message
):
    monkeypatch.setattr(sys, "argv", ["accept-node", "--report-dir", str(tmp_path), *arguments])
    with pytest.raises(SystemExit) as end:
        accept_node.main()
    assert end.value.code == 2
    assert re.search(message.replace("?", r"\?"), capsys.readouterr().err)
    assert not list(tmp_path.iterdir())
