"""Files that are not embedded: what .skyignore says, else .gitignore, in the embedded folder or one below it."""

from __future__ import annotations

import re

FILES = (".skyignore", ".gitignore")
ALWAYS = ".git"


class Rules:
    """The lines of one ignore file; paths are relative to its folder."""

    def __init__(self, text: str):
        self.rules = [rule for line in text.splitlines() if (rule := _rule(line))]

    def ignores(self, path: str, folder: bool) -> bool | None:
        """Whether the last rule that fits ignores `path`; None if none fits."""
        verdict = None
        for pattern, only_folders, ignored in self.rules:
            if (folder or not only_folders) and pattern.fullmatch(path):
                verdict = ignored
        return verdict


def _rule(line: str) -> tuple[re.Pattern[str], bool, bool] | None:
    line = line.rstrip()
    if not line or line.startswith("#"):
        return None
    ignored = not line.startswith("!")
    line = line.removeprefix("!").removeprefix("\\")
    only_folders = line.endswith("/")
    line = line.rstrip("/")
    anchored = "/" in line
    pattern = _translate(line.removeprefix("/"))
    try:
        return re.compile(pattern if anchored else f"(?:.*/)?{pattern}", re.DOTALL), only_folders, ignored
    except re.error:  # an unfinished [: git takes no notice of such a line either
        return None


def _translate(glob: str) -> str:
    """A pattern of .gitignore as a regular expression."""
    result = ""
    for token in re.findall(r"\*\*/|/\*\*$|\*+|\?|\[!?[^\]]*\]|\\.|.", glob):
        if token == "**/":
            result += "(?:.*/)?"
        elif token == "/**":
            result += "/.+"
        elif token.startswith("*"):
            result += "[^/]*"
        elif token == "?":
            result += "[^/]"
        elif token.startswith("[") and len(token) > 2:
            result += token.replace("[!", "[^").replace("\\", "\\\\")
        else:
            result += re.escape(token[-1])
    return result
