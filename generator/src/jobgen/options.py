"""Options of a conversion, as the command line sets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    name: str | None = None  # replaces the group's name
    env: Mapping[str, str] = field(default_factory=dict)  # variables for every task
    env_file: Mapping[str, str] = field(default_factory=dict)  # the same; a credential among them is a secret
    secrets: Mapping[str, str] = field(default_factory=dict)  # secrets for every task; the values are only hidden
    secret_name: str | None = None  # default: NAME-secrets
    lenient: bool = False  # refused fields become warnings if the task runs without them
    strict: bool = False  # warnings, ignored fields, those without effect and loosened pods become errors
    launcher: str | None = None  # replaces that of every task
    skypilot_defaults: bool = False  # tasks without sizes request those of SkyPilot
    folder: str | None = None  # base of local paths; default: the current folder
    second_folder: str | None = None  # base of local paths that do not exist in `folder`
    allow_outside: bool = False  # embed files from outside these folders
    allow: frozenset[str] = frozenset()  # variables, files and paths that are not credentials, whatever they look like
    left_out: frozenset[tuple[int, int]] = frozenset()  # device and inode of files that are never embedded
