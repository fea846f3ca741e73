"""What `jobgen status`, `logs` and `why` share: options, the run that they are about, and their exit code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from jobgen.observe.cluster import Cluster
    from jobgen.observe.model import Status

_OPTIONS = [
    click.option("-n", "--namespace", help="Namespace of the release (default: that of the context)."),
    click.option("--context", help="Context of kubectl's configuration (default: the current one)."),
]
FORMAT = click.option(
    "-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", help="Format of the output."
)


def on_cluster(command: Callable) -> Callable:
    for option in reversed(_OPTIONS):
        command = option(command)
    return click.argument("name", metavar="NAME")(command)


def connect(context: str | None, namespace: str | None) -> Cluster:
    from jobgen.observe.cluster import Cluster

    return Cluster(context, namespace)


def read_status(cluster: Cluster, name: str) -> Status:
    """Return the state of the group or release NAME."""
    from jobgen.observe.cluster import ClusterError
    from jobgen.observe.judge import judge

    snapshot = cluster.snapshot(name)
    status = judge(snapshot)
    if status is None:
        hidden = f"; you may not read {', '.join(snapshot.unreadable)}" if snapshot.unreadable else ""
        raise ClusterError(f'no group or release "{name}" in the namespace {cluster.namespace}{hidden}')
    return status


def exit_code(status: Status) -> int:
    return 1 if status.state == "failed" else 0
