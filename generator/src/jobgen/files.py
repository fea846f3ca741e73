"""Local file_mounts and workdir, embedded in the values as sets of files, each folder once.

Never embedded: the group file, values that jobgen wrote, and credentials.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import posixpath
import shlex
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jobgen import archives, credentials, names
from jobgen.contract import FILES_LIMIT_BYTES
from jobgen.diagnostics import Path, quoted
from jobgen.group import GroupDocument
from jobgen.local_paths import EmbedError, LocalPaths
from jobgen.options import Options
from jobgen.yaml_writer import TITLE

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

# Helm stores the values and the rendered objects in one Secret of at most 1 MiB. It contains the files twice,
# compressed, and is base64 (x 4/3). With 450 kB for the chart, whose programs it has twice, too, and the objects of a
# group of some ranks: (1 MiB - 450 kB) / 2 / (4/3).
MAX_COMPRESSED = 220_000
MAX_ENTRIES = 10_000
MAX_PATH = 400

IGNORE_FILES = (".skyignore", ".gitignore")
WORKDIR = "~/sky_workdir"
ADVICE = "build them into the image, put them on a volume, or clone them with `workdir: {url: ..., ref: ...}`"
_HEAD = 4096  # bytes that show what a file is
_OUTPUT, _GROUP, _CREDENTIAL = "output", "group", "credential"


class FileSets:
    """The sets of files of one group."""

    def __init__(self, options: Options, source: bytes, secrets: tuple[str, ...]):
        self.paths = LocalPaths(options)
        self.allow = options.allow
        self.left_out = options.left_out
        self.source = source
        self.secrets = tuple(each.encode().decode("latin-1") for each in secrets)
        self.sets: dict[str, dict] = {}  # name -> relative path -> content
        self.names: dict[tuple[str, bool], str] = {}  # (real path, is a folder) -> name
        self.sizes: list[tuple[int, str]] = []  # of the files that are embedded
        self.total = 0
        self.first: tuple[GroupDocument, Path] | None = None

    def mounts(self, task: GroupDocument) -> list[dict]:
        """Return the value fileMounts of a task."""
        found = []
        for target, given in task.fields.get("file_mounts", {}).items():
            source = given if isinstance(given, str) else given["source"]
            if set_ := self._embed(task, ("file_mounts", target), source):
                found.append({"mountPath": target, **set_})
        return found

    def workdir(self, task: GroupDocument) -> dict | None:
        """Return the value workdir of a task."""
        given = task.fields.get("workdir")
        if isinstance(given, dict):
            return {"git": {key: given[key] for key in ("url", "ref") if key in given}}
        return self._embed(task, ("workdir",), given, must_be_folder=True) if given is not None else None

    def _embed(self, task: GroupDocument, path: Path, source: str, must_be_folder: bool = False) -> dict | None:
        if task.has_unresolved_variable(path):
            return None
        try:
            real, base, note = self.paths.find(source)
            is_folder = stat.S_ISDIR(os.stat(real).st_mode)
            if must_be_folder and not is_folder:
                raise EmbedError("bad-value", f"{quoted(source)} is a file; workdir must be a folder")
            name = self.names.get((real, is_folder))
            if name is None:
                name = self._add(task, path, source, real, base if is_folder else None)
                if note:
                    task.note(path, note)
        except EmbedError as error:
            task.report(*error.args[:1], path, error.args[1])
            return None
        except OSError as error:
            code = "file-missing" if isinstance(error, FileNotFoundError) else "file-unreadable"
            task.report(code, path, f"{quoted(source)}: {error.strerror or 'cannot be read'}")
            return None
        self.first = self.first or (task, path)
        if not self.sets[name]:  # every file is left out
            del self.sets[name], self.names[real, is_folder]
            return None
        return {"files": name} if is_folder else {"files": name, "subPath": next(iter(self.sets[name]))}

    def _add(self, task: GroupDocument, path: Path, source: str, real: str, base: str | None) -> str:
        """Embed a folder inside `base`, or a file, under a new name, and report what is embedded."""
        last = posixpath.basename(posixpath.normpath(source.rstrip("/") or "/"))
        wanted = names.label(last, "files")[:40].rstrip("-") or "files"
        name, number = wanted, 2
        while name in self.sets:
            name, number = f"{wanted}-{number}", number + 1
        is_folder = base is not None
        found = dict(self._walk(real, base)) if is_folder else {last: real}
        if not found:
            raise EmbedError("file-missing", f"{quoted(source)} contains no files")
        before = self.total
        self.sets[name], self.names[real, is_folder] = {}, name
        left_out: list[str] = []
        refused: dict[str, str] = {}  # path -> the file in it, if it is an archive
        for each in sorted(found, key=os.fsencode):
            shown = posixpath.normpath(posixpath.join(source, each) if is_folder else source)
            data, size = self._read(found[each], f"{name}/{each}")
            aliases = {shown, found[each]} if is_folder else {shown, found[each], str(path[-1])}
            inside = self._inside(data)
            kind = self._kind(found[each], data, aliases) or (None if inside is None else _CREDENTIAL)
            if kind is None or (shown in self.allow and kind != _OUTPUT):
                self.sets[name][each] = self._content(found[each], f"{name}/{each}", data, size)
            elif kind == _CREDENTIAL or not is_folder:
                refused[shown] = f" (in it {quoted(inside)})" if inside else ""
            else:
                left_out.append(each)
        if refused:
            listed = ", ".join(quoted(shown) + inside for shown, inside in refused.items())
            message = f"not embedded, because the values are readable: {listed}. Mount a Kubernetes Secret in place of "
            message += "a credential (volumes in config.kubernetes.pod_config), and list its file in .skyignore. "
            message += f"If it is not one, pass --allow {shlex.quote(next(iter(refused)))}"
            task.report("credential-file", path, message)
        self._note(task, path, self.sets[name], self.total - before, left_out)
        return name

    def _note(self, task: GroupDocument, path: Path, files: dict[str, dict], size: int, left_out: list[str]) -> None:
        count = "1 file" if len(files) == 1 else f"{len(files)} files"
        message = f"embedded {count}, {size:,} bytes"
        message += f": {', '.join(files)}" if files else ""
        message += f"; left out, because jobgen reads or writes it: {', '.join(left_out)}" if left_out else ""
        task.note(path, message, "embedded")

    def _kind(self, real: str, data: bytes, aliases: set[str]) -> str | None:
        """Return what a file is, if it is one that is never embedded."""
        found = os.stat(real)
        if (found.st_dev, found.st_ino) in self.left_out or data.startswith(TITLE.encode()):
            return _OUTPUT
        if data == self.source:
            return _GROUP
        if any(map(credentials.is_file, aliases)) or credentials.is_content(data, self.secrets):
            return _CREDENTIAL
        return None

    def _inside(self, data: bytes) -> str | None:
        """Return the name of the first credential in an archive."""
        for name, content in archives.files(data):
            if credentials.is_file(name) or credentials.is_content(content, self.secrets):
                return name
        return None

    def _walk(self, top: str, base: str) -> Iterator[tuple[str, str]]:
        """Yield the relative path and the real path of every file below `top`."""
        pending: list[tuple[str, str, list, frozenset[str]]] = [(top, "", [], frozenset([top]))]
        seen = 0
        while pending:
            folder, prefix, rules, above = pending.pop()
            if spec := _ignored_by(folder):
                rules = [*rules, (prefix, spec)]
            with os.scandir(folder) as found:
                entries = list(itertools.islice(found, MAX_ENTRIES + 1))
            for entry in entries:
                seen += 1
                if seen > MAX_ENTRIES:
                    raise EmbedError("files-too-large", f"more than {MAX_ENTRIES:,} files; {ADVICE}")
                relative = prefix + entry.name
                if entry.name == ".git" or _ignored(rules, relative, entry.is_dir()):
                    continue
                if not relative.isprintable() or len(os.fsencode(relative)) > MAX_PATH:
                    message = f"a file's name must be printable, its path at most {MAX_PATH} bytes"
                    raise EmbedError("bad-value", f"{quoted(relative)}: {message}")
                real = os.path.realpath(entry.path)
                if not os.path.exists(real):
                    message = f"{quoted(relative)} is a link to nothing; leave it out in .skyignore"
                    raise EmbedError("file-missing", message)
                self.paths.check_inside(real, base, f"{quoted(relative)} links out of the folder")
                if not entry.is_dir():
                    yield relative, real
                elif real in above:
                    message = f"{quoted(relative)} is a symbolic link to a folder that contains it"
                    raise EmbedError("file-unreadable", message)
                else:
                    pending.append((real, f"{relative}/", rules, above | {real}))

    def _read(self, real: str, shown: str) -> tuple[bytes, int]:
        """Return the content and the size of a file; only its head if it does not fit any more."""
        found = os.stat(real)
        if not stat.S_ISREG(found.st_mode):
            raise EmbedError(
                "file-unreadable", f"{quoted(shown)} is neither a file nor a folder; leave it out in .skyignore"
            )
        fits = self.total + found.st_size <= FILES_LIMIT_BYTES
        with open(real, "rb") as file:
            return file.read(FILES_LIMIT_BYTES + 1 if fits else _HEAD), found.st_size

    def _content(self, real: str, shown: str, data: bytes, size: int) -> dict:
        self.sizes.append((size, shown))
        self.total += size
        if self.total > FILES_LIMIT_BYTES:
            return {"text": ""}  # check_size() reports it
        content: dict = _as_text(data)
        if os.stat(real).st_mode & stat.S_IXUSR:
            content["executable"] = True
        return content

    def check_size(self) -> None:
        """Report files that do not fit into a ConfigMap, or into Helm's record of the release."""
        if self.first is None:
            return
        task, path = self.first
        if self.total > FILES_LIMIT_BYTES:
            message = f"{self.total:,} bytes of files; a ConfigMap holds at most {FILES_LIMIT_BYTES:,}"
        elif (compressed := self._compressed()) > MAX_COMPRESSED:
            message = (
                f"{compressed:,} bytes of compressed files; Helm's record of a release holds at most {MAX_COMPRESSED:,}"
            )
        else:
            return
        largest = sorted(self.sizes, key=lambda each: (-each[0], each[1]))[:10]
        listed = ", ".join(f"{shown} {size:,}" for size, shown in largest)
        task.report("files-too-large", path, f"{message}. Largest: {listed}. Instead, {ADVICE}", key=True)

    def _compressed(self) -> int:
        if self.total < MAX_COMPRESSED // 2:
            return 0  # cannot be more than the limit, even as base64
        import zlib

        packer = zlib.compressobj(6)
        contents = (content for files in self.sets.values() for content in files.values())
        size = sum(len(packer.compress((each.get("text") or each.get("base64") or "").encode())) for each in contents)
        return size + len(packer.flush())


