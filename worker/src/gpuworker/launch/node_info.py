"""What a node says about itself before the run, and what of that must be alike on all nodes. Imports no torch."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

from gpuworker.launch.config import Plan, pod_name
from gpuworker.launch.failure_causes import Verdict

# Must be the same on every node; what the plan says comes first, because the rest follows from it.
ALIKE = ("nodes", "processes", "backend", "program", "image", "launcher", "python", "torch", "cuda", "nccl", "gpus",
         "gpu_model")  # fmt: skip


def gather(plan: Plan, interface: str, address: str) -> dict:
    torch = torch_build()
    gpus = gpu_models()
    disk = plan.out or "/tmp"
    return {
        **own(),
        "node": plan.node,
        "ip": os.environ.get("POD_IP") or address,
        "interface": interface,
        "nodes": plan.nodes,
        "processes": plan.processes,
        "backend": plan.backend,
        "program": hashlib.sha256("\0".join(plan.program).encode()).hexdigest()[:12],
        "image": os.environ.get("GPU_CHARTS_IMAGE", ""),
        "launcher": digest(),
        "python": platform.python_version(),
        "torch": torch.get("__version__", ""),
        "cuda": torch.get("cuda", ""),
        "nccl": nccl_version() if gpus else "",
        "gpus": len(gpus),
        "gpu_model": ", ".join(sorted(set(gpus))),
        "gpus_planned": plan.gpus,
        "shm": shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0,
        "disk": shutil.disk_usage(disk).free,
        "disk_path": disk,
        "clock": time.time(),
    }


def own() -> dict:
    """Enough of a card to be named."""
    return {"node": os.environ.get("NODE_RANK", "?"), "pod": pod_name(), "host": os.environ.get("NODE_NAME", "")}


def digest() -> str:
    """Of the launcher itself: its sources, or the archive that it runs from."""
    here = Path(__file__).parent
    archive = next((path for path in here.parents if path.is_file()), None)
    whole = hashlib.sha256()
    for path in [archive] if archive else sorted(here.glob("*.py")):
        whole.update(path.read_bytes())
    return whole.hexdigest()[:12]


def torch_build() -> dict[str, str]:
    """What torch says of its build, read from its version file: an import takes seconds."""
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    text = file.read_text() if file and file.exists() else ""
    return {name: value for name, value in re.findall(r"^(\w+)(?::[^=]+)? *= *'([^']*)'", text, re.MULTILINE)}


def nccl_version() -> str:
    for found in importlib.metadata.distributions():
        if (found.metadata["Name"] or "").startswith("nvidia-nccl"):
            return found.version
    try:  # NVIDIA's images bring it as a library of the system
        number = ctypes.c_int()
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
        return str(number.value)
    except OSError:
        return ""


def gpu_models() -> list[str]:
    """One name for each GPU that this pod sees."""
    if tool := shutil.which("nvidia-smi"):
        command = [tool, "--query-gpu=name", "--format=csv,noheader"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        except subprocess.TimeoutExpired:
            return []
        return done.stdout.split("\n")[:-1] if done.returncode == 0 else []
    return ["GPU" for path in Path("/dev").glob("nvidia[0-9]*")]


def check_own(plan: Plan, card: dict) -> None:
    """What one node can find wrong with itself."""
    problems = []
    if card["gpus"] < plan.gpus:
        problems.append(f"{card['gpus']} GPUs, {plan.gpus} expected")
    if not card["torch"]:
        problems.append("no torch for this Python")
    if card["shm"] < plan.min_shm:
        problems.append(f"/dev/shm has {size(card['shm'])}, at least {size(plan.min_shm)} expected")
    if card["disk"] < plan.min_disk:
        problems.append(f"{card['disk_path']} has {size(card['disk'])} free, at least {size(plan.min_disk)} expected")
    if problems:
        raise Verdict("unfit", f"{who(card)}: {'; '.join(problems)}", "preflight")


def compare(plan: Plan, cards: list[dict]) -> None:
    """On node 0, with the cards of all nodes, each with its clock's distance from node 0's as `skew`."""
    for name in ALIKE:
        counts = Counter(str(card.get(name)) for card in cards)
        if len(counts) > 1:
            # The odd ones out are those that are not like most; of two alike parts, not like node 0.
            most = max(counts, key=lambda value: (counts[value], value == str(cards[0].get(name))))
            odd = [card for card in cards if str(card.get(name)) != most]
            named = ", ".join(f"{who(card)} has {card.get(name) or 'none'}" for card in odd[:8])
            more = f" and {len(odd) - 8} more" if len(odd) > 8 else ""
            raise Verdict("differ", f"{name}: {named}{more}; the others have {most or 'none'}", "preflight")
    late = [card for card in cards if abs(card["skew"]) > plan.max_clock_skew]
    if late:
        # If most clocks seem off, it is node 0's own.
        if len(late) > len(cards) / 2:
            skew = sorted(card["skew"] for card in late)[len(late) // 2]
            raise Verdict("unfit", f"{who(cards[0])}: clock {-skew:+.0f} s off the other nodes'", "preflight")
        named = ", ".join(f"{who(card)}: clock {card['skew']:+.0f} s off" for card in late[:8])
        raise Verdict("unfit", f"{named}; at most {plan.max_clock_skew:g} s allowed", "preflight")


def who(card: dict) -> str:
    """How every message names a node."""
    places = [f"pod {card['pod']}" if card.get("pod") else "", f"on {card['host']}" if card.get("host") else ""]
    inside = " ".join(filter(None, places))
    return f"node {card['node']}" + (f" ({inside})" if inside else "")


def size(number: int) -> str:
    for unit in ("", "Ki", "Mi", "Gi"):
        if number < 1024:
            return f"{number:.4g}{unit}"
        number /= 1024
    return f"{number:.4g}Ti"
