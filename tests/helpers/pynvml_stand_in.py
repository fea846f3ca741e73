"""Stand-in for NVIDIA's pynvml: the functions that gpu_inventory and gpu_telemetry call, with their units and errors.

No GPU is behind it. Names and return types are those of nvidia-ml-py 13.
"""

from __future__ import annotations

import time
import types


class NVMLError(Exception):
    def __init__(self, text: str, value: int = 999) -> None:
        super().__init__(text)
        self.value = value


HEALTHY = {
    "uuid": "GPU-00000000-0000-0000-0000-00000000000{index}",
    "name": "NVIDIA H100 80GB HBM3",
    "serial": "165432100000{index}",
    "bus": "00000000:{index}B:00.0",
    "vbios": "96.00.5E.00.01",
    "inforom": "G520.0200.00.05",
    "lost": False,
    "gone": (),  # functions that this driver does not have: their names, or parts of them
    "ecc": [1, 1],
    "corrected": 0,
    "uncorrected": 0,
    "uncorrected_ever": 0,
    "remapped": (0, 0, 0, 0),
    "pages_pending": 0,
    "reasons": 0x1,  # idle
    "sm_mhz": 345,
    "sm_mhz_max": 1980,
    "width": 16,
    "width_max": 16,
    "gen": 1,  # at rest
    "gen_max": 5,
    "power_mw": 70_123,
    "power_limit_mw": 700_000,
    "power_default_mw": 700_000,
    "temperature": 30,
    "mig": [0, 0],
    "persistence": 1,
    "links": [1] * 18,
    "link_errors": (0, 0, 0, 0),  # per link, by kind
    "pcie_replays": 0,
    "recovery_action": 0,
    "xids": [],  # events, each reported once
    "events": True,  # whether the driver has events
}


class Library(types.ModuleType):
    """`gpus`: differences from a healthy H100, per GPU; None as a value: the board does not support the query."""

    NVMLError = NVMLError
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC = 0, 1
    NVML_ERROR_TIMEOUT, nvmlEventTypeXidCriticalError, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 10, 8, 230
    NVML_NVLINK_ERROR_DL_REPLAY, NVML_NVLINK_ERROR_DL_RECOVERY = 0, 1
    NVML_NVLINK_ERROR_DL_CRC_FLIT, NVML_NVLINK_ERROR_DL_CRC_DATA = 2, 3
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_NVLINK_MAX_LINKS = 1, 0, 36

    def __init__(self, *gpus: dict, driver: bool = True) -> None:
        super().__init__("pynvml")
        self.gpus = [HEALTHY | changes for changes in gpus]
        self.driver, self.open = driver, 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.15"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if self.gpus[index]["lost"]:
            raise NVMLError("GPU is lost")
        return index

    def _answer(self, handle: int, key: str, function: str = ""):
        if function in self.gpus[handle]["gone"]:
            raise NVMLError("Function Not Found")
        if (value := self.gpus[handle][key]) is None:
            raise NVMLError("Not Supported")
        return value.format(index=handle) if isinstance(value, str) else value

    def nvmlDeviceGetPciInfo(self, handle: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(busId=self._answer(handle, "bus"))

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        return self._answer(handle, ("corrected", ("uncorrected", "uncorrected_ever")[counter])[kind])

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return self._answer(handle, {self.NVML_CLOCK_SM: "sm_mhz"}[kind])

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:
        return self._answer(handle, {self.NVML_CLOCK_SM: "sm_mhz_max"}[kind])

    def nvmlDeviceGetTemperatureV(self, handle: int, sensor: int) -> int:
        return self._answer(handle, {self.NVML_TEMPERATURE_GPU: "temperature"}[sensor], "TemperatureV")

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return self._answer(handle, {self.NVML_TEMPERATURE_GPU: "temperature"}[sensor], "Temperature")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return self._answer(handle, "reasons", "Throttle")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return self._answer(handle, "reasons", "Event")

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[types.SimpleNamespace]:
        keys = {self.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: "recovery_action"}
        values = [self.gpus[handle][keys[field]] if field in keys else None for field in fields]
        return [
            types.SimpleNamespace(nvmlReturn=3 * (v is None), valueType=1, value=types.SimpleNamespace(uiVal=v))
            for v in values
        ]

    def nvmlEventSetCreate(self) -> list[int]:
        return []

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: list[int]) -> None:
        self._answer(handle, "events")
        assert kinds == self.nvmlEventTypeXidCriticalError
        events.append(handle)

    def nvmlEventSetWait(self, events: list[int], timeout_ms: int) -> types.SimpleNamespace:
        for handle in events:
            if self.gpus[handle]["xids"]:
                return types.SimpleNamespace(device=handle, eventData=self.gpus[handle]["xids"].pop(0))
        time.sleep(timeout_ms / 1000)
        raise NVMLError("Timeout", self.NVML_ERROR_TIMEOUT)

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        links = self._answer(handle, "links")
        if link >= len(links):
            raise NVMLError("Invalid Argument")
        return links[link]

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: int, link: int, kind: int) -> int:
        return self._answer(handle, "link_errors")[kind]


def _asks(key: str):
    return lambda self, handle: self._answer(handle, key)


for function, key in {
    "UUID": "uuid",
    "Serial": "serial",
    "VbiosVersion": "vbios",
    "InforomImageVersion": "inforom",
    "Name": "name",
    "EccMode": "ecc",
    "RemappedRows": "remapped",
    "RetiredPagesPendingStatus": "pages_pending",
    "CurrPcieLinkWidth": "width",
    "MaxPcieLinkWidth": "width_max",
    "CurrPcieLinkGeneration": "gen",
    "MaxPcieLinkGeneration": "gen_max",
    "PowerUsage": "power_mw",
    "EnforcedPowerLimit": "power_limit_mw",
    "PowerManagementDefaultLimit": "power_default_mw",
    "MigMode": "mig",
    "PcieReplayCounter": "pcie_replays",
    "PersistenceMode": "persistence",
}.items():
    setattr(Library, f"nvmlDeviceGet{function}", _asks(key))
