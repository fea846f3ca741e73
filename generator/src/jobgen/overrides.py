"""Variables and secrets of the command line, applied to a task; and the login to a registry, taken out of them."""

from __future__ import annotations

from jobgen.credentials import is_named
from jobgen.options import Options

DOCKER_USERNAME, DOCKER_PASSWORD = "SKYPILOT_DOCKER_USERNAME", "SKYPILOT_DOCKER_PASSWORD"
DOCKER_SERVER = "SKYPILOT_DOCKER_SERVER"
LOGIN_VARIABLES = (DOCKER_USERNAME, DOCKER_PASSWORD, DOCKER_SERVER)


def secret_names(secrets: object) -> set[str]:
    """Return the variables that a field secrets names: secrets:personal.TOKEN is TOKEN."""
    names = secrets if isinstance(secrets, (dict, list)) else ()
    return {name.rpartition(":")[2].rpartition(".")[2] for name in names if isinstance(name, str)}


def with_variables(value: dict, options: Options) -> dict:
    """Return the task with the variables and secrets of the command line."""
    envs, secrets = ({} if value.get(field) is None else value[field] for field in ("envs", "secrets"))
    declared = secret_names(secrets) | secret_names(value.get("managed_secrets"))
    from_file = [
        name
        for name, each in options.env_file.items()
        if name in declared or (is_named(name, each) and name not in LOGIN_VARIABLES)
    ]
    added = [name for name in (*options.secrets, *from_file) if name not in options.env]
    if isinstance(envs, dict) and (options.env or options.env_file or added):
        plain = {name: each for name, each in options.env_file.items() if name not in from_file}
        envs = {name: each for name, each in {**envs, **plain}.items() if name not in added}
        value = {**value, "envs": {**envs, **options.env}}
    if missing := [name for name in added if name not in declared]:
        if isinstance(secrets, dict):
            value = {**value, "secrets": {**secrets, **dict.fromkeys(missing)}}
        elif isinstance(secrets, list):
            value = {**value, "secrets": [*secrets, *(f"secrets:{name}" for name in missing)]}
    return value


def take_login(value: dict, options: Options) -> tuple[dict, dict[str, dict[str, object]]]:
    """Return the task without the variables of a login, and those of envs and of secrets."""
    login: dict[str, dict[str, object]] = {}
    for field in ("envs", "secrets"):
        given = value.get(field)
        if not isinstance(given, (dict, list)):
            continue
        taken = {}
        for key in given:
            name = key.rpartition(":")[2] if isinstance(key, str) else key
            if name in LOGIN_VARIABLES and (key == name or field == "secrets"):
                written = given[key] if isinstance(given, dict) else None
                taken[name] = options.env_file.get(name) if written is None else written
                taken[name] = options.secrets.get(name) or taken[name]
        if taken:
            login[field] = taken
            names = {*taken, *(f"secrets:{name}" for name in taken)}
            if isinstance(given, dict):
                rest: object = {key: each for key, each in given.items() if key not in names}
            else:
                rest = [key for key in given if key not in names]
            value = {**value, field: rest}
    return value, login
