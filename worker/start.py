"""Starts a program that came with its chart; the name of the file that was called says which one.

It lies in an archive beside that file, with the modules of the programs, which it unpacks below
/tmp, once per content. As process 1 of a container it also does what an init does: it forwards
signals and reaps children.
"""

import hashlib
import io
import os
import runpy
import shutil
import signal
import sys
import tarfile
import tempfile

PROGRAMS = {
    "accept-node": "gpuworker.accept.accept_node",
    "accept-report": "gpuworker.fleet.cli",
    "ddp-launch": "gpuworker.launch.launcher",
    "ddp-tests": "gpuworker.accept.ddp_tests",
    "group-agent": "gpuworker.group.agent",
    "torchrun": "gpuworker.launch.launcher",
    "train": "gpuworker.train.train",
    "train-framework": "gpuworker.train.train_framework",
}
FORWARDED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def main() -> None:
    if os.getpid() == 1:
        go_on_in_a_child()
    name = os.path.basename(sys.argv[0])
    modules = os.path.join(__loader__.archive, "modules.tar.xz")
    try:
        sys.path[0] = unpacked(__loader__.get_data(modules))
    except (OSError, tarfile.TarError) as error:
        sys.exit(f"error: {name}: cannot unpack {modules}: {error}")
    runpy.run_module(PROGRAMS[name], run_name="__main__")  # sys.argv stays as it is


def go_on_in_a_child() -> None:
    """Return in a child. The kernel gives process 1 no signal that it does not handle."""
    child = os.fork()
    if not child:
        return
    for name in FORWARDED:
        signal.signal(getattr(signal, name), lambda number, frame: os.kill(child, number))
    ended = status = 0
    while ended != child:
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def unpacked(data: bytes) -> str:
    """Folder with the content of a tar file; made by the first of all processes that need it."""
    name = f"gpu-charts-{os.getuid()}-{hashlib.sha256(data).hexdigest()[:12]}"
    folder = os.path.join(tempfile.gettempdir(), name)
    if not os.path.isdir(folder):
        fresh = tempfile.mkdtemp(prefix=f"{name}-")
        # Of Python 3.12 on, which warns without a filter, and of late releases of those before.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        with tarfile.open(fileobj=io.BytesIO(data)) as packed:
            packed.extractall(fresh, **safe)
        try:
            os.rename(fresh, folder)
        except OSError:  # another process was first
            shutil.rmtree(fresh)
    return folder
