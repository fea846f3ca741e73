"""Inventory of a node's GPUs: from NVML, else from nvidia-smi. Standard library only;
nvidia-ml-py is optional.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import importlib
import io
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuworker.runtime import nvml_details

# Field of Gpu -> field of `nvidia-smi --query-gpu`.
SMI_FIELDS = {
    "uuid": "uuid",
    "name": "name",
    "bus_id": "pci.bus_id",
    "driver": "driver_version",
    "serial": "serial",
    "ecc_corrected": "ecc.errors.corrected.volatile.total",
    "ecc_uncorrected": "ecc.errors.uncorrected.volatile.total",
    "pages_pending": "retired_pages.pending",
    "clock_reasons": "clocks_throttle_reasons.active",
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
# Field of Gpu -> function of NVML, without nvmlDeviceGet, and its further arguments, without NVML_;
# or the next one: drivers of CUDA 14 lack the second ones, earlier drivers perhaps the first.
QUERIES = {
    "name": "Name",
    "serial": "Serial",
    "vbios": "VbiosVersion",
    "inforom": "InforomImageVersion",
    "ecc": "EccMode",
    "ecc_corrected": "TotalEccErrors MEMORY_ERROR_TYPE_CORRECTED VOLATILE_ECC",
    "ecc_uncorrected": "TotalEccErrors MEMORY_ERROR_TYPE_UNCORRECTED VOLATILE_ECC",
    "ecc_uncorrected_ever": "TotalEccErrors MEMORY_ERROR_TYPE_UNCORRECTED AGGREGATE_ECC",
    "pages_pending": "RetiredPagesPendingStatus",
    "clock_reasons": "CurrentClocksEventReasons|CurrentClocksThrottleReasons",
    "sm_mhz": "ClockInfo CLOCK_SM",
    "sm_mhz_max": "MaxClockInfo CLOCK_SM",
    "pcie_width": "CurrPcieLinkWidth",
    "pcie_width_max": "MaxPcieLinkWidth",
    "pcie_gen": "CurrPcieLinkGeneration",
    "pcie_gen_max": "MaxPcieLinkGeneration",
    "pcie_replays": "PcieReplayCounter",
    "power_w": "PowerUsage",
    "power_limit_w": "EnforcedPowerLimit",
    "power_default_w": "PowerManagementDefaultLimit",
    "temperature_c": "TemperatureV TEMPERATURE_GPU|Temperature TEMPERATURE_GPU",
    "mig": "MigMode",
    "persistence": "PersistenceMode",
    "compute_mode": "ComputeMode",
}
FLAGS = ("ecc", "pages_pending", "mig", "persistence")

GIVEN = "NVIDIA_GPUS_VALIDATED"  # a variable of NVSentinel
# more than any GPU has; the constant of an old pynvml is that of the GPUs of its time
MOST_NVLINKS = 36
# Members of NVML's union of values, by its type of value.
FIELD_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


@dataclass
class Gpu:
    """One GPU. None: the driver does not report the value. `device` is torch's name of the GPU,
    else the driver's.
    """

    device: str
    uuid: str = ""
    name: str = ""
    bus_id: str = ""  # as in /sys/bus/pci/devices: 0000:3b:00.0
    driver: str | None = None
    serial: str = ""  # of the board, for an RMA; consumer cards have none
    vbios: str = ""
    inforom: str = ""  # version of the image
    lost: str = ""  # the driver's error if it cannot reach this GPU
    ecc: bool | None = None
    ecc_corrected: int | None = None  # since the driver was loaded
    ecc_uncorrected: int | None = None
    ecc_uncorrected_ever: int | None = None
    rows_remapped: int | None = None  # after uncorrectable errors
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pages_pending: bool | None = None
    clock_reasons: int | None = None  # bits: why clocks are below their maximum
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
    nvlink_errors: int | None = None  # CRC errors, replays and recoveries of all links
    pcie_replays: int | None = None
    recovery_action: int | None = None  # what the driver demands of the operator, 0: nothing
    # of the registration with the fabric manager; None without NVSwitch
    fabric_state: int | None = None
    fabric_status: int | None = None  # error of the registration, 0: none
    fabric_health: int | None = None  # bits
    fabric_clique: int | None = None
    fabric_cluster: str | None = None  # UUID of the NVLink domain
    memory_used_bytes: int | None = None
    busy_percent: int | None = None  # of the time up to a second before
    compute_mode: int | None = None
    programs: tuple[str, ...] = ()  # that use it, without this one


def driver_version(proc: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Version of the NVIDIA driver: from /proc, else from the first GPU of the inventory."""
    with contextlib.suppress(OSError):
        if found := re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", proc.read_text()):
            return found[1]
    return next((gpu.driver for gpu in inventory()[1] if gpu.driver), None)


def inventory() -> tuple[str, list[Gpu]]:
    """Source ("NVML" | "nvidia-smi" | "") and the GPUs that it lists."""
    with nvml() as library:
        if library is not None:
            return "NVML", from_nvml(library)
    gpus = from_nvidia_smi()
    return ("nvidia-smi" if gpus else ""), gpus


def open_nvml() -> object | None:
    """The initialized pynvml module, or None without the module or its driver. Close it with
    nvmlShutdown().
    """
    with contextlib.suppress(ImportError):
        library = importlib.import_module("pynvml")  # by name: the worker must start without it
        with contextlib.suppress(library.NVMLError):
            library.nvmlInit()
            return library
    return None


@contextlib.contextmanager
def nvml() -> Iterator[object | None]:
    """As `open_nvml`, closed at the end of the block."""
    library = open_nvml()
    try:
        yield library
    finally:
        if library is not None:
            library.nvmlShutdown()


