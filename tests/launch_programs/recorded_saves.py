"""The program PROGRAM, with a record of all that a crash of the node would leave.

Each fsync appends a line to EVENTS/events with what it puts on the disk: a copy of the file, or the entries of the
folder. Each line also has the inodes that exist then. `saved` is the checkpoint that the program announces.
"""

import importlib
import json
import os
import shutil
import stat
from pathlib import Path

from gpuworker.train import train
from gpuworker.train.callbacks import durable

held = []  # open descriptors: the number of a deleted file is not given to another one


def entry(path):
    """Inode, kind, and target of a link."""
    kind = "link" if path.is_symlink() else "folder" if path.is_dir() else "file"
    return path.lstat().st_ino, kind, os.readlink(path) if kind == "link" else ""


def main(arguments):
    program, store = importlib.import_module(os.environ["PROGRAM"]), Path(os.environ["EVENTS"])
    output = Path(arguments[arguments.index("--output") + 1])
    events = open(store / "events", "w", buffering=1)  # noqa: SIM115 (until the end)

    def append(**facts):
        live = [os.lstat(path).st_ino for path in [output, *output.rglob("*")]]
        events.write(json.dumps(facts | {"live": live}) + "\n")

    def recorded_fsync(descriptor, fsync=os.fsync):
        fsync(descriptor)
        held.append(os.dup(descriptor))
        found, path = os.fstat(descriptor), f"/proc/self/fd/{descriptor}"
        if stat.S_ISDIR(found.st_mode):
            paths = [Path(path, name) for name in os.listdir(path)]
            append(inode=found.st_ino, entries={each.name: entry(each) for each in paths})
        else:
            copy = store / str(len(held))
            shutil.copyfile(path, copy)
            append(inode=found.st_ino, copy=copy.name)

    def recorded_log(log):
        def wrapped(*words, **facts):
            if "saved" in facts:
                append(saved=facts["saved"])
            log(*words, **facts)

        return wrapped

    os.fsync = recorded_fsync
    for module in (train, durable):
        module.log = recorded_log(module.log)
    return program.main(arguments)