def _as_text(data: bytes) -> dict:
    """Return the content as text if possible, so that people can read the values; as base64 otherwise."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if any(each in text for each in _CONTROL):
        import base64

        return {"base64": base64.b64encode(data).decode("ascii")}
    return {"text": text}


_CONTROL = [chr(code) for code in (*range(9), 11, 12, *range(14, 32), 127)]


def _ignored_by(folder: str):
    """The patterns of the folder's ignore file, for paths below it; None without one."""
    for name in IGNORE_FILES:
        try:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                lines = file.read(1_000_000).splitlines()
        except (FileNotFoundError, IsADirectoryError):
            continue
        from pathspec import GitIgnoreSpec
        from pathspec.patterns.gitignore import GitIgnorePatternError
        from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

        patterns = []
        for line in lines:
            with contextlib.suppress(GitIgnorePatternError):  # git leaves out such a line, too
                patterns.append(GitIgnoreSpecPattern(line))
        return GitIgnoreSpec(patterns)
    return None


def _ignored(rules: list[tuple[str, GitIgnoreSpec]], relative: str, folder: bool) -> bool:
    verdict = False
    for prefix, spec in rules:
        found = spec.check_file(relative.removeprefix(prefix) + "/" * folder).include
        verdict = verdict if found is None else found
    return verdict
