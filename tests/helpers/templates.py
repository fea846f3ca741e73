"""A small reader of chart templates: which values they use."""

import re
from pathlib import Path

# `.Values.image`, `$.Values.image`, `.root.Values.image`, and `$values.image` where a template
# calls them so.
USE = re.compile(r"(?:\.Values|\$values)((?:\.[A-Za-z]\w*)+)")
# What a template takes from one task: `$task.env`, `dig "accelerator" "count" 0 $task`.
TASK = re.compile(r'\$task\.(\w+)|dig "(\w+)" [^}\n]*?\$task')
COMMENT = re.compile(r"{{-?\s*/\*.*?\*/\s*-?}}", re.DOTALL)


def text(chart: Path) -> str:
    """All templates of a chart without their comments."""
    files = sorted(path for path in (chart / "templates").rglob("*") if path.is_file())
    assert files, f"no templates in {chart}"
    return "\n".join(COMMENT.sub("", path.read_text()) for path in files)


def used(templates: str) -> set[tuple[str, ...]]:
    """Paths of values: ("image", "tag"), or ("image",) where the whole object is taken."""
    return {tuple(match[1].strip(".").split(".")) for match in USE.finditer(templates)}


def used_of_a_task(templates: str) -> set[str]:
    return {match[1] or match[2] for match in TASK.finditer(templates)}


def is_used(path: tuple[str, ...], templates: str) -> bool:
    """By its path; or its parent is taken as a whole (`with .Values.image`) and the name follows
    (`.digest`).
    """
    uses = used(templates)
    return path in uses or (
        path[:-1] in uses and re.search(rf"[\s(]\.{path[-1]}\b", templates) is not None
    )
