"""Hook in every Python of a task that has the launcher: a sitecustomize, by which `python -m
torch.distributed.run` and `accelerate launch` find the launcher, as a script finds it under the
name torchrun.

It changes nothing else, and hands on to the image's own sitecustomize. In a rank, where the
variable is not set, it only hands on: a torchrun in there is the image's own. Standard library
only, Python 3.10 or newer, and no import of gpuworker.
"""

import os
import sys

TORCHRUN = os.environ.get("GPU_CHARTS_TORCHRUN", "")
STANDARD = "torch.distributed.run", "torch.distributed.launch"
OWN = sys.modules[__name__]
SEEN = []  # the import of torchrun, once


def find_launcher():
    words = sys.orig_argv
    module = words.index("-m") + 1 if "-m" in words else 0
    if 0 < module < len(words) and words[module] in STANDARD and sys.argv[0] == "-m":
        os.execv(TORCHRUN, [TORCHRUN, *words[module + 1 :]])


def on_event(event, arguments):
    try:
        if event == "import" and arguments[0] == STANDARD[0] and not SEEN:
            import importlib

            SEEN.append(event)  # the import here is an event, too
            importlib.import_module(STANDARD[0]).run = run_launcher
    except BaseException:  # whatever it is, the program goes on
        pass


def run_launcher(args):
    """torch.distributed.run.run for a program that calls it: accelerate launch."""
    flags = [f"--nproc-per-node={args.nproc_per_node}"]
    flags += ["--module"] * bool(args.module) + ["--no-python"] * bool(args.no_python)
    words = [TORCHRUN, *flags, "--", args.training_script, *args.training_script_args]
    os.execv(TORCHRUN, words)


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
    if TORCHRUN:
        find_launcher()
        sys.addaudithook(on_event)
    hand_on()
