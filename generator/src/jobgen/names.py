"""Rules for names in Kubernetes."""

import posixpath
import re

from jobgen.contract import LONGEST_NAME, NAME_LIMIT, RESERVED_MOUNTS
from jobgen.diagnostics import quoted

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
ENV = r"[a-zA-Z_][a-zA-Z0-9_]*"


def is_label(name: str) -> bool:
    """Whether `name` is a DNS-1035 label."""
    return len(name) <= NAME_LIMIT and bool(_LABEL.fullmatch(name))


def label_error(name: str) -> str | None:
    """Return why `name` is not a DNS-1035 label, with a valid one if possible; None if it is
    one.
    """
    if name in ("null", "true", "false"):
        return (
            f"{quoted(name)} is not text where it is written without quotes, such as in --set; "
            f"choose another name"
        )
    if is_label(name):
        return None
    rule = (
        f'must be at most {NAME_LIMIT} of a-z, 0-9 and "-", start with a letter and not end '
        f'with "-"'
    )
    better = label(name, "job")
    hint = f'; write "{better}"' if is_label(better) else ""
    return f"{quoted(name)} is not a Kubernetes name: {rule}{hint}"


def label(text: str, prefix: str) -> str:
    """Return the DNS-1035 label closest to `text`; one that does not start with a letter gets
    the prefix.
    """
    better = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return better if better[:1].isalpha() else f"{prefix}-{better}" if better else ""


def is_reserved_mount(path: str) -> bool:
    """Whether the pod mounts something of its own there. Below /tmp and /dev there is room for
    others.
    """
    place = posixpath.normpath(f"/{path.lstrip('/')}")
    return place in ("/", *RESERVED_MOUNTS) or any(
        place.startswith(f"{each}/") for each in RESERVED_MOUNTS if each not in ("/tmp", "/dev")
    )


def too_long(group: str, task: str, nodes: int) -> str | None:
    """Why the names that the chart derives are too long: that of the last node's Job, as JobSet
    names it, is the longest.
    """
    longest = LONGEST_NAME % (group, task, nodes - 1)
    if len(longest) <= NAME_LIMIT:
        return None
    return f'too long: the Job "{longest}" would have more than {NAME_LIMIT} characters'