def given() -> list[str]:
    """UUIDs of the GPUs that this process may use, as others name them; empty: all that it sees."""
    return re.findall(r"[^,\s]+", os.environ.get(GIVEN, ""))


def is_given(uuid: str) -> bool:
    return uuid in (given() or [uuid])


def with_torch_names(gpus: list[Gpu], uuids: dict[str, str]) -> list[Gpu]:
    """The same GPUs under torch's names. `uuids`: "cuda:3" -> UUID, or "" if torch does not report
    one.

    Without UUIDs (torch before 2.4) the order decides if both sides have the same number of GPUs:
    by default CUDA orders equal GPUs by bus address, as NVML does.
    """
    if not all(uuids.values()):
        if len(uuids) != len(gpus):
            return gpus
        return [
            dataclasses.replace(gpu, device=name) for gpu, name in zip(gpus, uuids, strict=True)
        ]
    names = {_bare_uuid(uuid): name for name, uuid in uuids.items()}
    return [
        dataclasses.replace(gpu, device=names.get(_bare_uuid(gpu.uuid), gpu.device)) for gpu in gpus
    ]


def ask(library, *call: object) -> object | None:
    """NVML's value of `call` (function, arguments …); None: boards and drivers differ in what
    they have.
    """
    try:
        return getattr(library, call[0])(*call[1:])
    except (library.NVMLError, AttributeError):
        return None


def read(library, handle, field: str) -> object | None:
    """NVML's value of a field of Gpu that stands in QUERIES."""
    for words in QUERIES[field].split("|"):
        function, *constants = words.split()
        with contextlib.suppress(library.NVMLError, AttributeError):
            arguments = [getattr(library, f"NVML_{name}") for name in constants]
            value = getattr(library, f"nvmlDeviceGet{function}")(handle, *arguments)
            if field.endswith("_w"):
                return value / 1000
            value = value[0] if isinstance(value, list) else value  # now, and after a reboot
            return bool(value) if field in FLAGS else text(value)
    return None


def from_nvml(library) -> list[Gpu]:
    return [_gpu(library, index) for index in range(library.nvmlDeviceGetCount())]


def _gpu(library, index: int) -> Gpu:
    query, gpu = functools.partial(ask, library), Gpu(f"GPU {index} of the driver")
    try:
        handle = library.nvmlDeviceGetHandleByIndex(index)
        gpu.uuid = text(library.nvmlDeviceGetUUID(handle))
    except library.NVMLError as error:  # GPU is lost, needs a reset …
        gpu.lost = str(error)
        return gpu
    found = {field: read(library, handle, field) for field in QUERIES}
    if pci := query("nvmlDeviceGetPciInfo", handle):
        gpu.bus_id = _bus_id(text(pci.busId))
    if rows := query("nvmlDeviceGetRemappedRows", handle):
        gpu.rows_remapped, gpu.remap_pending, gpu.remap_failed = rows[1], *map(bool, rows[2:])
    links = [query("nvmlDeviceGetNvLinkState", handle, link) for link in range(MOST_NVLINKS)]
    # a link that the board does not have is None
    gpu.nvlinks_up, gpu.nvlinks_down = links.count(1), links.count(0)
    gpu.nvlink_errors = nvml_details.nvlink_errors(library, query, handle, links)
    gpu.driver = text(query("nvmlSystemGetDriverVersion") or "") or None
    gpu.recovery_action = _field(library, handle, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION")
    details = (
        nvml_details.fabric(library, query, handle),
        nvml_details.users(library, query, handle),
    )
    for facts in (found, *details):
        for field, value in facts.items():
            if value is not None:
                setattr(gpu, field, value)
    return gpu


def _field(library, handle, name: str) -> int | None:
    """Value of one of NVML's fields, None where pynvml, driver or board lack it."""
    found = ask(library, "nvmlDeviceGetFieldValues", handle, [getattr(library, name, None)])
    if not found or found[0].nvmlReturn:
        return None
    return int(getattr(found[0].value, FIELD_VALUES[found[0].valueType]))


def from_nvidia_smi(timeout_s: float = 60) -> list[Gpu]:
    """GPUs that nvidia-smi lists, with None for [N/A]. Empty if it fails, hangs, or lacks one of
    the fields.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [
        program,
        f"--query-gpu={','.join(SMI_FIELDS.values())}",
        "--format=csv,noheader,nounits",
    ]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, errors="replace", timeout=timeout_s
        )
    except subprocess.TimeoutExpired:  # nvidia-smi hangs with a GPU that hangs
        return []
    if done.returncode:
        return []
    rows = csv.reader(io.StringIO(done.stdout), skipinitialspace=True)
    return [
        _from_row(index, dict(zip(SMI_FIELDS, row, strict=True)))
        for index, row in enumerate(rows)
        if row
    ]


def _from_row(index: int, row: dict[str, str]) -> Gpu:
    gpu = Gpu(
        f"GPU {index} of the driver",
        row["uuid"],
        row["name"],
        _bus_id(row["bus_id"]),
        row["driver"],
    )
    gpu.serial = "" if row["serial"].startswith("[") else row["serial"]  # [N/A], [Unknown Error]
    for field in list(SMI_FIELDS)[5:]:
        setattr(gpu, field, _value(row[field].strip()))
    return gpu


def _value(text: str) -> int | float | bool | None:
    if text in ("Enabled", "Yes", "Disabled", "No"):
        return text in ("Enabled", "Yes")
    if re.fullmatch(r"0x[0-9a-fA-F]+|\d+", text):
        return int(text, 0)
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else None


def _bare_uuid(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


def _bus_id(text: str) -> str:
    """NVML writes the domain with eight digits, the kernel with four."""
    return re.sub(r"^0000(?=[0-9a-f]{4}:)", "", text.lower())


def text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value
