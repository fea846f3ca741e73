"""Hook in every Python of a group's task that has the launcher, as sitecustomize in PYTHONPATH.

It lets `python -m torch.distributed.run` and `accelerate launch` find the launcher, as a script
finds it under the name torchrun. In a rank it does nothing. It removes itself from sys.path and
hands on to the image's own sitecustomize.

Standard library only, Python 3.10 or newer, and no import of gpuworker.
"""

import os
import sys

TORCHRUN = os.environ.get("GPU_CHARTS_TORCHRUN", "")
IN_RANK = "GPU_CHARTS_RANK_FOLDER" in os.environ
SEEN = []  # the event, once
STANDARD = "torch.distributed.run", "torch.distributed.launch"


def find_launcher():
    words = sys.orig_argv
    module = words.index("-m") + 1 if "-m" in words else 0
    if 0 < module < len(words) and words[module] in STANDARD and sys.argv[0] == "-m":
        os.execv(TORCHRUN, [TORCHRUN, *words[module + 1 :]])


def on_event(event, arguments):
    if event == "import" and arguments[0] == STANDARD[0] and not IN_RANK and not SEEN:
        import importlib

        SEEN.append(event)  # the import here is an event, too
        importlib.import_module(STANDARD[0]).run = run
    elif event.startswith("cpython.run_") and sys.modules.get("sitecustomize") is OWN:
        del sys.modules["sitecustomize"]  # site has read it: the program shall not see it


def run(args):
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
    OWN = sys.modules[__name__]
    if TORCHRUN:
        sys.addaudithook(on_event)
        if not IN_RANK:
            find_launcher()
    hand_on()
