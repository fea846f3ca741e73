"""Login to a private registry with SKYPILOT_DOCKER_*: the image's server, and a pull secret of the pods."""

from __future__ import annotations

import re
from collections.abc import Iterable

from jobgen import names
from jobgen.group import GroupDocument
from jobgen.overrides import DOCKER_PASSWORD, DOCKER_SERVER, DOCKER_USERNAME, LOGIN_VARIABLES

_SERVER = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[a-z0-9._/-]*[a-z0-9])?")


class PullSecrets:
    """The pull secrets of a group, one for each server."""

    def __init__(self, name: str):
        self.name = name
        self.of_server: dict[str, str] = {}

    def image(self, task: GroupDocument, image: str | None, template: dict) -> str | None:
        """Return the image with the server of the task's login, and add the pull secret to its pod template."""
        if not task.login:
            return image
        field = list(task.login)[-1]
        server = _server(task, field)
        if server is None:
            return image
        if image is None:
            message = "the SKYPILOT_DOCKER_ variables have no effect, because the task has no image_id"
            task.note((field,), message, "no-effect")
            return None
        if server not in self.of_server:
            self._add(task, field, server)
        spec = template.setdefault("spec", {})
        spec["imagePullSecrets"] = [*spec.get("imagePullSecrets", []), {"name": self.of_server[server]}]
        return image if image.startswith(f"{server}/") else f"{server}/{image}"

    def _add(self, task: GroupDocument, field: str, server: str) -> None:
        secret = f"{self.name}-{names.label(server, 'r')}" if self.of_server else self.name
        self.of_server[server] = secret
        # printf is a part of the shell, so that the password is not an argument of a process.
        config = f'{{"auths":{{"{server}":{{"username":"%s","password":"%s"}}}}}}'
        command = (
            f"""printf '{config}' "${DOCKER_USERNAME}" "${DOCKER_PASSWORD}" | kubectl create secret generic {secret}"""
        )
        command += " --type=kubernetes.io/dockerconfigjson --from-file=.dockerconfigjson=/dev/stdin"
        message = f"set the variables, and create the pull secret before you install: {command}"
        task.note((field,), message, "secret-needed")


def _server(task: GroupDocument, field: str) -> str | None:
    """Return the server of a complete login, and report one that is not."""
    variables = task.login[field]
    missing = [name for name in LOGIN_VARIABLES if name not in variables]
    server = variables.get(DOCKER_SERVER)
    if len(task.login) > 1:
        message = f"a login is in envs or in secrets, not in both; move {_listed(task.login['envs'])} to secrets"
        task.report("conflicting-fields", (field,), message, key=True)
    elif missing:
        message = f"a login needs three variables; add {_listed(missing)} to {field}, or remove {_listed(variables)}"
        task.report("missing-value", (field,), message, key=True)
    elif server is None:
        option = "--secret" if field == "secrets" else "--env"
        message = f"{DOCKER_SERVER} has no value, and is part of the image's name; pass {option} {DOCKER_SERVER}=…"
        task.report("missing-value", (field,), message, key=True)
    elif not _is_server(str(server)):
        message = f"{DOCKER_SERVER} must be the server of a registry, such as ghcr.io, without https://"
        task.report("bad-value", (field,), message, key=True)
    else:
        return str(server)
    return None


def _is_server(text: str) -> bool:
    host = text.partition("/")[0]
    return bool(_SERVER.fullmatch(text)) and ("." in host or ":" in host or host == "localhost")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
