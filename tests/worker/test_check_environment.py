"""The environment check names missing GPUs, unhealthy GPUs and wrong versions."""

import platform

import pytest
import torch

from gpuworker.accept import host_info
from gpuworker.accept.checks import environment
from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.kinds import RETEST
from gpuworker.judgement.verdict import Check
from tests.helpers import gpu_node
from tests.helpers.cpu_worlds import PLANS, measured, verdict_on
from tests.helpers.evidence import failures, kinds, not_measured, verbs


@pytest.fixture
def node(monkeypatch):
    """node(GPU, …, seen=N): a node with these GPUs in its driver, of which torch sees N."""

    def make(*gpus: dict, seen: int | None = None) -> None:
        gpu_node.install(monkeypatch, *gpus, seen=seen)

    return make


def found(gpus: int, **more) -> Check:
    plan = Plan("cuda", gpus, **more)
    check = verdict_on(environment, environment.measure(plan), plan)
    return check


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_this_machine_is_as_it_says(plan):
    evidence = measured(environment, plan)
    assert failures(evidence) == not_measured(evidence) == []
    assert evidence.facts["gpus_seen"] == evidence.facts["gpus_expected"] == plan.gpus
    assert evidence.facts["torch"] == torch.__version__ and evidence.facts["cpus"] > 0
    assert evidence.facts["memory_bytes"] > 1 << 30


def test_a_healthy_node_passes(node):
    node({}, {})
    assert found(2).verdict == "PASS"


