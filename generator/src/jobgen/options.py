"""Options of a conversion, as the command line sets them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    name: str | None = None  # replaces the group's name
    env: Mapping[str, str] = field(default_factory=dict)  # variables for every task
    # secrets for every task; the values are only hidden
    secrets: Mapping[str, str] = field(default_factory=dict)
    launcher: str | None = None  # replaces that of every task
    folder: str | None = None  # base of local paths; default: the current folder
    allow_outside: bool = False  # embed files from outside that folder
    # variables, files and paths that are not credentials, whatever they look like
    allow: frozenset[str] = frozenset()
    output: os.stat_result | None = None  # the file that is written, which is never embedded
