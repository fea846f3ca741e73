"""Parent process of one rank's program: starts it, copies its output, and reports how it ended.

  torchrun … --no-python python -I -S rank_runner.py MODE… PROGRAM ARGS…     MODE: --python, --bare-python or nothing

torchrun ends all ranks of a node when one of them ends with another code than 0, and kills them when they take long.
A rank that has saved must not end one that still saves, so torchrun sees this process end only when the launcher
allows it. The exit code comes from the kernel, for any program. Each rank has its own process for its output, so that
output cannot delay the launcher. Standard library only and no import of gpuworker: it starts within milliseconds.
"""

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import re
import select
import signal
import socket
import sys
import time

PREFIX = "GPU_CHARTS_"  # literal, because the contract cannot be imported here; a test compares it
PR_SET_PDEATHSIG = 1
CHUNK_BYTES, LINE_BYTES, TAIL_BYTES = 65536, 65536, 8192
BLOCKED_S = 10  # for the last output after the program's end, if the log has no reader
PARTIAL_LINE_S = 0.2  # after which an unfinished line is written: a prompt, a progress bar
TAIL_LINES, EVIDENCE_LINES = 20, 30  # of evidence: different lines
# Lines that c10d and NCCL print in their own format, before or instead of an exception.
EVIDENCE = re.compile(
    rb"(ProcessGroup\w+\.(cpp|hpp):\d+\]|(TCPStore|socket)\.cpp:\d+\]|NCCL (WARN|ERROR|error)|nccl\w+Error: ).*"
)
EVIDENCE_WORDS = (b"ProcessGroup", b"NCCL", b"nccl", b"TCPStore", b"socket.cpp")


