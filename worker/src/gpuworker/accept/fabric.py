"""Ports of InfiniBand and RoCE adapters, their way to the GPUs, and errors that links count.

All is read from sysfs, without privilege. Parts are named as "mlx5_3/1": adapter and port. A PCIe
link is a device (AER). A bad connector often shows on the bridge above it, so every bridge up to
the root is read, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuworker.accept import host_info
from gpuworker.judgement.majority import majority
from gpuworker.judgement.report import FAIL, WARN, Evidence

SYS = Path("/sys")
LINK_LAYERS = ("InfiniBand", "Ethernet")  # EFA and others count other things
# Counters that stay constant on a healthy port: of the standard, and of mlx5 (hw_counters).
ERRORS = (
    "symbol_error", "link_downed", "link_error_recovery", "local_link_integrity_errors",
    "port_rcv_errors", "port_rcv_remote_physical_errors", "excessive_buffer_overrun_errors",
    "VL15_dropped",
)  # fmt: skip
# A lossy Ethernet fabric has some of these: retransmissions work as intended.
RETRANSMISSIONS = (
    "roce_adp_retrans_to", "local_ack_timeout_err", "packet_seq_err", "out_of_sequence",
    "rnr_nak_retry_err",
)  # fmt: skip
# ports of the same kind that are all up prove that one that is down is not so by design
SIBLINGS = 3
# Where the adapter nearest to a GPU is, the nearest first.
SWITCH, NUMA, FAR = NEAREST = "the same PCI root", "the same NUMA node", "another NUMA node"
PCIE_ERRORS = ("correctable", "nonfatal", "fatal")
# Healthy links repeat a transfer now and then: PCIe permits an error in 10^12 bits, a full link one
# in a few seconds.
MOST_CORRECTABLE = 100
ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
PcieCounts = dict[str, dict[str, int]]  # PCI address -> kind -> errors since the node booted


@dataclass(frozen=True)
class Port:
    name: str
    up: bool
    enabled: bool = True  # not switched off by an administrator
    rate_gbps: float | None = None  # Gb/s
    link_layer: str = "InfiniBand"
    kind: str = ""  # of the adapter, such as MT4129
    firmware: str = ""
    bus_id: str = ""
    numa_node: int | None = None
    errors: dict[str, int] = field(default_factory=dict)


def ports(root: Path | None = None) -> list[Port]:
    """Every port of the node, in order of its name. Adapters without such ports (EFA) are left
    out.
    """
    found = []
    for folder in _listed((root or SYS) / "class/infiniband"):
        for port in _listed(folder / "ports"):
            if (layer := _text(port / "link_layer")) in LINK_LAYERS:
                found.append(_port(folder, port, layer))
    return found


def _port(folder: Path, port: Path, layer: str) -> Port:
    device = folder / "device"
    rate = re.match(r"[\d.]+", _text(port / "rate"))
    names = ERRORS if layer == "Ethernet" else ERRORS + RETRANSMISSIONS
    counters = {name: _number(path) for name in names for path in port.glob(f"*counters/{name}")}
    return Port(
        name=f"{folder.name}/{port.name}",
        up=_text(port / "state").endswith("ACTIVE"),
        enabled=not _text(port / "phys_state").endswith("Disabled"),
        rate_gbps=float(rate[0]) if rate else None,
        link_layer=layer,
        kind=_text(folder / "hca_type"),
        firmware=_text(folder / "fw_ver"),
        bus_id=device.resolve().name if device.exists() else "",
        numa_node=_numa(_number(device / "numa_node")),
        errors={name: count for name, count in counters.items() if count is not None},
    )


def problems(found: Sequence[Port], evidence: Evidence) -> None:
    """Add ports that are down, or slower, where most ports of their kind are not.

    Half of the ports may be unused by design, such as the second ones of their adapters.
    """
    groups: dict[tuple[str, str], list[Port]] = defaultdict(list)
    for port in found:
        groups[port.kind, port.link_layer].append(port)
    for group in groups.values():
        up, down = ([p for p in group if p.up == wanted] for wanted in (True, False))
        for port in down if len(up) > len(down) else ():
            words = f"{port.name}: this network port is down, {len(up)} like it are up"
            proven = port.enabled and len(down) == 1 and len(up) >= SIBLINGS
            evidence.add(FAIL if proven else WARN, "port-down", words, port.name)
        rates = {port.name: port.rate_gbps for port in up if port.rate_gbps}
        usual, agree, odd = majority(rates) if rates else (0, 0, [])
        for name in odd if agree else ():
            if rates[name] < usual:
                words = f"runs at {rates[name]:g} Gb/s, others like it at {usual:g}"
                evidence.fail("port-slow", f"{name}: this network port {words}", name)


def grown(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """How much each counter that grew has grown by."""
    more = {name: count - before.get(name, count) for name, count in now.items()}
    return {name: count for name, count in more.items() if count > 0}


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def new_errors(before: Iterable[Port], after: Iterable[Port], evidence: Evidence) -> None:
    """Add ports that went down, and counters of errors that grew, between two readings."""
    later = {port.name: port for port in after}
    for port in before:
        now = later.get(port.name)
        up, new = bool(now and now.up), grown(port.errors, now.errors if now else {})
        fell = new.pop("link_downed", 0)
        if (port.up and not up) or (up and fell):
            words = f"this network port went down{' and came back' * up} during the checks"
            evidence.fail("port-down", f"{port.name}: {words}", port.name)
        if new:
            words = f"new errors of this network port during the checks: {_words(new)}"
            evidence.warn("port-errors", f"{port.name}: {words}", port.name)


def pcie_counts(root: Path | None = None) -> PcieCounts:
    """Of every device on the way from a GPU or an adapter to the root; without those that count
    no errors.
    """
    devices = (root or SYS) / "bus/pci/devices"
    adapters = {port.bus_id for port in ports(root)} - {""}
    found: PcieCounts = {}
    for address in sorted({*host_info.nvidia_devices(devices), *adapters}):
        place = (devices / address).resolve()
        for folder in [place, *place.parents]:
            if ADDRESS.fullmatch(folder.name):
                known = {kind: _total(folder / f"aer_dev_{kind}") for kind in PCIE_ERRORS}
                found[folder.name] = {kind: n for kind, n in known.items() if n is not None}
    return {address: known for address, known in found.items() if known}


def new_pcie_errors(before: PcieCounts, after: PcieCounts, evidence: Evidence) -> None:
    """Add each device whose link counted new errors."""
    for address, now in after.items():
        new = grown(before.get(address, {}), now)
        if new.get("correctable", 0) <= MOST_CORRECTABLE:
            new.pop("correctable", None)
        if new:
            verdict = FAIL if "fatal" in new else WARN
            words = f"PCIe link of {address}: new errors during the checks: {_words(new)}"
            evidence.add(verdict, "pcie-errors", words, address)


def _total(path: Path) -> int | None:
    found = re.search(r"^TOTAL_ERR_\w+ (\d+)$", _text(path), re.MULTILINE)
    return int(found[1]) if found else None


def nearest(
    found: Sequence[Port], bus_ids: dict[str, str], root: Path | None = None
) -> dict[str, str]:
    """Device -> where the adapter nearest to it is. `bus_ids`: device -> PCI address."""
    pci, places = (root or SYS) / "bus/pci/devices", {}
    for device, bus_id in bus_ids.items():
        distances = {_distance(pci, bus_id, port) for port in found if port.bus_id}
        if known := [distance for distance in NEAREST if distance in distances]:
            places[device] = known[0]
    return places


def far_from_adapters(places: dict[str, str], evidence: Evidence) -> None:
    """Warn of devices whose nearest adapter is farther than that of most devices."""
    ranks = {device: NEAREST.index(where) for device, where in places.items()}
    for device, where in places.items():
        nearer = sum(rank < ranks[device] for rank in ranks.values())
        if 2 * nearer > len(places):
            words = f"its nearest network adapter is on {where}"
            evidence.warn(
                "far-adapter", f"{device}: {words}, {nearer} other GPUs have one nearer", device
            )


def facts(found: Iterable[Port]) -> dict[str, object]:
    """The errors apart: the fleet compares everything else."""
    ports, errors = [], {}
    for port in found:
        ports.append(dataclasses.asdict(port))
        errors[port.name] = ports[-1].pop("errors")
    return {"ports": ports, **({"port_errors": errors} if errors else {})}


def _distance(pci: Path, bus_id: str, port: Port) -> str | None:
    gpu, adapter = pci / bus_id, pci / port.bus_id
    if not (gpu.exists() and adapter.exists()):
        return None
    # /sys/devices/pci0000:3a/0000:3a:01.0/…/0000:3b:00.0: what they share below the host bridge
    shared = set(gpu.resolve().parents) & set(adapter.resolve().parents)
    if any(re.fullmatch(r"[0-9a-f]{4,}:\S+\.\d", parent.name) for parent in shared):
        return SWITCH
    numa = _numa(_number(gpu / "numa_node"))
    if numa is None or port.numa_node is None:
        return None
    return NUMA if numa == port.numa_node else FAR


def _numa(number: int | None) -> int | None:
    return None if number is None or number < 0 else number  # -1: the firmware does not report it


def _listed(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(folder.iterdir(), key=lambda path: _natural(path.name))
    return []


def _natural(name: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""


def _number(path: Path) -> int | None:
    with contextlib.suppress(ValueError):
        return int(_text(path))
    return None
