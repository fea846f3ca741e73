"""GPU inventory and telemetry: values from NVML and nvidia-smi are read correctly, missing values
stay unknown.
"""

import os
import sys
import threading

import pytest

from gpuworker.runtime import gpu_inventory, gpu_telemetry
from gpuworker.runtime.gpu_inventory import Gpu
from gpuworker.runtime.gpu_telemetry import Sampler
from tests.helpers.processes import until
from tests.helpers.pynvml_stand_in import Library


@pytest.fixture
def driver(monkeypatch):
    """driver(GPU, …, loaded=True): this driver is the node's."""

    def use(*gpus: dict, loaded: bool = True) -> Library:
        library = Library(*gpus, driver=loaded)
        monkeypatch.setitem(sys.modules, "pynvml", library)
        return library

    return use


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """smi(SCRIPT): no NVML here, and this is nvidia-smi."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def use(script: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return use


def has(gpu: Gpu, **facts: object):
    assert {name: getattr(gpu, name) for name in facts} == facts


def test_nvml_gives_all_fields_of_a_gpu(driver):
    library = driver(
        {},
        {"remapped": (0, 2, 1, 0), "links": [1] * 17 + [0], "corrected": 7, "uncorrected_ever": 1},
    )
    source, (first, second) = gpu_inventory.inventory()
    assert source == "NVML"
    has(
        first, uuid="GPU-00000000-0000-0000-0000-000000000000", bus_id="0000:0b:00.0", ecc=True,
        serial="1654321000000", driver="570.86.15", sm_mhz=345, sm_mhz_max=1980, power_w=70.123,
        pcie_gen=1, pcie_gen_max=5, pcie_width=16, nvlinks_up=18, nvlinks_down=0, mig=False,
        persistence=True, remap_pending=False,
    )  # fmt: skip
    has(
        second, serial="1654321000001", rows_remapped=2, remap_pending=True, remap_failed=False,
        nvlinks_up=17, nvlinks_down=1, ecc_corrected=7, ecc_uncorrected=0, ecc_uncorrected_ever=1,
    )  # fmt: skip
    assert library.open == 0, "NVML was left open"


def test_what_a_board_does_not_support_is_unknown_not_zero(driver):
    driver(
        dict.fromkeys(["serial", "uncorrected", "remapped", "ecc", "links", "power_mw", "width"])
    )
    _, (gpu,) = gpu_inventory.inventory()
    has(gpu, serial="", nvlinks_up=0, nvlinks_down=0, ecc=None, power_w=None, pcie_width=None)
    has(gpu, ecc_uncorrected=None, remap_failed=None)


def test_a_lost_gpu_keeps_its_place(driver):
    driver({}, {"lost": True})
    _, gpus = gpu_inventory.inventory()
    assert [gpu.lost for gpu in gpus] == ["", "GPU is lost"]


def test_nvidia_smi_is_used_where_nvml_is_missing(smi):
    smi(
        "cat <<'END'\n"
        "GPU-aa, NVIDIA L4, 00000000:3B:00.0, 570.86.15, 1654321000012, 0, 2, No, 0x0000000000000004, 2040, 2040, 8,"
        " 16, 4, 4, 71.50, 72.00, 72.00, 64, [N/A], Enabled\n"
        "GPU-bb, NVIDIA L4, 00000000:5B:00.0, 570.86.15, [N/A], [N/A], [N/A], [N/A], 0x0000000000000001, 210, 2040,"
        " 16, 16, 1, 4, 16.00, 72.00, 72.00, 35, [N/A], Disabled\n"
        "END"
    )
    source, (first, second) = gpu_inventory.inventory()
    assert source == "nvidia-smi"
    has(
        first, name="NVIDIA L4", bus_id="0000:3b:00.0", driver="570.86.15", serial="1654321000012",
        ecc_corrected=0, ecc_uncorrected=2, pages_pending=False, clock_reasons=4, pcie_width=8,
        pcie_width_max=16, power_w=71.5, mig=None, persistence=True,
    )  # fmt: skip
    has(second, serial="", ecc_uncorrected=None, persistence=False, temperature_c=35)


@pytest.mark.parametrize("script", ["exit 9", "exec sleep 600"])
def test_an_nvidia_smi_that_fails_or_hangs_gives_no_gpu(smi, script):
    smi(script)
    assert gpu_inventory.from_nvidia_smi(timeout_s=0.3) == []


def test_gpus_get_the_names_of_torch_by_uuid_whatever_the_order():
    gpus = [
        Gpu("GPU 0 of the driver", uuid="GPU-AA"),
        Gpu("GPU 1 of the driver", uuid="GPU-bb"),
        Gpu("other", uuid="GPU-cc"),
    ]
    named = gpu_inventory.with_torch_names(gpus, {"cuda:0": "bb", "cuda:1": "aa"})
    assert [gpu.device for gpu in named] == ["cuda:1", "cuda:0", "other"]


def test_without_uuids_the_order_counts_only_if_nothing_is_missing():
    gpus = [Gpu("GPU 0 of the driver"), Gpu("GPU 1 of the driver")]
    named = gpu_inventory.with_torch_names(gpus, {"cuda:0": "", "cuda:1": ""})
    assert [gpu.device for gpu in named] == ["cuda:0", "cuda:1"]
    assert gpu_inventory.with_torch_names(gpus, {"cuda:0": ""}) == gpus


def test_the_sampler_reads_all_gpus_under_load_and_sums_up(driver):
    library = driver({"uuid": "GPU-aa"}, {"uuid": "GPU-bb", "reasons": 0x40}, {"lost": True})
    with Sampler({"cuda:0": "aa", "cuda:1": "bb"}, period_s=0.005) as sampler:
        until(lambda: len(sampler.readings) >= 4, "four readings")
        library.gpus[0].update(sm_mhz=1980, temperature=66, power_mw=690_000, gen=5)
        known = len(sampler.readings)
        until(lambda: len(sampler.readings) >= known + 4, "four more")
    summary = gpu_telemetry.summary(sampler.readings)
    assert set(summary) == {"cuda:0", "cuda:1"}
    hot = summary["cuda:0"]
    assert (hot["temperature_c_max"], hot["power_w_max"], hot["pcie_gen_max"]) == (66, 690.0, 5)
    assert "hardware thermal slowdown" not in hot
    assert summary["cuda:1"]["hardware thermal slowdown"] == summary["cuda:1"]["readings"] >= 2
    assert library.open == 0, "NVML was left open"


def unwatched(sampler: Sampler, devices: list[str]) -> list[str]:
    found = gpu_telemetry.unwatched(
        gpu_telemetry.summary(sampler.readings), devices, sampler.problem
    )
    return [f"{device}: {words}" for device, words in found]


def test_a_gpu_that_was_not_watched_is_a_warning(driver, monkeypatch):
    driver({"uuid": "GPU-aa"}, {"uuid": "GPU-bb", "reasons": None})
    with Sampler({"cuda:0": "aa", "cuda:1": "bb"}) as sampler:
        pass
    assert unwatched(sampler, ["cuda:0"]) == [], "one reading is taken of any load"
    (words,) = unwatched(sampler, ["cuda:0", "cuda:1"])
    assert words.startswith("cuda:1:") and "reasons for low clocks" in words
    driver({}, loaded=False)
    with Sampler({}) as sampler:
        pass
    assert "cuda:0" in unwatched(sampler, ["cuda:0"])[0]
    assert unwatched(sampler, []) == []


def test_a_sampler_that_fails_says_why(driver, monkeypatch):
    library = driver({"uuid": "GPU-aa"})
    monkeypatch.setattr(type(library), "nvmlDeviceGetClockInfo", lambda *_: {}["a bug"])
    with Sampler({"cuda:0": "aa"}) as sampler:
        pass
    assert any("KeyError" in text for text in unwatched(sampler, ["cuda:0"]))


def test_a_driver_that_hangs_does_not_hang_the_sampler(driver, monkeypatch):
    library, answers = driver({"uuid": "GPU-aa"}), threading.Event()
    monkeypatch.setattr(type(library), "nvmlDeviceGetClockInfo", lambda *_: answers.wait(60))
    with Sampler({"cuda:0": "aa"}, patience_s=0.05) as sampler:
        pass
    assert any("does not answer" in text for text in unwatched(sampler, ["cuda:0"]))
    answers.set()


@pytest.mark.parametrize("gone", [("Throttle", "Temperature"), ("Event", "TemperatureV")])
def test_calls_that_went_away_and_their_successors(driver, gone):
    """Drivers of CUDA 14 refuse the old names, earlier ones lack the new names."""
    driver({"uuid": "GPU-aa", "reasons": 0x40, "temperature": 61, "gone": gone})
    (gpu,) = gpu_inventory.inventory()[1]
    assert (gpu.clock_reasons, gpu.temperature_c) == (0x40, 61)
    with Sampler({"cuda:0": "aa"}) as sampler:
        pass
    assert (sampler.readings[0].clock_reasons, sampler.readings[0].temperature_c) == (0x40, 61)
