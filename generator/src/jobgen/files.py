"""Local file_mounts and workdir, embedded in the values as sets of files, each folder once: links,
.skyignore, sizes.

Never embedded: the group file, values that jobgen wrote, and credentials.
"""

import base64
import contextlib
import json
import os
import posixpath
import re
import shlex
import stat
import zlib
from collections.abc import Iterator

from jobgen import credentials, names
from jobgen.contract import FILES_LIMIT_BYTES
from jobgen.diagnostics import Path, RefusedError, quoted
from jobgen.group import GroupDocument
from jobgen.local_paths import check_inside, find
from jobgen.options import Options
from jobgen.yaml_writer import TITLE

# Helm stores the values and the rendered objects in one Secret of at most 1 MiB. It contains the
# files twice, compressed, and is base64 (x 4/3). With 450 kB for the chart, whose programs it has
# twice, too, and the objects of a group of some ranks: (1 MiB - 450 kB) / 2 / (4/3).
MAX_COMPRESSED = 220_000
MAX_ENTRIES = 10_000
MAX_PATH = 400

IGNORE_FILES = (".skyignore", ".gitignore")
WORKDIR = "~/sky_workdir"
ADVICE = (
    "build them into the image, put them on a volume, or clone them with `workdir: {url: "
    "..., ref: ...}`"
)
_CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")


