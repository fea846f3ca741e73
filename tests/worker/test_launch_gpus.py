"""GPUs that the preflight counts, per vendor, as a container sees them."""

from __future__ import annotations

import pytest

from gpuworker.runtime import machine

H100 = "GPU {}: NVIDIA H100 80GB HBM3 (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)"
MIG = "  MIG 3g.40gb     Device  {}: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    def write(script: str) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return write


def test_nvidia_gpus_are_counted(smi):
    smi("\n".join(f"echo '{H100.format(index)}'" for index in range(8)))
    assert machine.visible_gpus() == (["NVIDIA H100 80GB HBM3"] * 8, "")


def test_mig_devices_count_instead_of_their_gpu(smi):
    smi("\n".join(f"echo '{line}'" for line in (H100.format(0), MIG.format(0), MIG.format(1))))
    assert machine.visible_gpus() == (["MIG 3g.40gb"] * 2, "")


def test_a_driver_that_does_not_answer_is_named(smi, monkeypatch):
    smi(
        "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver'; exit 9"
    )
    found, problem = machine.visible_gpus()
    assert found == [] and "9" in problem and "driver" in problem
    smi("exec sleep 60")
    monkeypatch.setattr(machine, "NVIDIA_SMI_S", 0.3)
    found, problem = machine.visible_gpus()
    assert found == [] and "0.3" in problem


def test_an_nvidia_smi_that_does_not_start_counts_nothing(smi, tmp_path):
    smi("")
    (tmp_path / "nvidia-smi").write_bytes(b"\x7fELF")
    assert machine.visible_gpus()[0] is None


def test_amd_gpus_are_the_device_files_that_the_container_has(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "dri").mkdir()
    for minor in (128, 129, 130, 131):
        (tmp_path / f"dri/renderD{minor}").touch()
    assert machine.visible_gpus(tmp_path) == ([], ""), "of a graphics card"
    (tmp_path / "kfd").touch()
    assert machine.visible_gpus(tmp_path) == (["GPU"] * 4, "")


def test_devices_of_other_vendors_are_not_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "neuron0").touch()
    assert machine.visible_gpus(tmp_path) == (None, "")
    assert machine.visible_gpus(tmp_path / "empty") == ([], "")
