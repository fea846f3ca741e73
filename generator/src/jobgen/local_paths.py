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
        base, note = existing[0], None
        if _is_absolute(source):
            base = next((each for each in existing if _contains(os.path.realpath(each), _join(each, source))), base)
        elif base != self.folder:
            note = f"taken from {_shown(base)}, because {_shown(self.folder)} does not contain it"
        elif len({os.path.realpath(_join(folder, source)) for folder in existing}) > 1:
            note = f"taken from {_shown(base)}; SkyPilot would take it from {_shown(self.second)}, as does --folder ."
        return Found(self._checked(source, base), os.path.realpath(base), note)

    def _missing(self, source: str, folders: list[str]) -> str:
        if _is_absolute(source):
            return f"{quoted(source)} does not exist on this machine"
        where = " nor in ".join(map(_shown, folders))
        message = f"{quoted(source)} {'exists neither' if len(folders) > 1 else 'does not exist'} in {where}"
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
        if not _contains(base, path) and not self.allow_outside:
            raise EmbedError("file-outside", f"{message}; allow it with --allow-outside")


def _is_absolute(source: str) -> bool:
    return os.path.isabs(os.path.expanduser(source))


def _contains(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _join(folder: str, source: str) -> str:
    return os.path.normpath(os.path.join(os.path.realpath(folder), os.path.expanduser(source)))


def _shown(folder: str | None) -> str:
    return "the current folder" if folder in (None, ".") else f"the folder {quoted(folder)}"
