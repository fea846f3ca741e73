"""Hook in every Python of a rank: a sitecustomize.

It is first in PYTHONPATH. It changes nothing that a program can see: it removes itself from
sys.path, hands on to the image's own sitecustomize, holds no file or socket open, replaces no
function of a rank and keeps no object of the program.

The launcher asks it. Questions and answers are files in the rank's folder:

  question        a new time stamp asks for an answer
  pid             the process that is the rank: the first Python that lives below the launcher
  answer.PID      threads with their stacks and exceptions, collectives started, optimizer steps
  error.PID       the exception that ended the main program
  end.PID         the main program and its exit handlers have ended
  stepped         the optimizer has made its first step

Standard library only, Python 3.10 or newer, and no import of gpuworker.
"""

import os
import sys

# Literal, because the contract cannot be imported here; a test compares them.
FOLDER = os.environ.get("GPU_CHARTS_RANK_FOLDER", "")
ASK_S = 0.25  # between two looks for a question
TEXT, FRAMES, THREADS, CHAIN = 500, 40, 64, 8  # at most: characters, frames, threads, exceptions
DEEP = 10_000  # frames that are walked, at most
C10D, OPTIMIZER = "torch.distributed.distributed_c10d", "torch.optim.optimizer"
OWN = sys.modules[__name__]


