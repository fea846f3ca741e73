"""Lookup of local paths: relative to the group file's folder or the current one."""

import os

from jobgen.diagnostics import RefusedError, quoted
from jobgen.options import Options


def find(source: str, options: Options) -> tuple[str, str | None]:
    """Return the real path that `source` names, and how it differs from SkyPilot's. Raises
    RefusedError.
    """
    if "\0" in source:
        raise RefusedError("bad-value", "not a path")
    path, from_here = _join(options.folder or ".", source), _join(".", source)
    shown = f"the folder {quoted(options.folder)}" if options.folder else "the current folder"
    elsewhere = os.path.lexists(from_here) and os.path.realpath(from_here) != os.path.realpath(path)
    if not os.path.lexists(path):
        hint = "; it exists from here: pass --folder ." if elsewhere else ""
        where = "on this machine" if path == from_here else f"in {shown}"
        raise RefusedError("file-missing", f"{quoted(source)} does not exist {where}{hint}")
    note = None
    if elsewhere:
        note = f"taken from {shown}; SkyPilot and --folder . would take it from the current folder"
    real = os.path.realpath(path)
    check_inside(real, f"{quoted(source)} is outside {shown}", options)
    return real, note


def check_inside(path: str, message: str, options: Options) -> None:
    base = os.path.realpath(options.folder or ".")
    inside = path == base or path.startswith(f"{base.rstrip('/')}/")
    if not inside and not options.allow_outside:
        raise RefusedError("file-outside", f"{message}; allow it with --allow-outside")


def _join(folder: str, source: str) -> str:
    return os.path.normpath(os.path.join(os.path.realpath(folder), os.path.expanduser(source)))
