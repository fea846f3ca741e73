"""Telemetry of GPUs under load, read from NVML: clocks, temperature, power and slowdown reasons."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpuworker.runtime.gpu_inventory import from_nvml, nvml, read, with_torch_names

# Bits of the clocks event reasons (nvml.h) for slowdowns that the program does not cause.
SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
APPLICATION_CLOCKS = 0x02
NO_REASONS = "readings without reasons"  # of all readings of a GPU


@dataclass(frozen=True)
class Reading:
    """One GPU at one moment of a load."""

    device: str
    sm_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    clock_reasons: int | None
    pcie_gen: int | None
    pcie_width: int | None = None


FIELDS = tuple(Reading.__annotations__)[1:]  # as in a Gpu


class Sampler:
    """Thread that reads all GPUs while a load runs.

        with Sampler(uuids) as sampler: …load…
        sampler.readings

    Empty without NVML: one nvidia-smi process per reading would disturb the load.
    """

    def __init__(
        self, uuids: dict[str, str], period_s: float = 0.1, patience_s: float = 10
    ) -> None:
        self.readings: list[Reading] = []
        self.problem = ""  # why readings are missing
        self.uuids, self.period_s, self.patience_s = uuids, period_s, patience_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._done.set()
        self._thread.join(self.patience_s)
        if self._thread.is_alive():
            self.problem = "the driver does not answer"

    def _run(self) -> None:
        try:
            self._sample()
        except Exception as error:  # an error of a thread would otherwise end it in silence
            self.problem = f"{type(error).__name__}: {error}"

    def _sample(self) -> None:
        with nvml() as library:
            if library is None:
                return
            gpus = with_torch_names(from_nvml(library), self.uuids)
            reachable = [(index, gpu.device) for index, gpu in enumerate(gpus) if not gpu.lost]
            handles = {
                device: library.nvmlDeviceGetHandleByIndex(index) for index, device in reachable
            }
            while True:  # one reading at least, however short the load is
                for device, handle in handles.items():
                    values = (read(library, handle, field) for field in FIELDS)
                    self.readings.append(Reading(device, *values))
                if self._done.wait(self.period_s):
                    return


def summary(readings: list[Reading]) -> dict[str, dict[str, float]]:
    """Device -> statistics of its readings, as JSON types."""
    found: dict[str, dict[str, float]] = {}
    for device in dict.fromkeys(reading.device for reading in readings):
        own = [reading for reading in readings if reading.device == device]
        facts = {"readings": len(own)}
        for field, unit in (
            ("sm_mhz", statistics.median),
            ("temperature_c", max),
            ("power_w", max),
            ("pcie_gen", max),
            ("pcie_width", max),
        ):
            if values := [
                value for reading in own if (value := getattr(reading, field)) is not None
            ]:
                facts[f"{field}_{unit.__name__}"] = unit(values)
        for bit, words in SLOWDOWNS.items():
            if count := sum(bool((reading.clock_reasons or 0) & bit) for reading in own):
                facts[words] = count
        if all(reading.clock_reasons is None for reading in own):
            facts[NO_REASONS] = len(own)
        found[device] = facts
    return found


def unwatched(
    telemetry: Mapping[str, Mapping], devices: Iterable[str], problem: str = ""
) -> Iterator[tuple[str, str]]:
    """Device and words for those of the GPUs whose slowdowns under load are not in this summary.
    `problem`: why not.
    """
    for device in devices:
        own = telemetry.get(device, {})
        if problem or not own.get("readings"):
            yield (
                device,
                f"not watched during the load: {problem or 'NVML does not report this GPU'}",
            )
        elif NO_REASONS in own:
            yield device, "the driver reported no reasons for low clocks during the load"


def slowed(telemetry: Mapping[str, Mapping]) -> Iterator[tuple[str, str]]:
    """Device and words for the GPUs that slowed down under load."""
    for device, facts in telemetry.items():
        for words in SLOWDOWNS.values():
            if facts.get(words):
                yield device, f"{words} in {facts[words]} of {facts['readings']} readings"


def slowdowns(clock_reasons: int | None) -> list[str]:
    """Names of the slowdown reasons among the bits."""
    return [name for bit, name in SLOWDOWNS.items() if (clock_reasons or 0) & bit]
