"""accept-node --level prolog: a short test with one line, one exit code, and a bound of time."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from gpuworker.accept import accept_node, checks, cli, prolog
from gpuworker.accept.checks import environment
from gpuworker.judgement import registry
from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.judge import judge
from gpuworker.judgement.kinds import KINDS
from gpuworker.judgement.reading import report_of
from gpuworker.judgement.report import Evidence, Measurement, Report, Requested
from gpuworker.runtime import gpu_inventory
from tests.helpers import gpu_node
from tests.helpers.processes import until

# Python 3.12 and newer warn of fork in a process with threads, which pytest-xdist makes of this
# one.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
LINE = re.compile(r"node=gpu-12 gpu=(\S+) act=(\S+|\".*?\") kind=(\S+)")
CHECK = '''"""It runs."""

from gpuworker.judgement.check_spec import Measure, Spec
from gpuworker.judgement.report import Evidence

SPEC = Spec("STORAGE", {{"prolog": 1}}, {{"speed": Measure("GB/s", "that it runs")}}, prolog=("speed",))


def measure(plan):
    {body}
    found = Evidence()
    found.add_number("speed", 5.0, "GB/s", "cpu")
    return found
'''


@pytest.fixture
def accept(monkeypatch, tmp_path, termination_log):
    """Runs a prolog on the CPU in this process; gives exit code and termination message."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("NODE_NAME", "gpu-12")
    monkeypatch.setenv("NUM_GPUS_PER_NODE", "0")

    def run(*arguments: object) -> tuple[int, str]:
        options = ["--level", "prolog", "--report-dir", str(tmp_path), *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", ["accept-node", *options])
        with pytest.raises(SystemExit) as end:
            accept_node.main()
        return end.value.code, termination_log.read_text()

    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def only(monkeypatch, tmp_path):
    """Makes one check with this body the only one of the level."""
    folder = tmp_path / "checks"
    folder.mkdir()

    def write(body: str = "pass") -> None:
        sys.modules.pop(f"{checks.__name__}.simple", None)
        (folder / "simple.py").write_text(CHECK.format(body=body))
        monkeypatch.setattr(checks, "__path__", [str(folder)])

    yield write
    sys.modules.pop(f"{checks.__name__}.simple", None)


def report(folder: Path) -> Report:
    return report_of(json.loads((folder / "report.json").read_text()))


@pytest.mark.slow
def test_a_healthy_node_passes_with_evidence_of_every_part(accept, tmp_path):
    code, message = accept()
    assert code == 0 and message.startswith("PASS (CPU rehearsal)")
    found = {
        check.name: {number.name for number in check.measurements}
        for check in report(tmp_path).checks
    }
    assert found == {
        "environment": set(), "compute": {"gemm_bf16"}, "memory": {"memory_copy"},
        "links": {"link_h2d", "link_d2h"}, "repeatability": {"repeats"},
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("lost-gpu", "gpu-lost"),
        ("ecc-error", "ecc"),
        ("nan-product", "wrong-product"),
        ("slow-gpu", "slow"),
        ("slow-memory", "slow"),
        ("slow-host-link", "slow"),
        ("odd-device", "wrong-bits"),
        ("flipped-bit-repeat", "wrong-bits"),
        ("crashed-check", "check-failed"),
    ],
)
def test_an_injected_fault_is_found_and_named(accept, tmp_path, fault, kind):
    code, message = accept("--inject", fault)
    device, act, found = LINE.match(message).groups()
    assert (code, found) == (72, kind), message
    assert act != "-" and (device.startswith("cpu") or kind == "check-failed"), message
    assert not (tmp_path / "passed.json").exists()


@pytest.mark.slow
def test_a_report_of_an_unfit_node_blocks_nobody_and_is_kept(accept):
    code, message = accept("--inject", "nan-product", "--exit-zero")
    assert code == 0 and LINE.match(message)[3] == "wrong-product"


def test_a_check_that_hangs_is_ended_in_time_and_no_pass(accept, only, monkeypatch, tmp_path):
    monkeypatch.setitem(prolog.DEADLINE_S, "cpu", 4.0)
    only("import time; time.sleep(600)")
    begin = time.monotonic()
    code, message = accept()
    assert time.monotonic() - begin < 10
    assert (code, LINE.match(message)[3]) == (72, "check-failed")
    assert {check.name for check in report(tmp_path).checks} >= {"simple"}


def test_all_takes_at_most_15_s_on_gpus():
    assert prolog.DEADLINE_S["cuda"] + prolog.KILL_S <= 15
    stated = [check.seconds.get("prolog", 0) for check in registry.node_checks().values()]
    assert 0 < sum(stated) <= prolog.DEADLINE_S["cuda"]


