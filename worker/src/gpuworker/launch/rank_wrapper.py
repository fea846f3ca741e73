"""Wrapper around the user program in each rank; reports start, first step, errors and exit to the launcher.

  torchrun … rank_wrapper.py SCRIPT ARGS…      or -m MODULE ARGS…

It imports nothing of gpuworker, so that it works from a zipapp and the program may bring another gpuworker, and it
imports torch only when the program does. The rank's output goes to a separate pipe. Collectives get a time-out where
the program sets none. SIGUSR2 writes the stack of the main thread to a file.
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

# Literal, because the contract cannot be imported here; a test compares the prefix.
PREFIX = "GPU_CHARTS_"
FOLDER = os.environ.get(f"{PREFIX}LAUNCH_FOLDER", "")
LOCAL = os.environ["LOCAL_RANK"]
STARTUP_TIMEOUT_S = float(os.environ.get(f"{PREFIX}STARTUP_COLLECTIVE_TIMEOUT", "0"))
TIMEOUT_S = float(os.environ.get(f"{PREFIX}COLLECTIVE_TIMEOUT", "0"))
TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)
channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
stepped = threading.Event()
PID = os.getpid()
exit_codes = []  # one, once it is known


def exit_now():
    """End the process after the program's own exit handlers, without the interpreter's finalization: a thread of Gloo
    that still releases a tensor then aborts a finished rank ("terminate called without an active exception", torch
    2.14 and 2.15).
    """
    if exit_codes and os.getpid() == PID:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(exit_codes[0] & 0xFF)


def send(event, **facts):
    if os.getpid() != PID:  # a process that the program started
        return
    with contextlib.suppress(OSError):  # the launcher has ended; the program must not fail for that
        channel.sendto(json.dumps({"event": event, "local": int(LOCAL), **facts}).encode(), f"{FOLDER}/events")


class ImportHook(importlib.abc.MetaPathFinder):
    """Call a function with a module once it is imported."""

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


def patch_c10d(c10d):
    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*args, **kwargs):
        has_timeout = kwargs.get("timeout") is not None or len(args) > 2
        if not has_timeout:
            kwargs["timeout"] = datetime.timedelta(seconds=STARTUP_TIMEOUT_S)
        started = time.monotonic()
        original(*args, **kwargs)
        send("formed", world=c10d.get_world_size(), seconds=time.monotonic() - started)
        if not has_timeout:
            threading.Thread(target=extend_timeout, daemon=True).start()

    def extend_timeout():
        stepped.wait(STARTUP_TIMEOUT_S)
        change = getattr(c10d, "set_timeout", None) or c10d._set_pg_timeout
        if c10d.is_initialized():
            change(datetime.timedelta(seconds=TIMEOUT_S))

    c10d.init_process_group = init_process_group


def patch_optimizer(module):
    def first(*_):
        if not stepped.is_set():
            stepped.set()
            send("step")

    module.register_optimizer_step_post_hook(first)


def write_flight_record():
    """Write the flight record of Gloo, which writes none by itself; NCCL does."""
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
    atexit.register(exit_now)  # registered first, so it runs last
    pipe = os.open(f"{FOLDER}/output-{LOCAL}", os.O_WRONLY)
    for target in (1, 2):
        os.dup2(pipe, target)
    stack = open(f"{FOLDER}/stack-{LOCAL}", "a")  # noqa: SIM115 (it stays open)
    faulthandler.register(signal.SIGUSR2, stack, all_threads=False)
    send("start", pid=os.getpid(), rank=int(os.environ["RANK"]), world=int(os.environ["WORLD_SIZE"]))
    sys.meta_path.insert(
        0, ImportHook({"torch.distributed.distributed_c10d": patch_c10d, "torch.optim.optimizer": patch_optimizer})
    )
    try:
        run(sys.argv[1:])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        send("end", code=code, text="" if end.code is None or isinstance(end.code, int) else str(end.code)[:500])
        exit_codes.append(code)
        raise
    except BaseException as error:
        own = error.__traceback__
        while own and ("runpy" in own.tb_frame.f_code.co_filename or own.tb_frame.f_code.co_filename == __file__):
            own = own.tb_next
        send("error", reason=f"{type(error).__name__}: {error}"[:2000], location=location(own))
        traceback.print_exception(type(error), error, own)
        sys.stderr.flush()
        if TIMED_OUT.search(str(error)):
            write_flight_record()
            time.sleep(2)  # torchrun ends the other ranks with this one; the launcher first collects their stacks
        exit_codes.append(1)
        sys.exit(1)
    send("end", code=0, text="")
    exit_codes.append(0)


def location(own):
    """Innermost line of the program, not of a library."""
    frames = [frame for frame in traceback.extract_tb(own) if "site-packages" not in frame.filename]
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""


if __name__ == "__main__":
    main()
