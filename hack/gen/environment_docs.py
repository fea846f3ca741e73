"""The page docs/environment.md, from the contract table."""

from __future__ import annotations

from hack.gen.contract_files import SOURCE, contract, instead

HEAD = f"""\
<!-- {SOURCE} -->
# Environment, ports and exit codes

Your program finds the same variables whether ddp-run or job-group starts it. Programs written for torchrun or
konduktor, and job groups written for SkyPilot, run unchanged.

## Variables

A variable that you set in `env` wins, together with every variable that follows from it, or its name is refused with
the value to set instead. This table names that value per chart.

| variable | value | set by | in `env` |
|---|---|---|---|
"""
AFTER_VARIABLES = """
torchrun sets {torchrun} for each process; these names are refused as well. Variables that begin with `{prefix}` are
internal and may change with any version.

## Ports

| port | used by |
|---|---|
| {rendezvous} | torchrun's rendezvous on node 0, and the default of `MASTER_PORT` |
| `MASTER_PORT` + {offset} | the launchers of ddp-run, on node 0 |
| {agent} | the agents of job-group |
| {report} | the fleet page of gpu-accept |

Gloo and NCCL take any other port between the pods of a run.

## Exit codes

`ddp-launch` and the ranks of a group end with these codes. A code from 64 to 72 is a fault of the launch, never of
your program: `ddp-launch` ends a failed program with 1 and names the program's own code; without it that code is kept.

| code | name | meaning | what the charts do |
|---|---|---|---|
"""
POLICIES = {
    "NODE_LOST": "start again, and count no failure",
    "NODE_UNFIT": "start again, three times without counting a failure",
    "USAGE": "a Job of ddp-run ends",
    "SAVED": "ddp-run starts again, and counts no failure",
    "STOPPED": "start again, and count no failure",
}
LIMITS = """
## Reserved paths and limits

Volumes and files of a group's task cannot be mounted at {mounts}.
A `podTemplate` may replace what a chart mounts.
A name that Kubernetes derives from a group has at most
{name} characters: `{longest}` for group, task and rank. The files that a group embeds have at most
{files:,} bytes together.
"""


def page() -> str:
    text = HEAD + "".join(map(row, contract.VARIABLES))
    text += AFTER_VARIABLES.format(
        torchrun=listed(contract.TORCHRUN_VARIABLES),
        prefix=contract.INTERNAL_PREFIX,
        rendezvous=contract.RENDEZVOUS_PORT,
        offset=contract.LAUNCHER_PORT_OFFSET,
        agent=contract.GROUP_AGENT_PORT,
        report=contract.REPORT_PORT,
    )
    for code, meaning in contract.EXIT_CODE_MEANINGS.items():
        policy = POLICIES.get(code.name, "count a failure" if code else "end")
        text += f"| {code} | {code.name.lower().replace('_', '-')} | {meaning} | {policy} |\n"
    longest = (
        contract.LONGEST_NAME.replace("%s", "GROUP", 1).replace("%s", "TASK").replace("%d", "RANK")
    )
    return text + LIMITS.format(
        mounts=listed(contract.RESERVED_MOUNTS),
        name=contract.NAME_LIMIT,
        longest=longest.replace("00000000", "HASH"),
        files=contract.FILES_LIMIT_BYTES,
    )


def row(variable: contract.Variable) -> str:
    charts = "all charts" if variable.charts == contract.CHARTS else ", ".join(variable.charts)
    return f"| `{variable.name}` | {variable.meaning} | {charts} | {override(variable)} |\n"


def override(variable: contract.Variable) -> str:
    """What becomes of the variable when a user sets it."""
    followers = [each.name for each in contract.VARIABLES if each.agrees_with == variable.name]
    if variable.override is not contract.Override.REFUSED:
        return "yes" + (f"; {listed(followers)} follows" if followers else "")
    paths = {chart: instead(variable.name, chart) for chart in variable.charts}
    paths = {
        chart: path.replace("TASK", "tasks.NAME").replace("ENV", "env")
        for chart, path in paths.items()
        if path
    }
    if not paths:
        return "refused"
    if len(set(paths.values())) == 1:
        return f"refused: set `{next(iter(paths.values()))}`"
    return "refused: set " + ", ".join(f"`{path}` ({chart})" for chart, path in paths.items())


def listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
