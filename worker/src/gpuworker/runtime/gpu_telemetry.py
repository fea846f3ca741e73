"""What the driver says of each GPU, at rest and under load: through NVML, else nvidia-smi, else nothing.

Not yet run on a GPU.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import importlib
import io
import re
import shutil
import statistics
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# Bits of the clocks event reasons (nvml.h) that slow a GPU down for a reason that is none of the program's.
SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
APPLICATION_CLOCKS = 0x02

# Field of Gpu -> field of `nvidia-smi --query-gpu`.
SMI_FIELDS = {
    "uuid": "uuid",
    "name": "name",
    "bus_id": "pci.bus_id",
    "driver": "driver_version",
    "ecc_corrected": "ecc.errors.corrected.volatile.total",
    "ecc_uncorrected": "ecc.errors.uncorrected.volatile.total",
    "pages_pending": "retired_pages.pending",
    "reasons": "clocks_throttle_reasons.active",
    "sm_mhz": "clocks.sm",
    "sm_mhz_max": "clocks.max.sm",
    "pcie_width": "pcie.link.width.current",
    "pcie_width_max": "pcie.link.width.max",
    "pcie_gen": "pcie.link.gen.current",
    "pcie_gen_max": "pcie.link.gen.max",
    "power_w": "power.draw",
    "power_limit_w": "enforced.power.limit",
    "power_default_w": "power.default_limit",
    "temperature_c": "temperature.gpu",
    "mig": "mig.mode.current",
    "persistence": "persistence_mode",
}


@dataclass
class Gpu:
    """One GPU; None is what the driver does not tell. `device` is torch's name of it, or else the driver's."""

    device: str
    uuid: str = ""
    name: str = ""
    bus_id: str = ""  # as in /sys/bus/pci/devices: 0000:3b:00.0
    driver: str | None = None
    lost: str = ""  # the driver's error if it does not answer for this GPU
    ecc: bool | None = None
    ecc_corrected: int | None = None  # since the driver was loaded
    ecc_uncorrected: int | None = None
    ecc_uncorrected_ever: int | None = None
    rows_remapped: int | None = None  # after uncorrectable errors
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pages_pending: bool | None = None
    reasons: int | None = None  # bits that say why clocks are not at their maximum
    sm_mhz: int | None = None
    sm_mhz_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None  # of GPU and slot
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    temperature_c: int | None = None
    mig: bool | None = None
    persistence: bool | None = None
    nvlinks_up: int | None = None
    nvlinks_down: int | None = None


@dataclass(frozen=True)
class Reading:
    """One GPU at one moment of a load."""

    device: str
    sm_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    reasons: int
    pcie_gen: int | None


def inventory() -> tuple[str, list[Gpu]]:
    """("NVML" | "nvidia-smi" | "", the GPUs that it shows)."""
    with nvml() as library:
        if library is not None:
            return "NVML", [_gpu(library, index) for index in range(library.nvmlDeviceGetCount())]
    gpus = _from_smi()
    return ("nvidia-smi" if gpus else ""), gpus


@contextlib.contextmanager
def nvml() -> Iterator[object | None]:
    """The library, ready to be asked, or None where it or its driver is not there."""
    library = None
    with contextlib.suppress(ImportError):
        library = importlib.import_module("pynvml")  # looked up by name: the worker must start without it
    if library is not None:
        try:
            library.nvmlInit()
        except library.NVMLError:
            library = None
    try:
        yield library
    finally:
        if library is not None:
            library.nvmlShutdown()


def named(gpus: list[Gpu], uuids: dict[str, str]) -> list[Gpu]:
    """The same GPUs under torch's names. `uuids`: "cuda:3" -> the UUID that torch tells, "" if it tells none.

    Without UUIDs (torch before 2.4) the order is taken, if there are as many of one as of the other: with the CUDA
    default the order of equal GPUs is that of their bus addresses, as in NVML.
    """
    if not all(uuids.values()):
        if len(uuids) != len(gpus):
            return gpus
        return [dataclasses.replace(gpu, device=name) for gpu, name in zip(gpus, uuids, strict=True)]
    names = {_bare(uuid): name for name, uuid in uuids.items()}
    return [dataclasses.replace(gpu, device=names.get(_bare(gpu.uuid), gpu.device)) for gpu in gpus]


class Sampler:
    """Reads clocks, temperature, power and slowdown reasons of all GPUs while a load runs, in a thread.

        with Sampler(uuids) as sampler: …load…
        sampler.readings

    Empty without NVML: a process a reading (nvidia-smi) would disturb what it measures.
    """

    def __init__(self, uuids: dict[str, str], period_s: float = 0.1) -> None:
        self.readings: list[Reading] = []
        self.uuids, self.period_s = uuids, period_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        with nvml() as library:
            if library is None:
                return
            gpus = named([_gpu(library, index) for index in range(library.nvmlDeviceGetCount())], self.uuids)
            there = [(index, gpu.device) for index, gpu in enumerate(gpus) if not gpu.lost]
            handles = {device: library.nvmlDeviceGetHandleByIndex(index) for index, device in there}
            while not self._done.wait(self.period_s):
                self.readings += [_read(library, handle, device) for device, handle in handles.items()]


def summary(readings: list[Reading]) -> dict[str, dict[str, float]]:
    """Device -> what its readings come to; JSON-able."""
    found: dict[str, dict[str, float]] = {}
    for device in dict.fromkeys(reading.device for reading in readings):
        own = [reading for reading in readings if reading.device == device]
        facts = {"readings": len(own)}
        for field, unit in (("sm_mhz", statistics.median), ("temperature_c", max), ("power_w", max), ("pcie_gen", max)):
            if values := [value for reading in own if (value := getattr(reading, field)) is not None]:
                facts[f"{field}_{unit.__name__}"] = unit(values)
        for bit, words in SLOWDOWNS.items():
            if count := sum(bool(reading.reasons & bit) for reading in own):
                facts[words] = count
        found[device] = facts
    return found


def slowdowns(reasons: int | None) -> list[str]:
    """The slowdown reasons among the bits, in words."""
    return [words for bit, words in SLOWDOWNS.items() if (reasons or 0) & bit]


def _gpu(library, index: int) -> Gpu:
    def ask(function: str, *arguments: object) -> object | None:
        """What NVML answers, None if it does not know: boards and drivers differ in what they tell."""
        try:
            return getattr(library, function)(*arguments)
        except (library.NVMLError, AttributeError):
            return None

    try:
        handle = library.nvmlDeviceGetHandleByIndex(index)
        uuid = library.nvmlDeviceGetUUID(handle)
    except library.NVMLError as error:  # GPU is lost, needs a reset …
        return Gpu(f"GPU {index} of the driver", lost=str(error))
    uncorrected, volatile = library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC
    pci = ask("nvmlDeviceGetPciInfo", handle)
    remapped = ask("nvmlDeviceGetRemappedRows", handle) or (None, None, None, None)
    ecc, mig = ask("nvmlDeviceGetEccMode", handle), ask("nvmlDeviceGetMigMode", handle)
    links = [ask("nvmlDeviceGetNvLinkState", handle, link) for link in range(library.NVML_NVLINK_MAX_LINKS)]
    return Gpu(
        device=f"GPU {index} of the driver",
        uuid=_text(uuid),
        name=_text(ask("nvmlDeviceGetName", handle) or ""),
        bus_id=_bus_id(_text(pci.busId)) if pci else "",
        driver=_text(ask("nvmlSystemGetDriverVersion") or "") or None,
        ecc=_flag(ecc[0] if ecc else None),
        ecc_corrected=ask("nvmlDeviceGetTotalEccErrors", handle, library.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile),
        ecc_uncorrected=ask("nvmlDeviceGetTotalEccErrors", handle, uncorrected, volatile),
        ecc_uncorrected_ever=ask("nvmlDeviceGetTotalEccErrors", handle, uncorrected, library.NVML_AGGREGATE_ECC),
        rows_remapped=remapped[1],
        remap_pending=_flag(remapped[2]),
        remap_failed=_flag(remapped[3]),
        pages_pending=_flag(ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)),
        reasons=ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle),
        sm_mhz=ask("nvmlDeviceGetClockInfo", handle, library.NVML_CLOCK_SM),
        sm_mhz_max=ask("nvmlDeviceGetMaxClockInfo", handle, library.NVML_CLOCK_SM),
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        pcie_gen=ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_gen_max=ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        power_w=_watts(ask("nvmlDeviceGetPowerUsage", handle)),
        power_limit_w=_watts(ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
        power_default_w=_watts(ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        temperature_c=ask("nvmlDeviceGetTemperature", handle, library.NVML_TEMPERATURE_GPU),
        mig=_flag(mig[0] if mig else None),
        persistence=_flag(ask("nvmlDeviceGetPersistenceMode", handle)),
        nvlinks_up=sum(link == 1 for link in links),
        nvlinks_down=sum(link == 0 for link in links),  # a link that the board does not have is None
    )


def _read(library, handle, device: str) -> Reading:
    def ask(function: Callable, *arguments: object):
        try:
            return function(handle, *arguments)
        except library.NVMLError:
            return None

    return Reading(
        device,
        ask(library.nvmlDeviceGetClockInfo, library.NVML_CLOCK_SM),
        ask(library.nvmlDeviceGetTemperature, library.NVML_TEMPERATURE_GPU),
        _watts(ask(library.nvmlDeviceGetPowerUsage)),
        ask(library.nvmlDeviceGetCurrentClocksThrottleReasons) or 0,
        ask(library.nvmlDeviceGetCurrPcieLinkGeneration),
    )


def _from_smi(timeout_s: float = 60) -> list[Gpu]:
    """From nvidia-smi, with what it calls [N/A] as None. A driver that knows not all fields gives no GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={','.join(SMI_FIELDS.values())}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:  # a GPU that hangs takes nvidia-smi with it
        return []
    if done.returncode:
        return []
    rows = csv.reader(io.StringIO(done.stdout), skipinitialspace=True)
    return [_parsed(index, dict(zip(SMI_FIELDS, row, strict=True))) for index, row in enumerate(rows) if row]


def _parsed(index: int, row: dict[str, str]) -> Gpu:
    gpu = Gpu(f"GPU {index} of the driver", row["uuid"], row["name"], _bus_id(row["bus_id"]), row["driver"])
    for field in list(SMI_FIELDS)[4:]:
        setattr(gpu, field, _value(row[field].strip()))
    return gpu


def _value(text: str) -> int | float | bool | None:
    if text in ("Enabled", "Yes", "Disabled", "No"):
        return text in ("Enabled", "Yes")
    if re.fullmatch(r"0x[0-9a-fA-F]+|\d+", text):
        return int(text, 0)
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else None


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


def _bus_id(text: str) -> str:
    """NVML writes the domain with eight digits, the kernel with four."""
    return re.sub(r"^0000(?=[0-9a-f]{4}:)", "", text.lower())


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