def connect(folder):
    """A connection to the launcher of this node. Its path may be longer than an address of a socket may be."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    handle = os.open(folder, os.O_RDONLY)
    channel.connect(f"/proc/self/fd/{handle}/events")
    os.close(handle)
    return channel


class Output:
    """Copy of the program's output: whole lines, in order, at once; with the rank's prefix and in a file if wanted."""

    def __init__(self, rank, lock, prefix, file):
        self.lock, self.file = lock, file
        self.prefix = f"[rank{rank}]: ".encode() if prefix else b""
        self.partial, self.partial_at, self.in_line = b"", 0.0, False
        self.tail, self.evidence = b"", {}

    def take(self, data):
        """Returns the new lines of evidence."""
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        text = self.partial + data
        whole, newline, self.partial = text.rpartition(b"\n")
        self.partial_at = time.monotonic()
        self.write(whole + newline)
        if len(self.partial) > LINE_BYTES:
            self.flush()
        found = []
        if any(word in whole for word in EVIDENCE_WORDS):
            matches = filter(None, map(EVIDENCE.search, whole.split(b"\n")))
            for match in itertools.islice(matches, EVIDENCE_LINES):
                line = match[0].decode(errors="replace")[:600]
                if line in self.evidence or len(self.evidence) < EVIDENCE_LINES:
                    self.evidence[line] = self.partial_at
                    found.append(line)
        return found

    def flush(self, end=False):
        """Write the unfinished line; at the end with a newline, so that the next line of the log starts one."""
        self.write(self.partial)
        self.partial = b""
        if end and self.in_line:
            self.write(b"\n")

    def write(self, data):
        if not data:
            return
        if self.file is not None:
            try:
                write_all(self.file, data)
            except OSError:  # its disk is full; the log still has it
                self.file = None
        shown = data
        if self.prefix:
            body, last = (data[:-1], data[-1:]) if data.endswith(b"\n") else (data, b"")
            shown = (b"" if self.in_line else self.prefix) + body.replace(b"\n", b"\n" + self.prefix) + last
        self.in_line = not data.endswith(b"\n")
        with contextlib.suppress(OSError):  # nobody reads the log any more
            fcntl.flock(self.lock, fcntl.LOCK_EX)
            try:
                write_all(1, shown)
            finally:
                fcntl.flock(self.lock, fcntl.LOCK_UN)

    def lines(self):
        return self.tail.decode(errors="replace").splitlines()[-TAIL_LINES:]


def write_all(descriptor, data):
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # somebody else made the log non-blocking
            select.select([], [descriptor], [], 1)


def start(program, output):
    """Start the program in a process group of its own. It ends with this process."""
    parent = os.getpid()
    # A stop may come before the new process has the default handlers; one of this process would swallow it.
    stops = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # here, too: whoever ends the group must find it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
        return pid
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
    if output is not None:
        os.dup2(output, 1)
        os.dup2(output, 2)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        os.write(2, f"{program[0]}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def command(arguments, folder):
    mode = arguments[0] if arguments[0] in ("--python", "--bare-python") else ""
    rest = arguments[1:] if mode else arguments
    wrapper = [os.path.join(folder, "rank_wrapper.py")] if mode == "--python" else []
    return [sys.executable, "-u", *wrapper, *rest] if mode else rest


class Runner:
    def __init__(self):
        environ = os.environ
        self.folder, self.local = environ[f"{PREFIX}LAUNCH_FOLDER"], int(environ["LOCAL_RANK"])
        self.rank = int(environ["RANK"])
        self.channel = connect(self.folder)
        self.connected, self.released = True, False
        self.status = self.code = None  # exit code of the program, and the same once it is reported
        self.activity_at = 0.0
        lock = os.open(os.path.join(self.folder, "output.lock"), os.O_WRONLY | os.O_CREAT, 0o600)
        file = None
        if folder := environ.get(f"{PREFIX}RANK_LOGS"):
            with contextlib.suppress(OSError):
                os.makedirs(folder, exist_ok=True)
                path = os.path.join(folder, f"rank-{self.rank}.log")
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.output = Output(self.rank, lock, environ.get(f"{PREFIX}RANK_PREFIX") == "1", file)
        # With torchrun's own files or --tee, the program writes to what torchrun opened for it.
        self.pipe, self.write_end = (None, None) if environ.get(f"{PREFIX}OUTPUT") == "torchrun" else os.pipe()

    def send(self, event, **facts):
        """Report to the launcher. Only the end of the program may wait for a launcher that is busy or stopped."""
        if self.connected:
            try:
                flags = 0 if event in ("start", "end") else socket.MSG_DONTWAIT
                self.channel.send(json.dumps({"event": event, "local": self.local, **facts}).encode(), flags)
            except BlockingIOError:
                pass
            except OSError:
                self.lose_launcher()

    def run(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)  # from torchrun; the launcher decides when the program ends
        wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: signal.setitimer(signal.ITIMER_REAL, BLOCKED_S))
        signal.signal(signal.SIGALRM, lambda *_: self.report_end())
        self.pid = start(command(sys.argv[1:], self.folder), self.write_end)
        if self.write_end is not None:
            os.close(self.write_end)
        world = int(os.environ["WORLD_SIZE"])
        self.send("start", pid=self.pid, rank=self.rank, world=world)
        while True:
            self.turn(wake)
            if self.code is not None and (self.code == 0 or self.released or not self.connected):
                return

    def turn(self, wake):
        watched = [wake, *([self.channel] if self.connected else []), *([] if self.pipe is None else [self.pipe])]
        ready = select.select(watched, [], [], PARTIAL_LINE_S)[0]
        if wake in ready:
            os.read(wake, 4096)
        if self.pipe in ready:
            self.read()
        if self.output.partial and time.monotonic() - self.output.partial_at > PARTIAL_LINE_S:
            self.output.flush()
        if self.channel in ready:
            self.on_launcher()
        if self.has_ended() and self.code is None:
            self.on_end()

    def read(self):
        data = os.read(self.pipe, CHUNK_BYTES)
        if not data:
            os.close(self.pipe)
            self.pipe = None
            return
        for line in self.output.take(data):
            self.send("evidence", line=line, at=time.monotonic())
        now = time.monotonic()
        if now - self.activity_at > 1:
            self.activity_at = now
            self.send("output")

    def on_launcher(self):
        try:
            message = self.channel.recv(4096)
        except OSError:
            message = b""
        if message == b"release":
            self.released = True
        elif not message:
            self.lose_launcher()

    def lose_launcher(self):
        """End the program, which nobody else will: the launcher has ended."""
        self.connected = False
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def has_ended(self):
        if self.status is None:
            with contextlib.suppress(ChildProcessError):  # the alarm came while this asked
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                if ended:
                    self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def on_end(self):
        """Read what the program has written before its end, then report. Other processes may still write."""
        end = time.monotonic() + 1
        while self.pipe is not None and time.monotonic() < end and select.select([self.pipe], [], [], 0)[0]:
            self.read()
        self.output.flush(end=True)
        self.report_end()

    def report_end(self):
        """Report to the launcher, once; also at an alarm: a log without a reader holds this process in a write."""
        if self.code is None and self.has_ended():
            self.code = self.status
            self.send("end", code=self.code, tail=self.output.lines(), evidence=self.output.evidence)

    def finish(self):
        """End with the program's code. What the program left running may write on, so a copy of this process reads."""
        reader = None
        if self.pipe is not None:
            with contextlib.suppress(OSError):  # the machine has no room for a process
                reader = os.fork()
        if reader == 0:
            self.channel.close()
            self.connected = False
            while self.pipe is not None:
                if select.select([self.pipe], [], [], PARTIAL_LINE_S)[0]:
                    self.read()
                elif self.output.partial:
                    self.output.flush()
            self.output.flush(end=True)
        os._exit(self.code if self.code >= 0 else 128 - self.code)


if __name__ == "__main__":
    runner = Runner()
    runner.run()
    runner.finish()
