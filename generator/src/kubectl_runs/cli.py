"""kubectl runs: list, status, logs and why of the runs of job-group, ddp-run and gpu-accept.

It reads, by kubectl, and changes nothing.
Exit codes: 0 done; 1 the run has failed; 2 usage, or the cluster did not answer; 3 a bug.
"""

import sys
from collections.abc import Callable

import click

from jobgen import __version__
from kubectl_runs import logs as log_reader
from kubectl_runs import report
from kubectl_runs.judge import Status, judge
from kubectl_runs.kubectl import Kubectl, KubectlError
from kubectl_runs.runs import CHART, CONTAINERS, Rank, find

OURS = f"{CHART} in ({','.join(CONTAINERS)})"
SHARED = [
    click.option("-n", "--namespace", help="Namespace (default: that of the context)."),
    click.option(
        "--context", help="Context of kubectl's configuration (default: the current one)."
    ),
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
    runs = find(objects)
    for run in runs:
        if name in (run.name, run.release):
            return judge(run, objects)
    there = ", ".join(sorted({run.name for run in runs})[:20]) or "none"
    message = (
        f'no group or release "{name}" in the namespace, which has: {there}\n{not_read(kubectl)}'
    )
    raise KubectlError(message.strip())


def not_read(kubectl: Kubectl) -> str:
    return (
        f"you may not read: {', '.join(sorted({*kubectl.unreadable}))}\n"
        if kubectl.unreadable
        else ""
    )


class Commands(click.Group):
    """Without a command, `list`, which then has the options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else "-"
        if first.startswith("-") and first not in ("-h", "--help", "--version"):
            # As in kubectl, options may come first: kubectl runs -n team why rl.
            places = range(1, len(args))
            found = (i for i in places if args[i] in self.commands and args[i - 1][0] != "-")
            at = next(found, None)
            args = ["list", *args] if at is None else [args[at], *args[:at], *args[at + 1 :]]
        return super().parse_args(ctx, args)


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
@FORMAT
def list_(namespace, context, form) -> None:
    """Show all runs with state, ranks that have started, restarts, GPUs and age."""
    kubectl = Kubectl(namespace, context)
    objects = kubectl.read(OURS)
    found = [judge(run, objects) for run in find(objects)]
    text = (report.listed(found) if found else "no runs\n") + not_read(kubectl)
    write(report.to_json(found) if form == "json" else text)


def answer(name: str, kubectl: Kubectl, form: str, *parts: Callable[[Status], str]) -> None:
    """Print the parts of a report; exit with 1 if the run has failed."""
    found = look(kubectl, name)
    if report.findings in parts:
        log_reader.add_last_lines(kubectl, found)
    text = "".join(part(found) for part in parts) + not_read(kubectl)
    write(report.to_json(found) if form == "json" else text)
    sys.exit(found.state == "failed")


@cli.command()
@click.argument("name")
@on_cluster
@FORMAT
def status(name, namespace, context, form) -> None:
    """Show the ranks of a run: phase, node, and what each waits for."""
    answer(name, Kubectl(namespace, context), form, report.summary, report.ranks)


@cli.command()
@click.argument("name")
@on_cluster
@FORMAT
def why(name, namespace, context, form) -> None:
    """Explain what a run waits for, or why it failed."""
    answer(name, Kubectl(namespace, context), form, report.summary, report.findings)


@cli.command()
@click.argument("name")
@click.argument("ranks", nargs=-1)
@on_cluster
@click.option(
    "-f", "--follow", is_flag=True, help="Go on until the run has ended, over its restarts."
)
@click.option("--tail", type=click.IntRange(0), help="Only the last lines of each rank.")
@click.option("-c", "--container", help="Container of the pods (default: that of the program).")
def logs(name, ranks, namespace, context, follow, tail, container) -> None:
    """Print what the ranks printed; RANKS are ranks or tasks (default: all).

    Of a pod that Kubernetes has deleted there is no log.
    """
    kubectl = Kubectl(namespace, context)
    found = look(kubectl, name)
    known = {each for rank in found.ranks for each in (rank.name, rank.task)}
    if unknown := [each for each in ranks if each not in known]:
        raise click.BadParameter(
            f"the run has no rank or task {unknown[0]!r}; it has {', '.join(sorted(known)[:20])}"
        )
    flags = ["-c", container or CONTAINERS[found.chart], *(["--follow"] if follow else [])]
    flags += [] if tail is None else [f"--tail={tail}"]

    def is_chosen(rank: Rank) -> bool:
        return not ranks or rank.name in ranks or rank.task in ranks

    if not follow and not any(each.begun for each in found.ranks if is_chosen(each)):
        click.echo(
            f"{report.summary(found).strip()}: no rank has started; see kubectl runs why {name}",
            err=True,
        )
    found = log_reader.show(kubectl, lambda: look(kubectl, name), is_chosen, flags, follow, write)
    sys.exit(follow and found.state == "failed")


def main() -> None:
    """Entry point of the console script."""
    cli(prog_name="kubectl runs")