@pytest.mark.parametrize(
    ("name", "value"),
    [("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50"), ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps")],
)
def test_a_gpu_that_mps_shares_is_a_warning(node, monkeypatch, name, value):
    node({}, {})
    monkeypatch.setenv(name, value)
    check = found(2)
    verdict, reason = check.verdict, check.reason
    assert verdict == "WARN" and "MPS" in reason
    assert RETEST in verbs(check)


def test_no_gpu_at_all_is_no_verdict_on_gpus(node):
    node(seen=0)
    check = found(8)
    verdict, reason = check.verdict, check.reason
    assert (verdict, "torch sees no GPU, 8 expected" in reason) == ("INCOMPLETE", True)


def test_an_error_of_cuda_keeps_what_nvml_reports(node, monkeypatch):
    """A lost GPU, or a fabric manager that does not run, breaks CUDA on the whole node."""
    node({}, {"lost": True}, {"uncorrected": 2})

    def broken(_):
        raise RuntimeError(
            "Unexpected error from cudaGetDeviceCount(). CUDA error 802: system not yet initialized"
        )

    monkeypatch.setattr(torch.cuda, "get_device_name", broken)
    check = found(3)
    verdict, reason = check.verdict, check.reason
    assert verdict == "FAIL"
    for words in ("GPU is lost", "2 uncorrectable memory errors", "error 802", "fabric manager"):
        assert words in reason
    assert environment.measure(Plan("cuda", 3)).facts["driver"] == "570.86.15"


def test_seven_of_eight_fails_and_names_the_one_that_is_not_there(node, monkeypatch):
    node(*[{}] * 7)
    monkeypatch.setattr(
        host_info, "nvidia_devices", lambda: [f"0000:{index}b:00.0" for index in range(8)]
    )
    check = found(8)
    verdict, reason = check.verdict, check.reason
    assert verdict == "FAIL"
    assert (
        "torch sees 7 GPUs, 8 expected; on the PCI bus but not shown to this pod: 0000:7b:00.0"
        in reason
    )
    assert [p.parts for p in check.problems if p.kind == "gpus-missing"] == [["GPU 0000:7b:00.0"]]


def test_with_mig_the_number_of_gpus_is_no_verdict_on_them(node):
    """CUDA shows one instance to a process, however many the pod has."""
    node({"mig": [1, 1]})
    check = found(7)
    verdict, reason = check.verdict, check.reason
    assert verdict == "INCOMPLETE"
    assert (
        "MIG is on: CUDA shows one instance to a process" in reason
        and "torch sees 1 GPU, 7 expected" in reason
    )
    assert RETEST in verbs(check)


@pytest.mark.parametrize(
    ("expect", "verdict", "words"),
    [
        ({"driver": "570.86"}, "PASS", ""),
        ({"driver": "570.86.15"}, "PASS", ""),
        ({"driver": "570.8"}, "FAIL", "driver is 570.86.15, 570.8 is required"),
        ({"torch": "1.13"}, "FAIL", "1.13 is required"),
        ({"kernel": platform.release()}, "PASS", ""),
    ],
)
def test_versions_that_were_asked_for(node, expect, verdict, words):
    node({})
    told = found(1, expect=expect)
    assert told.verdict == verdict and words in told.reason, told.reason


def test_a_version_that_cannot_be_read_is_no_pass():
    plan = Plan("cpu", 0, expect={"driver": "570"})
    check = verdict_on(environment, environment.measure(plan), plan)
    assert (check.verdict, check.reason) == (
        "INCOMPLETE",
        "the version of driver cannot be read here, 570 is required",
    )


def test_errors_of_the_kernel_log(node, monkeypatch):
    node({})
    recent, old, program = (
        host_info.xid(f"NVRM: Xid (PCI:0000:0b:00): {code}, text of {code}", age)
        for code, age in ((79, 60), (48, 86400), (31, 1))
    )
    monkeypatch.setattr(host_info, "xids", lambda log: [old, program])
    check = found(1)
    assert check.verdict == "WARN" and kinds(check) == {"xid-reset"}
    monkeypatch.setattr(host_info, "xids", lambda log: [recent])
    check = found(1)
    assert check.verdict == "FAIL" and kinds(check) == {"xid-reboot"}
    monkeypatch.setattr(host_info, "xids", lambda log: None)
    assert found(1).verdict == "PASS", "events of NVML replace the log"
    assert environment.measure(Plan("cuda", 1)).facts["xids"] == "not readable"


def test_the_kernel_log_is_parsed(tmp_path):
    log = tmp_path / "kmsg"
    log.write_text(
        "6,1,1000000,-;usb 1-1: new device\n"
        "4,2,2000000,-;NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
        " SUBSYSTEM=pci\n"
        "4,3,3000000,-;NVRM: Xid (PCI:0000:5b:00): 31, pid=7, MMU Fault\n"
    )
    hardware, program = host_info.xids(log)
    assert (hardware.code, hardware.bus_id) == (79, "0000:3b:00")
    assert hardware.text == "pid='<unknown>', GPU has fallen off the bus." and hardware.age_s > 0
    assert program.code == 31
    assert host_info.xids(tmp_path / "nothing") is None


def test_the_pci_bus_shows_gpus_that_the_driver_does_not(tmp_path):
    for name, vendor, kind, node in (
        ("0000:3b:00.0", "0x10de", "0x030200", "1"),
        ("0000:3c:00.0", "0x10de", "0x068000", "1"),  # an NVSwitch
        ("0000:00:02.0", "0x8086", "0x030000", "-1"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        for file, text in (("vendor", vendor), ("class", kind), ("numa_node", node)):
            (folder / file).write_text(text + "\n")
    assert host_info.nvidia_devices(tmp_path) == ["0000:3b:00.0"]
    assert host_info.nvidia_devices(tmp_path / "nothing") == []


def test_shared_memory_and_clock_are_told(node, monkeypatch):
    node({}, {})
    monkeypatch.setattr(host_info, "_size_of", lambda path: 64 << 20)
    check = found(2)
    verdict, reason = check.verdict, check.reason
    assert verdict == "WARN" and "/dev/shm holds 64 MiB" in reason
    monkeypatch.setattr(host_info, "_size_of", lambda path: 64 << 30)
    monkeypatch.setattr(host_info, "clock_synchronised", lambda: False)
    check = found(2)
    verdict, reason = check.verdict, check.reason
    assert verdict == "WARN" and "clock is not synchronised" in reason
