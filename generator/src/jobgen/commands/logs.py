"""The command `jobgen logs`."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import click

from jobgen.commands import observe
from jobgen.commands.streams import write


@click.command()
@observe.on_cluster
@click.option("-r", "--rank", "ranks", multiple=True, metavar="RANK", help="Only this rank or task (repeatable).")
@click.option("-f", "--follow", is_flag=True, help="Go on with what the ranks print until they end.")
@click.option("--tail", type=click.IntRange(0), help="Only the last lines of each rank.")
@click.option("-c", "--container", help="Container of the pods (default: that of the program).")
def logs(
    name: str,
    namespace: str | None,
    context: str | None,
    ranks: tuple[str, ...],
    follow: bool,
    tail: int | None,
    container: str | None,
) -> None:
    """Print what the ranks printed, merged by time, with the rank before each line."""
    cluster = observe.connect(context, namespace)
    status = observe.read_status(cluster, name)
    known = {each for rank in status.ranks for each in (rank.name, rank.task)}
    for each in ranks:
        if each not in known:
            raise click.BadParameter(f'the run has no rank or task "{each}"', param_hint="--rank")
    chosen = [each for each in status.ranks if each.pod and (not ranks or {each.name, each.task} & {*ranks})]
    container = container or ("task" if status.chart == "job-group" else "trainer")
    query = {} if tail is None else {"tailLines": str(tail)}
    width = max((len(each.name) for each in chosen), default=0)
    if follow:
        _follow(cluster, chosen, container, query, width)
    else:
        _merge(cluster, chosen, container, query, width)


def _merge(cluster, chosen: list, container: str, query: dict[str, str], width: int) -> None:
    """Print the lines of all ranks in the order of their times."""

    def read(rank) -> list[tuple[tuple[str, str], str, str]]:
        text = cluster.log(rank.pod, container, timestamps="true", limitBytes=str(1 << 30), **query)
        lines = (line.partition(" ") for line in text.split("\n") if line)
        return [(_sortable(time), rank.name, line) for time, _, line in lines]

    with ThreadPoolExecutor(8) as threads:
        found = [line for lines in threads.map(read, chosen) for line in lines]
    found.sort(key=lambda each: each[0])
    for _, rank, line in found:
        write(f"{rank:{width}} | {line}\n")


def _sortable(time: str) -> tuple[str, str]:
    """Return seconds and fraction of a time whose fraction has no trailing zeros."""
    seconds, _, fraction = time.rstrip("Z").partition(".")
    return seconds, fraction.ljust(9, "0")


def _follow(cluster, chosen: list, container: str, query: dict[str, str], width: int) -> None:
    lock = threading.Lock()

    def copy(rank) -> None:
        for line in cluster.follow(rank.pod, container, **query):
            with lock:
                write(f"{rank.name:{width}} | {line}\n")

    threads = [threading.Thread(target=copy, args=(each,), daemon=True) for each in chosen]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