DRIVER_HANGS = """
import multiprocessing.process, os
from gpuworker.accept import accept_node, prolog
prolog.DEADLINE_S["cpu"] = 2.0
os.killpg = lambda *_: None
multiprocessing.process.BaseProcess.kill = lambda _: None
accept_node.main()
"""


def test_a_child_that_cannot_be_killed_is_left_and_the_node_is_unfit_by_that(
    start, tmp_path, termination_log
):
    options = ("--level", "prolog", "--report-dir", tmp_path, "--inject", "hung-check")
    program = start("-c", DRIVER_HANGS, *options, NUM_GPUS_PER_NODE=0, NODE_NAME="gpu-12")
    code = program.wait(60)
    message = termination_log.read_text()
    os.kill(int(re.search(r"process (\d+) cannot be killed", message)[1]), signal.SIGKILL)
    assert (code, LINE.match(message)[2], LINE.match(message)[3]) == (72, "reboot", "driver-hangs")


def test_a_pod_that_is_stopped_is_not_unfit(accept, only):
    only(f"import os, time; os.kill({os.getpid()}, 15); time.sleep(600)")
    assert accept()[0] == 143


# -- what has passed is not tested again


def test_what_passed_less_than_an_hour_ago_is_not_tested_again(accept, only, tmp_path):
    only(f"open({str(tmp_path / 'runs')!r}, 'a').write('x')")
    assert [accept()[0], accept()[0]] == [0, 0]
    assert (tmp_path / "runs").read_text() == "x"


@pytest.mark.parametrize("what", ["boot", "gpus", "age", "future", "damaged"])
def test_another_boot_or_gpu_or_an_hour_is_tested_again(accept, only, tmp_path, what):
    only(f"open({str(tmp_path / 'runs')!r}, 'a').write('x')")
    accept()
    file = tmp_path / "passed.json"
    known = json.loads(file.read_text())
    known["at"] += {"age": -3601, "future": 3600}.get(what, 0)
    known["of"] |= {what: "other"} if what in known["of"] else {}
    file.write_text("{" if what == "damaged" else json.dumps(known))
    assert accept()[0] == 0
    assert (tmp_path / "runs").read_text() == "xx"


def test_a_failure_and_an_injected_fault_are_never_remembered(accept, only, tmp_path):
    only("raise ValueError")
    assert accept()[0] == 72
    only()
    assert accept("--inject", "port-errors")[0] == 0  # a warning
    assert not (tmp_path / "passed.json").exists()


def test_what_passed_is_forgotten_after_a_failure(accept, only, tmp_path):
    only()
    assert accept()[0] == 0 and (tmp_path / "passed.json").exists()
    only("raise ValueError")
    assert accept("--check", "simple")[0] == 72
    assert not (tmp_path / "passed.json").exists()


def test_gpus_are_known_by_their_uuids(monkeypatch, tmp_path):
    gpu_node.install(monkeypatch, {}, {})
    listed = gpu_inventory.inventory()[1]
    known = {
        "of": prolog.identity([vars(gpu) for gpu in listed]),
        "at": time.clock_gettime(time.CLOCK_BOOTTIME),
    }
    file = tmp_path / "passed.json"
    file.write_text(json.dumps(known))
    assert prolog.is_known(Plan("cuda", 2), file)
    assert not prolog.is_known(Plan("cuda", 1), file)
    file.write_text(json.dumps(known).replace(listed[0].driver, "1.0"))
    assert not prolog.is_known(Plan("cuda", 2), file)
    file.write_text(json.dumps(known))
    gpu_node.install(monkeypatch, {}, {"uuid": "GPU-other"})
    assert not prolog.is_known(Plan("cuda", 2), file)
    monkeypatch.setenv(gpu_inventory.GIVEN, listed[0].uuid)
    assert not prolog.is_known(Plan("cuda", 1), file), "a part of what passed has another key"


# -- only the GPUs that are given


@pytest.mark.parametrize(
    ("variables", "options", "device", "gpus"),
    [
        ({"NUM_GPUS_PER_NODE": "8"}, [], "cuda", 8),
        ({"NUM_GPUS_PER_NODE": "0"}, [], "cpu", 0),
        ({"NUM_GPUS_PER_NODE": "8"}, ["--gpus", "4"], "cuda", 4),
        ({gpu_inventory.GIVEN: "GPU-a,GPU-b"}, [], "cuda", 2),
        ({gpu_inventory.GIVEN: "GPU-a,GPU-b", "NUM_GPUS_PER_NODE": "8"}, [], "cuda", 2),
    ],
)
def test_the_environment_of_a_run_says_which_gpus(monkeypatch, variables, options, device, gpus):
    for name in ("NUM_GPUS_PER_NODE", "CUDA_VISIBLE_DEVICES", gpu_inventory.GIVEN):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["accept-node", "--level", "prolog", *options])
    args = cli.parse(registry.node_checks(), "")
    assert (args.device, args.gpus) == (device, gpus)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == variables.get(gpu_inventory.GIVEN)