class FileSets:
    """The sets of files of one group."""

    def __init__(self, options: Options, source: bytes, secrets: tuple[str, ...]):
        self.options = options
        self.source = source
        self.secrets = tuple(each.encode().decode("latin-1") for each in secrets)
        self.sets: dict[str, dict] = {}  # name -> relative path -> content
        self.names: dict[str, str] = {}  # real path -> name
        self.sizes: list[tuple[int, str]] = []  # of the files that are embedded
        self.total = 0

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
        return None if given is None else self._embed(task, ("workdir",), given)

    def _embed(self, task: GroupDocument, path: Path, source: str) -> dict | None:
        try:
            real, note = find(source, self.options)
            is_folder = os.path.isdir(real)
            if path == ("workdir",) and not is_folder:
                raise RefusedError(
                    "bad-value", f"{quoted(source)} is a file; workdir must be a folder"
                )
            name = self.names.get(real)
            if name is None:
                name = self._add(task, path, source, real)
                if note:
                    task.note(path, note)
        except RefusedError as error:
            code, message = error.args
            task.report(code, path, message)
            return None
        except OSError as error:
            code = "file-missing" if isinstance(error, FileNotFoundError) else "file-unreadable"
            task.report(code, path, f"{quoted(source)}: {error.strerror or 'cannot be read'}")
            return None
        if not self.sets[name]:  # every file is left out
            del self.sets[name], self.names[real]
            return None
        return (
            {"files": name}
            if is_folder
            else {"files": name, "subPath": next(iter(self.sets[name]))}
        )

    def _add(self, task: GroupDocument, path: Path, source: str, real: str) -> str:
        """Embed a folder, or a file, under a new name, and report what is
        embedded.
        """
        last = posixpath.basename(posixpath.normpath(source))
        wanted = names.label(last, "files")[:40].rstrip("-") or "files"
        name, number = wanted, 2
        while name in self.sets:
            name, number = f"{wanted}-{number}", number + 1
        is_folder = os.path.isdir(real)
        found = dict(self._walk(real)) if is_folder else {last: real}
        if not found:
            raise RefusedError("file-missing", f"{quoted(source)} contains no files")
        before = self.total
        self.sets[name], self.names[real] = {}, name
        left_out: list[str] = []
        refused: list[str] = []
        for each in sorted(found, key=os.fsencode):
            shown = posixpath.normpath(posixpath.join(source, each) if is_folder else source)
            about = os.stat(found[each])
            if not stat.S_ISREG(about.st_mode):
                message = (
                    f"{quoted(shown)} is neither a file nor a folder; leave it out in .skyignore"
                )
                raise RefusedError("file-unreadable", message)
            fits = self.total + about.st_size <= FILES_LIMIT_BYTES  # else check_size() reports it
            with open(found[each], "rb") as file:
                data = file.read(FILES_LIMIT_BYTES if fits else 0)
            called = {shown, found[each], str(path[-1])}
            if is_folder and self._is_own(about, data):
                left_out.append(each)
            elif shown not in self.options.allow and (
                self._is_own(about, data)
                or credentials.is_content(data, self.secrets)
                or any(map(credentials.is_file, called))
            ):
                refused.append(shown)
            else:
                self.total += about.st_size
                self.sizes.append((about.st_size, f"{name}/{each}"))
                self.sets[name][each] = _content(data, about.st_mode)
        if refused:
            listed = ", ".join(map(quoted, refused))
            message = (
                f"not embedded, because the values are readable: {listed}. Mount a Secret "
                "in place of a credential (volumes in config.kubernetes.pod_config), and list "
                "its file in .skyignore. "
            )
            message += f"If it is not one, pass --allow {shlex.quote(refused[0])}"
            task.report("credential-file", path, message)
        message = f"embedded {self.total - before:,} bytes"
        message += f": {', '.join(self.sets[name])}" if self.sets[name] else ""
        message += (
            f"; left out, because jobgen reads or writes it: {', '.join(left_out)}"
            if left_out
            else ""
        )
        task.note(path, message, "embedded")
        return name

    def _is_own(self, about: os.stat_result, data: bytes) -> bool:
        """Whether jobgen reads or writes the file."""
        output = self.options.output
        is_output = output is not None and os.path.samestat(about, output)
        return is_output or data.startswith(TITLE.encode()) or data == self.source

    def _walk(self, top: str) -> Iterator[tuple[str, str]]:
        """Yield the relative path and the real path of every file below `top`."""
        pending: list[tuple[str, str, list, frozenset[str]]] = [(top, "", [], frozenset([top]))]
        seen = 0
        while pending:
            folder, prefix, rules, above = pending.pop()
            if spec := _ignored_by(folder):
                rules = [*rules, (prefix, spec)]
            with os.scandir(folder) as entries:
                for entry in entries:
                    seen += 1
                    if seen > MAX_ENTRIES:
                        raise RefusedError(
                            "files-too-large", f"more than {MAX_ENTRIES:,} files; {ADVICE}"
                        )
                    relative = prefix + entry.name
                    if entry.name == ".git" or _ignored(rules, relative, entry.is_dir()):
                        continue
                    if not relative.isprintable() or len(os.fsencode(relative)) > MAX_PATH:
                        message = (
                            f"a file's name must be printable, its path at most {MAX_PATH} bytes"
                        )
                        raise RefusedError("bad-value", f"{quoted(relative)}: {message}")
                    real = os.path.realpath(entry.path)
                    if not os.path.exists(real):
                        message = (
                            f"{quoted(relative)} is a link to nothing; leave it out in .skyignore"
                        )
                        raise RefusedError("file-missing", message)
                    check_inside(real, f"{quoted(relative)} links out of the folder", self.options)
                    if not entry.is_dir():
                        yield relative, real
                    elif real in above:
                        message = (
                            f"{quoted(relative)} is a symbolic link to a folder that contains it"
                        )
                        raise RefusedError("file-unreadable", message)
                    else:
                        pending.append((real, f"{relative}/", rules, above | {real}))

    def check_size(self, header: GroupDocument) -> None:
        """Report files that do not fit into a ConfigMap, or into Helm's record of the release."""
        compressed = len(zlib.compress(json.dumps(self.sets).encode()))
        if self.total > FILES_LIMIT_BYTES:
            message = (
                f"{self.total:,} bytes of files; a ConfigMap holds at most {FILES_LIMIT_BYTES:,}"
            )
        elif compressed > MAX_COMPRESSED:
            message = f"{compressed:,} bytes of compressed files; "
            message += f"Helm's record of a release holds at most {MAX_COMPRESSED:,}"
        else:
            return
        largest = sorted(self.sizes, key=lambda each: (-each[0], each[1]))[:10]
        listed = ", ".join(f"{shown} {size:,}" for size, shown in largest)
        message = f"{message}. Largest: {listed}. Instead, {ADVICE}"
        header.report("files-too-large", (), message)


def _content(data: bytes, mode: int) -> dict:
    """The file as text if possible, so that people can read the values; as base64 otherwise."""
    content: dict = {"base64": base64.b64encode(data).decode("ascii")}
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode("utf-8")
        if not _CONTROL.search(text):
            content = {"text": text}
    return content | ({"executable": True} if mode & stat.S_IXUSR else {})


def _ignored_by(folder: str):
    """The patterns of the folder's ignore file, for paths below it; None without one."""
    for name in IGNORE_FILES:
        try:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                lines = file.read(1_000_000).splitlines()
        except (FileNotFoundError, IsADirectoryError):
            continue
        from pathspec import GitIgnoreSpec

        patterns: list = []
        for line in lines:
            with contextlib.suppress(ValueError):  # git leaves out such a line, too
                patterns += GitIgnoreSpec.from_lines([line]).patterns
        return GitIgnoreSpec(patterns)
    return None


def _ignored(rules: list[tuple], relative: str, folder: bool) -> bool:
    verdict = False
    for prefix, spec in rules:
        found = spec.check_file(relative.removeprefix(prefix) + "/" * folder).include
        verdict = verdict if found is None else found
    return verdict
