"""A made-up /sys with InfiniBand adapters and GPUs."""

from pathlib import Path

HEALTHY = {
    "link_layer": "InfiniBand",
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "rate": "400 Gb/sec (4X NDR)",
    "counters/symbol_error": "0",
    "counters/link_downed": "2",
    "counters/port_rcv_data": "123456",
    "hw_counters/out_of_sequence": "0",
}


def write(folder: Path, files: dict[str, str]):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def add_pci(root: Path, place: str, numa: int) -> Path:
    """A PCI device at a path such as "pci0000:3a/0000:3a:01.0/0000:3b:00.0"."""
    device = root / "devices" / place
    write(device, {"numa_node": str(numa)})
    link = root / "bus/pci/devices" / device.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(device)
    return device


def set_errors(root: Path, address: str, **totals: int):
    """What the kernel counts (AER): set_errors(root, "0000:3b:00.0", correctable=3)."""
    ends = {"correctable": "COR", "nonfatal": "NONFATAL", "fatal": "FATAL"}
    texts = {
        f"aer_dev_{kind}": f"RxErr {count}\nBadTLP 0\nTOTAL_ERR_{ends[kind]} {count}"
        for kind, count in totals.items()
    }
    write((root / "bus/pci/devices" / address).resolve(), texts)


def add_adapter(
    root: Path, index: int, place: str = "", numa: int = 0, kind: str = "MT4129", **changes: str
):
    """An adapter with one healthy port; changes replace its files: state="1: DOWN"."""
    device = add_pci(root, place or f"pci0000:{index}a/0000:{index}a:01.0/0000:{index}c:00.0", numa)
    folder = root / f"class/infiniband/mlx5_{index}"
    write(folder, {"hca_type": kind, "fw_ver": "28.39.1002"})
    write(folder / "ports/1", HEALTHY | changes)
    (folder / "device").symlink_to(device)


def set_port(root: Path, index: int, **changes: str):
    write(root / f"class/infiniband/mlx5_{index}/ports/1", changes)