def test_without_gpus_that_somebody_names_nothing_is_tested(accept, monkeypatch, capsys):
    monkeypatch.delenv("NUM_GPUS_PER_NODE")
    assert accept()[0] == 2


def test_the_faults_of_other_gpus_of_the_node_are_not_this_tests(monkeypatch):
    gpu_node.install(monkeypatch, {}, {"uncorrected": 3}, seen=1)
    uuids = [gpu.uuid for gpu in gpu_inventory.inventory()[1]]

    def kinds() -> set[str]:
        plan = Plan("cuda", 1)
        found = environment.measure(plan)
        environment.problems(found, plan)
        return {problem.kind for problem in found.problems}

    assert "ecc" in kinds()
    monkeypatch.setenv(gpu_inventory.GIVEN, uuids[0])
    assert "ecc" not in kinds()


# -- compared with what the node was accepted with


def accepted_of(values: dict[str, tuple[float, str]]) -> Report:
    """A report of GPUs in this order: UUID -> rate of the product and bits."""
    order = {f"cuda:{index}": uuid for index, uuid in enumerate(values)}
    gpus = [{"device": device, "uuid": uuid} for device, uuid in order.items()]
    compute, repeats = (
        Evidence(name="compute"),
        Evidence(name="repeatability", facts={"hash_group": {}}),
    )
    for device, uuid in order.items():
        compute.measurements.append(Measurement("gemm_bf16", values[uuid][0], "TFLOP/s", device))
        repeats.hashes[f"fp32 {device}"] = values[uuid][1]
        repeats.facts["hash_group"][device] = "H100 | driver 570"
    checks_ = [Evidence(name="environment", facts={"gpus": gpus}), compute, repeats]
    asked = Requested("cuda", len(values), "prolog")
    return Report("n", "n", "1", asked, "2026-01-01T00:00:00+00:00", checks_)


BEFORE = {"GPU-a": (700.0, "a" * 64), "GPU-b": (600.0, "b" * 64)}


@pytest.mark.parametrize(
    ("now", "found"),
    [
        ({"GPU-b": (600.0, "b" * 64)}, []),
        ({"GPU-b": (530.0, "b" * 64)}, [("WARN", "baseline")]),
        ({"GPU-b": (470.0, "b" * 64)}, [("FAIL", "baseline")]),
        ({"GPU-b": (900.0, "b" * 64)}, []),
        ({"GPU-b": (600.0, "a" * 64)}, [("FAIL", "wrong-bits")]),
        ({"GPU-c": (600.0, "b" * 64)}, [("WARN", "missing")]),
    ],
)
def test_a_gpu_is_compared_with_its_own_numbers_whatever_its_index_is(tmp_path, now, found):
    file = tmp_path / "accepted.json"
    file.write_text(json.dumps(asdict(accepted_of(BEFORE))))
    entry = prolog.compared(accepted_of(now), file)
    assert [(each.verdict, each.kind) for each in entry.problems] == found
    report = accepted_of(now)
    report.checks = [entry]
    assert not found or prolog.unfit(judge(report))["kind"] in KINDS


@pytest.mark.parametrize("text", ["", "{", '{"node": 1}'])
def test_a_file_that_cannot_be_read_is_a_warning(tmp_path, text):
    file = tmp_path / "accepted.json"
    file.write_text(text)
    entry = prolog.compared(accepted_of(BEFORE), file)
    assert [(each.verdict, each.kind) for each in entry.problems] == [("WARN", "unreadable")]


def test_the_comparison_is_a_part_of_the_verdict(accept, only, tmp_path):
    file = tmp_path / "accepted.json"
    file.write_text("{")
    only()
    code, message = accept("--accepted", file)
    assert code == 0 and message.startswith("WARN") and "accepted" in message


def test_the_child_ends_with_its_parent_killed_by_its_deadline(accept, only, monkeypatch, tmp_path):
    """What a check started does not outlive the test: the program would find its GPU taken."""
    pid = tmp_path / "pid"
    monkeypatch.setitem(prolog.DEADLINE_S, "cpu", 4.0)
    only(
        "import subprocess; p = subprocess.Popen(['sleep', '600']); "
        f"open({str(pid)!r}, 'w').write(str(p.pid)); p.wait()"
    )
    assert accept()[0] == 72
    until(
        lambda: not Path(f"/proc/{pid.read_text()}").exists() or "Z" in state(pid.read_text()),
        "sleep has ended",
        20,
    )


def state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
