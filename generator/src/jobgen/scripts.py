"""What setup and run need, and the pods do not have: SkyPilot, root, and a launcher that does not hang."""

from __future__ import annotations

import re

from jobgen.diagnostics import WARNING
from jobgen.group import GroupDocument

# sky jobs launch, sky launch or sky exec as a command, and the same from Python
_LAUNCH = re.compile(
    r"(?:^|[\s;&|(`])sky\s+(?:jobs\s+)?(?:launch|exec)\b|\bsky\.(?:jobs\.)?(?:launch|exec)\(", re.MULTILINE
)
# As the chart looks for it: torchrun, python -m torch.distributed.run, accelerate launch
_TORCHRUN = re.compile(r"(?:^|[\s;&|(])(torchrun\s|torch\.distributed\.(run|launch)\b|accelerate\s+launch\b)")
_SEPARATORS = re.compile(r"[\n;&|()]")
_BEFORE = {"if", "then", "elif", "else", "while", "until", "do", "!", "{", "time", "exec"}  # a command
_AS_ROOT = {"sudo", "apt", "apt-get", "dnf", "yum", "apk"}


def check(task: GroupDocument, template: dict, image: str | None, gpus: int) -> None:
    """Report what the scripts of the task need; its pods have the podTemplate `template`, the image, and GPUs."""
    several = max(task.fields.get("num_nodes", 1), gpus) > 1
    chosen = task.options.launcher or task.fields.get("launcher")
    if image and several and not chosen and _TORCHRUN.search(task.fields.get("run") or ""):
        message = "torchrun of an image of its own is a bare one, which hangs where ddp-launch ends and names the"
        message += " cause: write `launcher: ddp-launch`, or pass --launcher ddp-launch, if the image has Python 3.10"
        task.note(("run",), f"{message} or newer", "bare-torchrun")
    for field in ("setup", "run"):
        script = task.fields.get(field) or ""
        if _LAUNCH.search(script):
            message = "starts a job with SkyPilot, which is not there: no task can join a group that runs. Write an"
            message += " auxiliary task (not in primary_tasks) that waits for work, for example for new checkpoints"
            task.report("dynamic-task", (field,), f"{message} on a shared volume", WARNING)
        if (command := _needs_root(script)) and not _is_root(template):
            message = (
                f"`{command}` needs root, and programs run as an unnamed user: install it in the image, or set the"
            )
            message += " values podSecurityContext and containerSecurityContext"
            task.report("needs-root", (field,), message, WARNING)


def _needs_root(script: str) -> str | None:
    """Return the first command that writes into the system, or into the image's Python."""
    for command in _SEPARATORS.split(script.replace("\\\n", " ")):
        words = command.split()
        first = next((index for index, word in enumerate(words) if word not in _BEFORE and "=" not in word), 0)
        words = words[first:]
        if len(words) > 1 and words[0] in _AS_ROOT:
            return words[0]
        if words[:3] == ["uv", "pip", "install"] and "--system" in words:
            return "uv pip install --system"
    return None


def _is_root(template: dict) -> bool:
    spec = template.get("spec", {})
    contexts = [each.get("securityContext") or {} for each in (spec, *spec.get("containers", [])[:1]) if each]
    return any(each.get("runAsUser") == 0 for each in contexts)
