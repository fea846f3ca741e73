"""Wrapper around the user program in each rank: it reports errors, the first step and hangs to the launcher.

  rank_wrapper.py SCRIPT ARGS…      or -m MODULE ARGS…      (`--rank-wrapper=off` of ddp-launch starts them without it)

It imports nothing of gpuworker, so that it works from a zipapp and the program may bring another gpuworker, and it
imports torch only when the program does. Collectives of every group get a time-out where the program sets none.
A real-time signal writes the stacks of all threads to a file; programs use SIGUSR1 and SIGUSR2 themselves.
How the rank ended is not decided here: rank_runner.py reports the exit code of the process.
"""

import atexit
import contextlib
import datetime
import faulthandler
import functools
import gc
import importlib.abc
import importlib.util
import io
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
LOCAL = os.environ.get("LOCAL_RANK", "0")  # the launcher imports this file for its constants
STARTUP_TIMEOUT_S = float(os.environ.get(f"{PREFIX}STARTUP_COLLECTIVE_TIMEOUT", "0"))
TIMEOUT_S = float(os.environ.get(f"{PREFIX}COLLECTIVE_TIMEOUT", "0"))
TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)
STACK_SIGNAL = signal.SIGRTMAX - 3
STEP_S = 1.0  # at most one report of a step in this time
STACKS_S = 2.0  # a rank whose collective timed out stays, so that the launchers can collect the stacks of the others
# Paths of Python, its packages and this file: not the user's program.
LIBRARY = re.compile(r"/lib(64)?/python3|site-packages|dist-packages|^<frozen|/rank_wrapper\.py$")
channel = None
stepped = threading.Event()
PID = os.getpid()
# Files that end with a trailer, which is written when they are closed.
WITH_TRAILER = (("gzip", "GzipFile"), ("bz2", "BZ2File"), ("lzma", "LZMAFile"), ("zipfile", "ZipFile"))
exit_codes = []  # one, once it is known


def connect():
    """A connection to the launcher of this node. Its path may be longer than an address of a socket may be."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    handle = os.open(FOLDER, os.O_RDONLY)
    try:
        made.connect(f"/proc/self/fd/{handle}/events")
    finally:
        os.close(handle)
    return made


def send(event, **facts):
    if os.getpid() != PID:  # a process that the program started
        return
    with contextlib.suppress(OSError, AttributeError):  # the launcher has ended; the program must not fail for that
        channel.send(json.dumps({"event": event, "local": int(LOCAL), **facts}).encode(), socket.MSG_DONTWAIT)


def answer_requests():
    """Thread: the number of collectives that this rank has started, per process group, whenever the launcher asks."""
    with contextlib.suppress(OSError):
        while channel.recv(4096):
            c10d = sys.modules.get("torch.distributed.distributed_c10d")
            numbers = {}
            with contextlib.suppress(Exception):  # a private interface: without it, the stacks remain
                for group in list(c10d._world.pg_map):
                    numbers[c10d._world.pg_names[group]] = group._get_sequence_number_for_group()
            send("sequence", numbers=numbers)


def exit_now():
    """End the process after the program's own exit handlers, without the interpreter's finalization: a thread of Gloo
    that still releases a tensor then aborts a finished rank ("terminate called without an active exception", torch
    2.14 and 2.15).
    """
    if exit_codes and os.getpid() == PID:
        ignore_stop_signals()
        write_open_files()
        os._exit(exit_codes[0] & 0xFF)


def ignore_stop_signals():
    """The program has ended: a handler of its own that raises now would leave its files unwritten."""
    for number in (signal.SIGTERM, signal.SIGINT):
        for _ in range(2):  # a signal that has already arrived runs the handler once more
            with contextlib.suppress(BaseException):
                signal.signal(number, signal.SIG_IGN)


def write_open_files():
    """Write what the program left in the buffers of open files, as the interpreter's finalization would."""
    found = gc.get_objects()  # every open file is among them
    with_trailer = tuple(getattr(sys.modules[module], kind) for module, kind in WITH_TRAILER if module in sys.modules)
    acts = [("flush", each) for each in found if issubclass(type(each), io.TextIOBase)]
    acts += [("close", each) for each in found if issubclass(type(each), with_trailer)]
    acts += [("flush", each) for each in found if issubclass(type(each), io.IOBase)]
    for act, each in acts:
        with contextlib.suppress(Exception):  # it is closed, or its disk is full
            getattr(each, act)()


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
    """Default time-outs of all groups: new_group, DeviceMesh and FSDP use the module's defaults, as the world does."""
    startup, later = (datetime.timedelta(seconds=seconds) for seconds in (STARTUP_TIMEOUT_S, TIMEOUT_S))
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        if getattr(c10d, name, None) is not None:
            setattr(c10d, name, startup)
    defaults = set()  # groups whose time-out the program did not set
    original_init, original_new = c10d.init_process_group, c10d._new_process_group_helper
    threads_started = []

    @functools.wraps(original_init)
    def init_process_group(*args, **kwargs):
        started = time.monotonic()
        original_init(*args, **kwargs)
        send("formed", world=c10d.get_world_size(), seconds=time.monotonic() - started)
        if not threads_started:
            threads_started.append(threading.Thread(target=extend_timeouts, daemon=True))
            threads_started[0].start()

    @functools.wraps(original_new)
    def new_process_group_helper(*args, **kwargs):
        made = original_new(*args, **kwargs)
        if kwargs.get("timeout") == startup:
            defaults.add(made[0])
            if stepped.is_set():
                extend(made[0])
        return made

    def extend(group):
        with contextlib.suppress(Exception):  # a group that this rank is not in, or one that is destroyed
            (getattr(c10d, "set_timeout", None) or c10d._set_pg_timeout)(later, group)

    def extend_timeouts():
        stepped.wait(STARTUP_TIMEOUT_S)
        stepped.set()
        for group in list(defaults):
            extend(group)

    c10d.init_process_group, c10d._new_process_group_helper = init_process_group, new_process_group_helper


