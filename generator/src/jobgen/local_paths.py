"""Lookup of local paths in the group file's folder and, as SkyPilot does, in the current folder."""

from __future__ import annotations

import os
from typing import NamedTuple

from jobgen.diagnostics import quoted
from jobgen.options import Options


class EmbedError(Exception):
    """A file that cannot be embedded; the arguments are the diagnostic's code and message."""


class Found(NamedTuple):
    real: str  # the real path
    base: str  # the real path of the folder that contains it
    note: str | None  # how this differs from SkyPilot


class LocalPaths:
    def __init__(self, options: Options):
        self.folder = options.folder or "."
        self.second = options.second_folder
        self.allow_outside = options.allow_outside

    def find(self, source: str) -> Found:
        """Return the path that `source` names. Raises EmbedError."""
        if "\0" in source:
            raise EmbedError("bad-value", "not a path")
        folders = [self.folder]
        if self.second is not None and os.path.realpath(self.second) != os.path.realpath(self.folder):
            folders.append(self.second)
        existing = [folder for folder in folders if os.path.lexists(_join(folder, source))]
        if not existing:
            raise EmbedError("file-missing", self._missing(source, folders))
        base = existing[0]
        note = None
        if base != self.folder:
            note = f"taken from {_shown(base)}, because {_shown(self.folder)} does not contain it"
        elif len({os.path.realpath(_join(folder, source)) for folder in existing}) > 1:
            note = f"taken from {_shown(base)}; SkyPilot would take it from {_shown(self.second)}, as does --folder ."
        return Found(self._checked(source, base), os.path.realpath(base), note)

    def _missing(self, source: str, folders: list[str]) -> str:
        where = " nor in ".join(map(_shown, folders))
        message = f"{quoted(source)} exists {'neither ' if len(folders) > 1 else 'not '}in {where}"
        if self.second is None and os.path.lexists(_join(".", source)):
            message += "; it exists from here: pass --folder ."
        return message

    def _checked(self, source: str, base: str) -> str:
        """Return the real path, which must be inside the real folder unless --allow-outside permits another one."""
        target, real = _join(base, source), os.path.realpath(_join(base, source))
        for path, verb in ((target, "is outside"), (real, "links out of")):
            self.check_inside(path, os.path.realpath(base), f"{quoted(source)} {verb} {_shown(base)}")
        return real

    def check_inside(self, path: str, base: str, message: str) -> None:
        inside = path == base or path.startswith(base.rstrip("/") + "/")
        if not inside and not self.allow_outside:
            raise EmbedError("file-outside", f"{message}; allow it with --allow-outside")


def _join(folder: str, source: str) -> str:
    return os.path.normpath(os.path.join(os.path.realpath(folder), os.path.expanduser(source)))


def _shown(folder: str | None) -> str:
    return "the current folder" if folder in (None, ".") else f"the folder {quoted(folder)}"
