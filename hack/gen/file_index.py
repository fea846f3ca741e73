"""docs/files.md: every source file with what it says about itself in its first sentence."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from hack.paths import REPO

FOLDERS = {
    "worker/src/gpuworker": "*.py",
    "generator/src": "*.py",
    "charts/shared": "*",
    "charts/gpu-accept": "*",
    "charts/ddp-run": "*",
    "charts/job-group": "*",
    "hack": "*.py",
    "tests/helpers": "*.py",
    "schemas": "*.yaml",
    "gitops": "*",
    "monitoring": "*",
    ".github/workflows": "*",
}
HEAD = """\
<!-- Generated from the files by `make generate`. -->

# Files

What every program, template, schema and helper of tests is, in its own words. [Architecture](architecture.md) has how
they work together, and the file for a task; what is generated is not here.
"""
SKIPPED = (
    "/tests/",
    "/ci/",
    "NOTES.txt",
    ".md",
    ".json",
    ".pyz",
    "/.helmignore",
    "Chart.yaml",
    "values.yaml",
)


def page() -> str:
    return HEAD + "".join(_section(folder, pattern) for folder, pattern in FOLDERS.items())


def _section(folder: str, pattern: str) -> str:
    rows = []
    for path in sorted((REPO / folder).rglob(pattern)):
        name = path.relative_to(REPO).as_posix()
        if (
            path.is_file()
            and not name.endswith(SKIPPED)
            and not any(each in name for each in SKIPPED[:2])
        ):
            text = path.read_text()
            if "Generated from" not in text[:200] and not _is_copy(name):
                sentence = _first_sentence(path, text)
                rows += [f"* `{name}`: {sentence}\n"] if sentence else []
    return f"\n## {folder}\n\n{''.join(rows)}"


def _is_copy(name: str) -> bool:
    return "/templates/" in name and (REPO / "charts/shared" / Path(name).name).exists()


def _first_sentence(path: Path, text: str) -> str:
    if path.suffix == ".py":
        comment = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
    else:
        comment = _first_comment(text)
    return re.split(r"(?<=\.) (?=[A-Z])", " ".join(comment.split()))[0].rstrip(".")


def _first_comment(text: str) -> str:
    title, comment = r"^(?:title|description): (.*)$", r"^((?:(?:#|--) [^\n]*\n)+)"
    found = re.search(title, text, re.MULTILINE) if text.startswith("$schema") else None
    found = (
        found
        or re.search(r"\{\{-? ?/\*(.*?)\*/", text, re.DOTALL)
        or re.search(comment, text, re.MULTILINE)
    )
    words = re.sub(r"^(#|--) ?", "", found[1] if found else "", flags=re.MULTILINE)
    return re.sub(r"Copy of charts/shared/[\w.]+\s", "", words)