def patch_optimizer(module):
    last = [0.0]

    def step(*_):
        now = time.monotonic()
        if now - last[0] >= STEP_S:
            last[0] = now
            stepped.set()
            send("step", at=now)

    module.register_optimizer_step_post_hook(step)


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
    global channel
    atexit.register(exit_now)  # registered first, so it runs last
    with contextlib.suppress(OSError):
        channel = connect()
        threading.Thread(target=answer_requests, daemon=True).start()
        stack = open(f"{FOLDER}/stack-{LOCAL}", "a")  # noqa: SIM115 (it stays open)
        faulthandler.register(STACK_SIGNAL, stack, all_threads=True)
        send("wrapped")
    sys.meta_path.insert(
        0, ImportHook({"torch.distributed.distributed_c10d": patch_c10d, "torch.optim.optimizer": patch_optimizer})
    )
    try:
        run(sys.argv[1:])
    except SystemExit as end:
        code = exit_code(end.code)
        send("ending", text="", threads=threads())
        if not isinstance(end.code, int | None):  # its __str__ is code of the program, which may block
            send("ending", text=str(end.code)[:500], threads=threads())
        exit_codes.append(code)
        raise
    except BaseException as error:
        own = error.__traceback__
        while own and ("runpy" in own.tb_frame.f_code.co_filename or own.tb_frame.f_code.co_filename == __file__):
            own = own.tb_next
        # The text comes from code of the program, which may block; what is sent before it is then the report.
        send("error", **describe(error, own, with_text=False))
        facts = describe(error, own)
        send("error", **facts)
        with contextlib.suppress(Exception):
            traceback.print_exception(type(error), error, own)
            sys.stderr.flush()
        if facts["waits"]:
            write_flight_record()
            time.sleep(STACKS_S)
        send("ending", text="", threads=threads())
        exit_codes.append(1)
        sys.exit(1)
    send("ending", text="", threads=threads())
    exit_codes.append(0)


def threads():
    """Threads for which the interpreter waits at the end, with the line of the program at which each one is."""
    frames, found = sys._current_frames(), []
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon and thread.ident in frames:
            stack = traceback.extract_stack(frames[thread.ident])
            found.append(f"{thread.name} at {place(stack)}")
    return found[:5]


def exit_code(given):
    """The exit code of sys.exit(given): a number that C's long cannot hold counts as -1."""
    if isinstance(given, int):
        return given if -(1 << 63) <= given < 1 << 63 else -1
    return 0 if given is None else 1


def describe(error, own, with_text=True):
    """Facts of an exception: its classes, errno, and where it was raised. Of a group, those of its first member."""
    leaf, within = error, ""
    while getattr(leaf, "exceptions", None):
        leaf, within = leaf.exceptions[0], f" (first of {type(error).__name__})"
    try:
        text = str(leaf) if with_text else ""
    except Exception:
        text = "<str() of the exception failed>"
    stack = traceback.extract_tb(own if leaf is error else leaf.__traceback__)
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(leaf).__mro__]
    return {
        "reason": f"{type(leaf).__name__}{': ' if text else ''}{text}"[:2000] + within,
        "kinds": kinds[: kinds.index("builtins.BaseException")],
        "errno": getattr(leaf, "errno", None) if isinstance(leaf, OSError) else None,
        "location": place(stack),
        "waits": bool(TIMED_OUT.search(text)),
    }


def place(stack):
    """Innermost line of the program, else of a library; empty without a stack."""
    frames = [frame for frame in stack if not LIBRARY.search(frame.filename)] or list(stack)
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""


if __name__ == "__main__":
    main()
