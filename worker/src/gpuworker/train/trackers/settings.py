"""Settings of the trackers, from the environment; what cannot work is refused with the way out."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

NAMES = ("pluto", "mlflow")
# The first that is set counts; the client itself reads the first and the last.
PLUTO_KEYS = ("PLUTO_API_KEY", "PLUTO_API_TOKEN", "MLOP_API_TOKEN")
PACKAGES = {"pluto": "pluto-ml", "mlflow": "mlflow-skinny"}


class SettingsError(ValueError):
    """The tracking settings cannot work. Raised before anything starts, whether or not tracking is required."""


def chosen(names: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The trackers that --trackers asks for; for `auto`, those that the environment sets up."""
    if names == "auto":
        found = {"pluto": bool(pluto_key(environment)), "mlflow": bool(environment.get("MLFLOW_TRACKING_URI"))}
        return tuple(name for name in NAMES if found[name])
    wanted = tuple(name.strip() for name in names.split(",") if name.strip() not in ("", "none"))
    for name in wanted:
        if name not in NAMES:
            raise SettingsError(f"--trackers: there is no tracker {name!r}; there are: {', '.join(NAMES)}, auto, none")
    return wanted


def pluto_key(environment: Mapping[str, str]) -> str:
    return next((environment[name] for name in PLUTO_KEYS if environment.get(name)), "")


def check(name: str, environment: Mapping[str, str]) -> None:
    """Raise SettingsError if this tracker cannot work with these variables."""
    if name == "pluto":
        if not pluto_key(environment):
            raise SettingsError(f"Pluto needs a key: set {PLUTO_KEYS[0]} (or {PLUTO_KEYS[1]}) from a Secret")
        if environment.get("PLUTO_RUN_ID"):
            check_run_id(environment["PLUTO_RUN_ID"], "PLUTO_RUN_ID")
    elif environment.get("MLFLOW_TRACKING_URI"):
        check_uri(environment["MLFLOW_TRACKING_URI"], environment)
    else:
        raise SettingsError("MLflow needs a server: set MLFLOW_TRACKING_URI, for example http://mlflow.mlflow.svc:5000")


def check_run_id(run_id: str, where: str) -> None:
    """Refuse an id that Pluto's client would take for that of an existing run.

    Source: `_classify_run_id` in pluto-ml 0.0.29: digits are a run's number, `AB-12` is a run's display id; both are
    looked up and never created. The id is also the name of a folder.
    """
    shape = "letters, digits, '-', '_' and '.', at most 200, and a letter or digit first"
    if re.fullmatch(r"[0-9]+", run_id):
        raise SettingsError(
            f"{where}={run_id}: Pluto takes digits for the number of a run that exists, and would not start one. "
            f"Write for example run-{run_id}"
        )
    if re.fullmatch(r"[A-Z0-9]{1,4}-[0-9]+", run_id):
        raise SettingsError(
            f"{where}={run_id}: Pluto takes this form for the display id of a run that exists, and would not start "
            f"one. Write for example run-{run_id.lower()}"
        )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", run_id):
        raise SettingsError(f"{where}={run_id!r}: an id of a run is {shape}. Write for example run-7f3a")


def check_uri(uri: str, environment: Mapping[str, str]) -> None:
    """Refuse MLflow's file store unless the user has opted in: MLflow itself raises at the first call otherwise."""
    opted_in = environment.get("MLFLOW_ALLOW_FILE_STORE", "").lower() in ("1", "true")
    if is_file_store(uri) and not opted_in:
        raise SettingsError(
            f"MLFLOW_TRACKING_URI={uri}: MLflow no longer writes to a folder of files. Use a server "
            "(http://mlflow.mlflow.svc:5000) or a database in one file (sqlite:////out/mlflow.db); or keep the folder "
            "with MLFLOW_ALLOW_FILE_STORE=true: then only rank 0 reports"
        )


def is_file_store(uri: str) -> bool:
    return urlsplit(uri).scheme in ("", "file")


def one_writer(name: str, environment: Mapping[str, str]) -> bool:
    """Whether only one process may write: SQLite and files are not safe for several pods."""
    uri = environment.get("MLFLOW_TRACKING_URI", "")
    return name == "mlflow" and (is_file_store(uri) or urlsplit(uri).scheme.startswith("sqlite"))


def without_password(uri: str) -> str:
    """The URI as it may be shown."""
    return re.sub(r"//[^/@]*@", "//…@", uri)


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def failures_left(environment: Mapping[str, str]) -> int:
    """How many failures from now on are followed by a new attempt; GPU_CHARTS_MAX_RESTARTS is how many in all.

    ATTEMPT counts preempted attempts too, where GPU_CHARTS_ATTEMPTS_IGNORED says how many those were.
    """
    numbers = {
        name: environment.get(name, "")
        for name in ("GPU_CHARTS_MAX_RESTARTS", "ATTEMPT", "GPU_CHARTS_ATTEMPTS_IGNORED")
    }
    most, attempt, ignored = (int(text) if text.isdecimal() else 0 for text in numbers.values())
    return max(0, most - max(0, attempt - ignored))
