"""kubectl runs: list, status, logs and why of the runs of job-group, ddp-run and gpu-accept.

It reads, by kubectl, and changes nothing.
Exit codes: 0 done; 1 the run has failed; 2 usage, or the cluster did not answer; 3 a bug.
"""

import os
import sys
import time

import click

from jobgen import __version__
from kubectl_runs import logs as log_reader
from kubectl_runs import report
from kubectl_runs.judge import Status, judge
from kubectl_runs.kubectl import Kubectl, KubectlError
from kubectl_runs.runs import CHART, CONTAINERS, Run, by_namespace, find

OURS = f"{CHART} in ({','.join(CONTAINERS)})"
SHARED = [
    click.option("-n", "--namespace", help="Namespace (default: that of the context)."),
    click.option("--context", help="Context of kubectl's configuration (default: the current one)."),
]
FORMAT = click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text")


def on_cluster(command):
    for option in reversed(SHARED):
        command = option(command)
    return command


def write(text: str) -> None:
    click.echo(text.encode(), nl=False)
    sys.stdout.flush()


def look(kubectl: Kubectl, name: str) -> Status:
    """State of the newest run of the group or release NAME."""
    objects = kubectl.read(OURS)
    found = [run for run in find(objects) if name in (run.name, run.release)]
    if not found:
        there = ", ".join(sorted({run.name for run in find(objects)})[:20]) or "none"
        raise KubectlError(
            f'no group or release "{name}" in the namespace, which has: {there}\n{not_read(kubectl)}'.strip()
        )
    return judged(kubectl, found[0], objects)


def judged(kubectl: Kubectl, run: Run, objects: dict[str, list[dict]]) -> Status:
    place = run.owner["metadata"]["namespace"]
    return judge(run, objects, lambda pod: kubectl.first_log(pod, "agent", place))


def not_read(kubectl: Kubectl) -> str:
    return f"you may not read: {', '.join(sorted({*kubectl.unreadable}))}\n" if kubectl.unreadable else ""


class Commands(click.Group):
    """Without a command, `list`, which then has the options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else "-"
        is_list = first.startswith("-") and first not in ("-h", "--help", "--version")
        return super().parse_args(ctx, ["list", *args] if is_list else args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Runs of job-group, ddp-run and gpu-accept: what they wait for, and why they failed.

    \b
    kubectl runs                    all runs of the namespace
    kubectl runs why NAME           NAME is a group's or a release's
    kubectl runs logs NAME -f
    helm uninstall RELEASE          ends a run
    """


@cli.command("list")
@on_cluster
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Runs of all namespaces.")
@FORMAT
def list_(namespace: str | None, context: str | None, everywhere: bool, form: str) -> None:
    """Show all runs with state, ranks that have started, restarts, GPUs and age."""
    kubectl = Kubectl(namespace, context, everywhere)
    found = [judged(kubectl, run, mine) for mine in by_namespace(kubectl.read(OURS)) for run in find(mine)]
    if form == "json":
        return write(report.to_json(found))
    write((report.listed(found, everywhere) if found else "no runs\n") + not_read(kubectl))


@cli.command()
@click.argument("name")
@on_cluster
@FORMAT
@click.option("-w", "--watch", is_flag=True, help="Show every change until the run has ended.")
@click.option("--interval", type=click.FloatRange(0.1), default=2.0, help="Seconds between two looks (default: 2).")
@click.option("--all", "every_rank", is_flag=True, help="Show every rank of a large run.")
@click.pass_context
def status(ctx, name, namespace, context, form, watch, interval, every_rank) -> None:
    """Show the ranks of a run: phase, node, and what each waits for."""
    kubectl, last = Kubectl(namespace, context), ""
    while True:
        found = look(kubectl, name)
        if form == "json":
            text = report.to_json(found)
        else:
            text = report.summary(found) + report.ranks(found, every_rank) + not_read(kubectl)
        if text != last:
            write("\x1b[H\x1b[2J" if watch and form == "text" and sys.stdout.isatty() else "")
            write(text)
            last = text
        if not watch or found.state in ("done", "failed"):
            ctx.exit(found.state == "failed")
        time.sleep(interval)


@cli.command()
@click.argument("name")
@on_cluster
@FORMAT
@click.pass_context
def why(ctx, name, namespace, context, form) -> None:
    """Explain what a run waits for, or why it failed."""
    found = look(Kubectl(namespace, context), name)
    write(report.to_json(found) if form == "json" else f"{report.summary(found)}\n{report.findings(found)}")
    ctx.exit(found.state == "failed")


@cli.command()
@click.argument("name")
@click.argument("ranks", nargs=-1)
@on_cluster
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended, over its restarts.")
@click.option("--tail", type=click.IntRange(0), help="Only the last lines of each rank.")
@click.option("-c", "--container", help="Container of the pods (default: that of the program).")
@click.pass_context
def logs(ctx, name, ranks, namespace, context, follow, tail, container) -> None:
    """Print what the ranks printed, merged by time; RANKS are ranks or tasks (default: all).

    Of a pod that Kubernetes has deleted there is no log; logs.claimName of the charts keeps it.
    """
    kubectl = Kubectl(namespace, context)
    found = look(kubectl, name)
    known = {each for rank in found.ranks for each in (rank.name, rank.task)}
    if unknown := [each for each in ranks if each not in known]:
        raise click.BadParameter(f"the run has no rank or task {unknown[0]!r}; it has {', '.join(sorted(known)[:20])}")
    container = container or CONTAINERS[found.chart]
    more = [] if tail is None else [f"--tail={tail}"]
    width = max((len(each.name) for each in found.ranks), default=0)

    def chosen(rank) -> bool:
        return not ranks or rank.name in ranks or rank.task in ranks

    def show(rank: str, line: str) -> None:
        write(f"{rank:{width}} | {line}\n")

    if follow:
        found = log_reader.follow(kubectl, lambda: look(kubectl, name), chosen, container, more, show)
        ctx.exit(found.state == "failed")
    begun = [each for each in found.ranks if each.begun and each.pod and chosen(each)]
    if not begun:
        click.echo(f"{report.summary(found).strip()}: no rank has started; see kubectl runs why {name}", err=True)
    for rank, line in log_reader.merged(kubectl, begun, container, more):
        show(rank, line)


def main() -> None:
    """Entry point of the console script."""
    try:
        cli(prog_name="kubectl runs")
    except OSError as error:  # such as a full disk behind standard output
        click.echo(f"error: output: {error.strerror}", err=True)
        os._exit(2)
