"""Runs the program within each rank, and tells the launcher what torchrun will not.

  torchrun … rank_wrapper.py SCRIPT ARGS…      or -m MODULE ARGS…

It imports nothing of gpuworker, so that it works from an archive and the program may have a gpuworker of its own, and
it imports torch only when the program does. It gives the rank's output a pipe of its own, tells how the program ended,
when the world was formed and when the first step was done, bounds collectives where the program does not, and lets
the launcher ask where the rank is (SIGUSR2 writes the stack of its main thread to a file).
"""

import atexit
import contextlib
import datetime
import faulthandler
import functools
import importlib.abc
import importlib.util
import json
import os
import re
import runpy
import signal
import socket
import sys
import threading
import time
import traceback

FOLDER = os.environ.get("DDP_LAUNCH_FOLDER", "")
LOCAL = os.environ["LOCAL_RANK"]
START_S, WORK_S = (float(os.environ.get(f"DDP_LAUNCH_{name}", "0")) for name in ("START_TIMEOUT", "WORK_TIMEOUT"))
TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)
line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
stepped = threading.Event()
PID = os.getpid()
ended = []  # the exit code, once it is known


def leave():
    """The process's end, after the program's own exit handlers. Not the interpreter's: a thread of gloo that still lets
    go of a tensor then aborts a rank that was done ("terminate called without an active exception", torch 2.14, 2.15).
    """
    if ended and os.getpid() == PID:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(ended[0] & 0xFF)


def tell(event, **facts):
    if os.getpid() != PID:  # a process that the program made
        return
    with contextlib.suppress(OSError):  # the launcher is gone; the program must not care
        line.sendto(json.dumps({"event": event, "local": int(LOCAL), **facts}).encode(), f"{FOLDER}/events")


class Watch(importlib.abc.MetaPathFinder):
    """Calls a function with a module once it has been imported."""

    def __init__(self, wanted):
        self.wanted = wanted

    def find_spec(self, name, path=None, target=None):
        if name not in self.wanted:
            return None
        then = self.wanted.pop(name)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            then(module)

        spec.loader.exec_module = exec_module
        return spec


def on_c10d(c10d):
    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*args, **kwargs):
        theirs = kwargs.get("timeout") is not None or len(args) > 2
        if not theirs:
            kwargs["timeout"] = datetime.timedelta(seconds=START_S)
        begun = time.monotonic()
        original(*args, **kwargs)
        tell("formed", world=c10d.get_world_size(), seconds=time.monotonic() - begun)
        if not theirs:
            threading.Thread(target=lengthen, daemon=True).start()

    def lengthen():
        stepped.wait(START_S)
        change = getattr(c10d, "set_timeout", None) or c10d._set_pg_timeout
        if c10d.is_initialized():
            change(datetime.timedelta(seconds=WORK_S))

    c10d.init_process_group = init_process_group


def on_optimizer(module):
    def first(*_):
        if not stepped.is_set():
            stepped.set()
            tell("step")

    module.register_optimizer_step_post_hook(first)


def keep_flight_record():
    """Gloo does not write one by itself; NCCL does."""
    path = os.environ.get("TORCH_FR_DUMP_TEMP_FILE")
    torch = sys.modules.get("torch")
    try:
        record = torch._C._distributed_c10d._dump_fr_trace(backend="gloo")
        with open(path + os.environ["RANK"], "wb") as file:
            file.write(record)
    except Exception:
        return  # a torch without it, a program without torch, or a full disk: the error itself matters more


def run(program):
    if program[0] == "-m":
        sys.argv = program[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
        runpy.run_path(program[0], run_name="__main__")


def main():
    atexit.register(leave)  # the first that is registered is the last that runs
    pipe = os.open(f"{FOLDER}/output-{LOCAL}", os.O_WRONLY)
    for target in (1, 2):
        os.dup2(pipe, target)
    stack = open(f"{FOLDER}/stack-{LOCAL}", "a")  # noqa: SIM115 (it stays open)
    faulthandler.register(signal.SIGUSR2, stack, all_threads=False)
    tell("start", pid=os.getpid(), rank=int(os.environ["RANK"]), world=int(os.environ["WORLD_SIZE"]))
    sys.meta_path.insert(
        0, Watch({"torch.distributed.distributed_c10d": on_c10d, "torch.optim.optimizer": on_optimizer})
    )
    try:
        run(sys.argv[1:])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        tell("end", code=code, why="" if end.code is None or isinstance(end.code, int) else str(end.code)[:500])
        ended.append(code)
        raise
    except BaseException as error:
        own = error.__traceback__
        while own and ("runpy" in own.tb_frame.f_code.co_filename or own.tb_frame.f_code.co_filename == __file__):
            own = own.tb_next
        tell("error", why=f"{type(error).__name__}: {error}"[:2000], place=place(own))
        traceback.print_exception(type(error), error, own)
        sys.stderr.flush()
        if TIMED_OUT.search(str(error)):
            keep_flight_record()
            time.sleep(2)  # torchrun ends the other ranks with this one; let the launcher ask first where they are
        ended.append(1)
        sys.exit(1)
    tell("end", code=0, why="")
    ended.append(0)


def place(own):
    """The innermost line of the program itself, not of a library."""
    frames = [frame for frame in traceback.extract_tb(own) if "site-packages" not in frame.filename]
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""


if __name__ == "__main__":
    main()
