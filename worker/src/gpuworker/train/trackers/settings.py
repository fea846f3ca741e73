"""Settings of the trackers, read from the environment and checked before the training starts."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from gpuworker.runtime.contract import INTERNAL_PREFIX
from gpuworker.train.trackers.redact import is_credential, redact

NAMES = ("pluto", "mlflow")
# Variables that the chart ddp-run sets.
REQUIRED = f"{INTERNAL_PREFIX}TRACKERS_REQUIRED"
MAX_RESTARTS = f"{INTERNAL_PREFIX}MAX_RESTARTS"
ATTEMPTS_IGNORED = f"{INTERNAL_PREFIX}ATTEMPTS_IGNORED"
# The first one that is set is used. Pluto's client itself reads the first and the last.
PLUTO_KEYS = ("PLUTO_API_KEY", "PLUTO_API_TOKEN", "MLOP_API_TOKEN")
IN_HEADERS = {"pluto": PLUTO_KEYS, "mlflow": ("MLFLOW_TRACKING_TOKEN",)}
PREFIXES = ("PLUTO_", "MLOP_", "MLFLOW_")
PACKAGES = {"pluto": "pluto-ml", "mlflow": "mlflow-skinny"}


class SettingsError(ValueError):
    """Tracker settings that cannot work. Raised before anything starts, whether or not tracking is required."""

    def __init__(self, message: str):
        super().__init__(redact(message))


def stripped(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without white space around settings: a Secret made from a file ends with a newline."""
    return {
        name: value.strip() if name.startswith(PREFIXES) or is_credential(name) else value
        for name, value in environment.items()
    }


def selected(names: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Trackers that --trackers names; for `auto`, those that the environment configures."""
    if names == "auto":
        found = {"pluto": bool(pluto_key(environment)), "mlflow": bool(environment.get("MLFLOW_TRACKING_URI"))}
        return tuple(name for name in NAMES if found[name])
    wanted = tuple(name.strip() for name in names.split(",") if name.strip())
    if wanted == ("none",):
        return ()
    if "none" in wanted:
        raise SettingsError(f"--trackers {names}: use none alone, or leave it out")
    for name in wanted:
        if name not in NAMES:
            raise SettingsError(f"--trackers: unknown tracker {name!r}; use {', '.join(NAMES)}, auto or none")
    return wanted


def pluto_key(environment: Mapping[str, str]) -> str:
    return next((environment[name] for name in PLUTO_KEYS if environment.get(name)), "")


def check(name: str, environment: Mapping[str, str]) -> None:
    """Raise SettingsError if this tracker cannot work with these variables."""
    for variable in IN_HEADERS[name]:
        if not re.fullmatch(r"[!-~]*", environment.get(variable, "")):
            raise SettingsError(f"{variable} contains white space or other characters that a key cannot have")
    if name == "pluto":
        if not pluto_key(environment):
            raise SettingsError(f"Pluto needs a key: set {PLUTO_KEYS[0]} (or {PLUTO_KEYS[1]}) from a Secret")
        if environment.get("PLUTO_RUN_ID"):
            check_run_id(environment["PLUTO_RUN_ID"], "PLUTO_RUN_ID")
    elif environment.get("MLFLOW_TRACKING_URI"):
        check_uri(environment["MLFLOW_TRACKING_URI"], environment)
    else:
        raise SettingsError("MLflow needs a server: set MLFLOW_TRACKING_URI, for example http://mlflow.mlflow.svc:5000")


def check_run_id(run_id: str, source: str) -> None:
    """Refuse an id that Pluto's client would interpret as the id of an existing run.

    Source: `_classify_run_id` in pluto-ml 0.0.29. Digits are a run's number and `AB-12` is a run's display id; the
    client looks up both and never creates them. The id is also the name of a folder.
    """
    if re.fullmatch(r"[0-9]+", run_id):
        raise SettingsError(
            f"{source}={run_id}: Pluto interprets digits as the number of an existing run and would not create one. "
            f"Use for example run-{run_id}"
        )
    if re.fullmatch(r"[A-Z0-9]{1,4}-[0-9]+", run_id):
        raise SettingsError(
            f"{source}={run_id}: Pluto interprets this form as the display id of an existing run and would not create "
            f"one. Use for example run-{run_id.lower()}"
        )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", run_id):
        raise SettingsError(
            f"{source}={run_id!r}: a run id consists of at most 200 letters, digits, '-', '_' and '.', and starts with "
            "a letter or digit. Use for example run-7f3a"
        )


def check_uri(uri: str, environment: Mapping[str, str]) -> None:
    """Refuse addresses that the client cannot read.

    MLflow's file store needs an opt-in: MLflow itself raises at the first call otherwise.
    """
    try:
        _ = urlsplit(uri).port
    except ValueError:  # its text has a part of the password
        raise SettingsError(
            "MLFLOW_TRACKING_URI is not an address: in a user name or password, characters such as / ? # @ must be "
            "URL-quoted (%2F %3F %23 %40), or set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        ) from None
    opted_in = environment.get("MLFLOW_ALLOW_FILE_STORE", "").lower() in ("1", "true")
    if is_file_store(uri) and not opted_in:
        raise SettingsError(
            f"MLFLOW_TRACKING_URI={uri}: MLflow no longer writes to a folder of files. Use a server "
            "(http://mlflow.mlflow.svc:5000) or a database file (sqlite:////out/mlflow.db), or keep the folder with "
            "MLFLOW_ALLOW_FILE_STORE=true: then only rank 0 reports"
        )


def is_file_store(uri: str) -> bool:
    return urlsplit(uri).scheme in ("", "file")


def has_single_writer(name: str, environment: Mapping[str, str]) -> bool:
    """Whether only one process may write: SQLite and files are not safe for several pods."""
    uri = environment.get("MLFLOW_TRACKING_URI", "")
    return name == "mlflow" and (is_file_store(uri) or urlsplit(uri).scheme.startswith("sqlite"))


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def failures_left(environment: Mapping[str, str]) -> int:
    """Number of failures from now on that are followed by another attempt, of MAX_RESTARTS in the whole run.

    ATTEMPT includes preempted attempts. ATTEMPTS_IGNORED is their number, where it is known.
    """
    texts = [environment.get(name, "") for name in (MAX_RESTARTS, "ATTEMPT", ATTEMPTS_IGNORED)]
    restarts, attempt, ignored = (int(text) if text.isdecimal() else 0 for text in texts)
    return max(0, restarts - max(0, attempt - ignored))