def loaded(name):
    """The module, once its import is complete."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


def describe(error, with_text=True):
    """Facts of an exception and of those behind it, the outermost first. Never fails."""
    found, how = [], ""
    while isinstance(error, BaseException) and len(found) < CHAIN:  # it may be a ring
        found.append({"how": how, **facts(error, with_text)})
        inner = getattr(error, "exceptions", None)
        inner = inner[0] if isinstance(inner, tuple | list) and inner else None
        if isinstance(inner, BaseException):
            error, how = inner, "first of"
        elif error.__cause__ is not None:
            error, how = error.__cause__, "from"
        else:
            error, how = (None if error.__suppress_context__ else error.__context__), "while"
    return found


def facts(error, with_text):
    try:
        lines = str(error).splitlines() if with_text else []
        lines = [line for line in lines if any(map(str.isalnum, line))]  # and not only a ruler
    except BaseException:  # code of the program: it may even raise SystemExit
        lines = ["<str() of the exception failed>"]
    ends = [line.strip()[:TEXT] for line in lines[:1] + lines[1:][-1:]]
    number, file = getattr(error, "errno", None), getattr(error, "filename", None)
    return {
        "kinds": [f"{each.__module__}.{each.__qualname__}" for each in type(error).__mro__][:CHAIN],
        "text": " … ".join(ends),
        "errno": number if type(number) is int else None,
        "file": file[:TEXT] if isinstance(file, str) else "",
        "frames": stack(error.__traceback__),
    }


def stack(each):
    """[file, line, function] of a traceback, or of a frame and its callers; the innermost first.

    The outermost is always there, or a stand-in where the stack is too deep to be walked.
    """
    found, raised = [], hasattr(each, "tb_frame")
    while each is not None and len(found) < DEEP:
        frame, line = (each.tb_frame, each.tb_lineno) if raised else (each, each.f_lineno)
        code = frame.f_code
        # one in a row of those of `import`, which would push out the program's own
        if not (found and found[-1][0][:17] == code.co_filename[:17] == "<frozen importlib"):
            found.append([code.co_filename, line, code.co_name])
        each = each.tb_next if raised else each.f_back
    found = found[::-1] if raised else found
    found += [] if each is None else [["…", 0, "<module>"]]
    return found if len(found) <= FRAMES else [*found[: FRAMES - 1], found[-1]]


class Rank:
    """This process, as the launcher sees it."""

    def __init__(self):
        import _thread

        self.thread, self.pid, self.main = _thread, os.getpid(), _thread.get_ident()
        self.steps, self.bounded, self.adopted = 0, False, False
        self.owner = self.claim()
        if self.owner:
            self.serve()

    def claim(self):
        """Whether this process is the rank: no Python that owns the folder lives."""
        path = os.path.join(FOLDER, "pid")
        try:
            with open(path) as file:
                holder = int(file.read())
            if holder != self.pid:
                os.kill(holder, 0)  # an error if it has ended
                return False
        except (OSError, ValueError):
            pass  # none yet, or one that has ended
        self.write("pid", str(self.pid))
        return True

    def write(self, name, text):
        """Write a file as a whole, or not at all: the disk may be full."""
        if os.getpid() != self.pid:  # a process that the program forked
            return
        partial = os.path.join(FOLDER, f".{name}.{self.pid}")
        try:
            with open(partial, "w") as file:
                file.write(text)
            os.replace(partial, os.path.join(FOLDER, name))
        except OSError:
            pass

    def serve(self):
        """Answer questions from now on, in a thread that is not there while the process forks."""
        known = "atexit" in sys.modules
        import atexit

        if not known:  # the program shall find no module that it did not import
            del sys.modules["atexit"]
        self.start_thread()
        os.register_at_fork(before=self.stop_thread, after_in_parent=self.start_thread)
        atexit.register(self.write, f"end.{self.pid}", "True")  # the first one, so it runs last

    def start_thread(self):
        if os.getpid() == self.pid:
            # Locks: held until the thread shall end, and while it runs.
            self.stopping, self.running = self.thread.allocate_lock(), self.thread.allocate_lock()
            self.stopping.acquire()
            self.running.acquire()
            try:
                self.thread.start_new_thread(self.answer_questions, (self.stopping, self.running))
            except RuntimeError:  # no more threads: the rank cannot answer, and goes on
                self.running.release()

    def stop_thread(self):
        if os.getpid() == self.pid:
            self.stopping.release()
            self.running.acquire()

    def answer_questions(self, stopping, running):
        asked = None
        while not stopping.acquire(timeout=ASK_S):
            try:
                self.adopt()
                stamp = os.stat(os.path.join(FOLDER, "question")).st_mtime_ns
                if stamp != asked:
                    asked = stamp
                    self.answer(stamp)
            except BaseException:  # whatever it is, the program goes on
                continue
        running.release()

    def answer(self, asked):
        threading = sys.modules.get("threading")  # the program's, if it has threads
        names = {each.ident: each for each in threading.enumerate()} if threading else {}
        flying, own, threads = sys._current_exceptions(), self.thread.get_ident(), []
        for ident, frame in list(sys._current_frames().items())[-THREADS:]:
            if ident == own:
                continue
            error, known = flying.get(ident), names.get(ident)
            error = error[1] if isinstance(error, tuple) else error
            threads.append({
                "name": getattr(known, "name", ""),
                "main": ident == self.main,
                "daemon": getattr(known, "daemon", True),
                "stack": stack(frame),
                "error": describe(error),
            })  # fmt: skip
        groups, last = self.collectives()
        program = getattr(sys.modules.get("__main__"), "__file__", "") or ""
        self.write(f"answer.{self.pid}", ascii({
            "asked": asked, "owner": self.owner, "threads": threads, "groups": groups, "last": last,
            "steps": self.steps, "program": program,
        }))  # fmt: skip

    def collectives(self):
        """Process group -> collectives started; and the last one of each, by torch's recorder."""
        groups, last = {}, {}
        c10d = loaded(C10D)
        for group in list(c10d._world.pg_map) if c10d else ():
            try:
                name = str(c10d._world.pg_names[group])
                groups[name] = group._get_sequence_number_for_group()
            except Exception:
                continue  # a private interface; a group that is being destroyed
        try:
            dump = sys.modules["torch"]._C._distributed_c10d._dump_fr_trace_json
            entries = sys.modules["json"].loads(dump())["entries"] if groups else []
        except Exception:
            entries = []  # an older torch, or one without the recorder
        for entry in entries:
            if not entry.get("is_p2p"):
                last[str(entry["process_group"][0])] = {
                    "number": entry["collective_seq_id"],
                    "op": entry["profiling_name"].rpartition(":")[2],
                    "sizes": str(entry.get("input_sizes")),
                    "types": str(entry.get("input_dtypes")),
                }
        return groups, last

    def adopt(self):
        """Once torch is imported: time-outs where the program sets none, a count of its steps."""
        if self.adopted or os.getpid() != self.pid:
            return
        if not self.bounded and loaded(C10D):  # at once: the program may make a group next
            self.bounded = True
            self.set_default_timeout()
        torch, optimizer = loaded("torch"), loaded(OPTIMIZER)
        if not self.bounded or not torch or not optimizer:
            return
        self.adopted = True
        compiler = torch.compiler

        def stepped(*_):
            if not compiler.is_compiling():
                self.steps += 1
                if self.steps == 1:
                    self.write("stepped", "")

        optimizer.register_optimizer_step_post_hook(stepped)
        if not self.owner:  # a launcher of the image's is the owner, and this may be its rank
            self.serve()

    def set_default_timeout(self):
        import datetime

        timeout = datetime.timedelta(seconds=float(os.environ["GPU_CHARTS_COLLECTIVE_TIMEOUT"]))
        for module in (sys.modules["torch.distributed.constants"], sys.modules[C10D]):
            for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
                if getattr(module, name, None) is not None:
                    setattr(module, name, timeout)

    def on_event(self, event, arguments):
        try:
            if event == "import" and not self.adopted:
                self.adopt()
            elif event.startswith("cpython.run_") and sys.modules.get("sitecustomize") is OWN:
                del sys.modules["sitecustomize"]  # site has read it: the program shall not see it
            elif event == "sys.excepthook" and (self.owner or self.adopted):
                # The text comes from code of the program, which may block.
                self.write(f"error.{self.pid}", ascii(describe(arguments[2], with_text=False)))
                self.write(f"error.{self.pid}", ascii(describe(arguments[2])))
                self.answer(None)  # without a question, which might come too late
        except BaseException:  # whatever it is, the program goes on
            pass


def hand_on():
    """Import the sitecustomize that Python would have imported."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != here]
    sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", OWN)  # site looks for it


if __name__ == "sitecustomize":
    try:
        if FOLDER:
            sys.addaudithook(Rank().on_event)
    except Exception:  # a rank without its hook is named in the log
        pass
    hand_on()
