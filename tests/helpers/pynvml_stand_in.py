"""Stand-in for NVIDIA's pynvml: the functions that gpu_inventory and gpu_telemetry call, with their
units and errors.

No GPU is behind it. Names and return types are those of nvidia-ml-py 13.
"""

import ctypes
import time
import types


class NVMLError(Exception):
    def __init__(self, text: str, value: int = 999):
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
    "fabric": None,  # (state, status, clique, health mask) where there is an NVSwitch
    "used": 600 << 20,
    "busy": 0,
    "compute_mode": 0,
    "processes": (),  # (id, name)
    "link_fields": None,  # from NVLink 5 on, in place of link_errors
}


class FabricInfo(ctypes.Structure):
    """NVIDIA's structure of version 2, without its version."""

    _fields_ = [
        ("clusterUuid", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint),
        ("cliqueId", ctypes.c_uint32),
        ("state", ctypes.c_uint),
        ("healthMask", ctypes.c_uint32),
    ]


class Library(types.ModuleType):
    """`gpus`: differences from a healthy H100, per GPU; None as a value: the board does not support
    the query.
    """

    NVMLError = NVMLError
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC = 0, 1
    NVML_ERROR_TIMEOUT, nvmlEventTypeXidCriticalError, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = (
        10,
        8,
        230,
    )
    NVML_NVLINK_ERROR_DL_REPLAY, NVML_NVLINK_ERROR_DL_RECOVERY = 0, 1
    NVML_NVLINK_ERROR_DL_CRC_FLIT, NVML_NVLINK_ERROR_DL_CRC_DATA = 2, 3
    NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, nvmlMemory_v2, c_nvmlGpuFabricInfo_v2_t = (
        208,
        2,
        FabricInfo,
    )
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_NVLINK_MAX_LINKS = 1, 0, 36

    def __init__(self, *gpus: dict, driver: bool = True):
        super().__init__("pynvml")
        self.gpus = [HEALTHY | changes for changes in gpus]
        self.driver, self.open = driver, 0

    def nvmlInit(self):
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlSystemGetDriverVersion(self):
        return "570.86.15"

    def nvmlDeviceGetHandleByIndex(self, index):
        if self.gpus[index]["lost"]:
            raise NVMLError("GPU is lost")
        return index

    def _answer(self, handle: int, key: str, function: str = ""):
        if function in self.gpus[handle]["gone"]:
            raise NVMLError("Function Not Found")
        if (value := self.gpus[handle][key]) is None:
            raise NVMLError("Not Supported")
        return value.format(index=handle) if isinstance(value, str) else value

    def nvmlDeviceGetPciInfo(self, handle):
        return types.SimpleNamespace(busId=self._answer(handle, "bus"))

    def nvmlDeviceGetTotalEccErrors(self, handle, kind, counter):
        return self._answer(
            handle, ("corrected", ("uncorrected", "uncorrected_ever")[counter])[kind]
        )

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return self._answer(handle, {self.NVML_CLOCK_SM: "sm_mhz"}[kind])

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return self._answer(handle, {self.NVML_CLOCK_SM: "sm_mhz_max"}[kind])

    def nvmlDeviceGetTemperatureV(self, handle, sensor):
        return self._answer(
            handle, {self.NVML_TEMPERATURE_GPU: "temperature"}[sensor], "TemperatureV"
        )

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return self._answer(
            handle, {self.NVML_TEMPERATURE_GPU: "temperature"}[sensor], "Temperature"
        )

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self._answer(handle, "reasons", "Throttle")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self._answer(handle, "reasons", "Event")

    def nvmlDeviceGetFieldValues(self, handle, fields):
        keys = {self.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: "recovery_action"}
        keys[self.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS] = "link_fields"
        numbers = [field[0] if isinstance(field, tuple) else field for field in fields]
        values = [self.gpus[handle][keys[field]] if field in keys else None for field in numbers]
        return [
            types.SimpleNamespace(
                nvmlReturn=3 * (v is None),
                valueType=1,
                value=types.SimpleNamespace(uiVal=v, ullVal=v),
            )
            for v in values
        ]

    def nvmlDeviceGetGpuFabricInfoV(self, handle, info):
        found = info._obj
        found.state, found.status, found.cliqueId, found.healthMask = self._answer(handle, "fabric")
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, version):
        return types.SimpleNamespace(used=self._answer(handle, "used"))

    def nvmlDeviceGetUtilizationRates(self, handle):
        return types.SimpleNamespace(gpu=self._answer(handle, "busy"))

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [types.SimpleNamespace(pid=pid) for pid, _ in self._answer(handle, "processes")]

    def nvmlSystemGetProcessName(self, pid):
        names = {known: name for gpu in self.gpus for known, name in gpu["processes"]}
        if names[pid] is None:
            raise NVMLError("Not Found")
        return names[pid].encode()

    def nvmlEventSetCreate(self):
        return []

    def nvmlDeviceRegisterEvents(self, handle, kinds, events):
        self._answer(handle, "events")
        assert kinds == self.nvmlEventTypeXidCriticalError
        events.append(handle)

    def nvmlEventSetWait(self, events, timeout_ms):
        for handle in events:
            if self.gpus[handle]["xids"]:
                return types.SimpleNamespace(
                    device=handle, eventData=self.gpus[handle]["xids"].pop(0)
                )
        time.sleep(timeout_ms / 1000)
        raise NVMLError("Timeout", self.NVML_ERROR_TIMEOUT)

    def nvmlDeviceGetNvLinkState(self, handle, link):
        links = self._answer(handle, "links")
        if link >= len(links):
            raise NVMLError("Invalid Argument")
        return links[link]

    def nvmlDeviceGetNvLinkErrorCounter(self, handle, link, kind):
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
    "ComputeMode": "compute_mode",
}.items():
    setattr(Library, f"nvmlDeviceGet{function}", _asks(key))
