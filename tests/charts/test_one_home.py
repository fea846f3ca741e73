"""Facts that several parts share have one home, worker/src/gpuworker/runtime/contract.py: a second
one fails here.
"""

import re

import pytest

from gpuworker.launch import config
from gpuworker.runtime import contract
from jobgen import schema
from tests.helpers.rendering import (
    REPO,
    containers,
    defaults,
    each_chart,
    refusal,
    render,
    task,
)

FOLLOWED = [each.name for each in contract.VARIABLES if each.override is contract.Override.FOLLOWED]


def with_env(chart: str, env: dict[str, str]) -> dict:
    return task(env=env) if chart == "job-group" else {"env": env}


def environment(chart: str, env: dict[str, str]) -> dict[str, object]:
    """Environment of the container that runs the user's program, or the tests of a node."""
    every = containers(render(chart, with_env(chart, env)))
    (found,) = [each["env"] for each in every if each["name"] in ("accept", "trainer", "task")]
    names = [each["name"] for each in found]
    assert len(names) == len(set(names)), "a name twice"
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in found}


@each_chart
def test_a_chart_sets_the_variables_that_the_contract_promises(chart):
    promised = {each.name for each in contract.VARIABLES if chart in each.charts}
    # The entry script sets the addresses after the barrier; a bare torchrun alone has an id of its
    # rendezvous.
    promised -= {"SKYPILOT_NODE_IPS", "PET_RDZV_ID"}
    found = environment(chart, {})
    assert {name for name in found if not name.startswith(contract.INTERNAL_PREFIX)} == promised
    for variable in contract.VARIABLES:
        if {variable.name, variable.agrees_with} <= found.keys():
            assert found[variable.name] == found[variable.agrees_with], variable.name


@each_chart
def test_a_reserved_name_is_refused_by_its_path(chart):
    path = "tasks.t.env" if chart == "job-group" else "env"
    for name in [
        *contract.reserved_names(groups=chart == "job-group"),
        f"{contract.INTERNAL_PREFIX}X",
    ]:
        assert f"{path}.{name}: " in refusal(chart, with_env(chart, {name: "7"})), name


@each_chart
def test_what_follows_from_a_variable_takes_the_users_value(chart):
    mine = {name: "7007" if name == "MASTER_PORT" else "7" for name in [*FOLLOWED, "USER"]}
    found = environment(chart, mine)
    for variable in contract.VARIABLES:
        if variable.agrees_with in mine:
            assert found[variable.name] == mine[variable.agrees_with], variable.name
    assert {name: found[name] for name in mine} == mine


def test_the_schema_of_a_group_reserves_the_names_of_the_contract():
    assert "POD_NAME" not in (REPO / "schemas/jobgroup/task.yaml").read_text(), (
        "a list of names of its own"
    )
    for name in [
        *contract.reserved_names(groups=True),
        f"{contract.INTERNAL_PREFIX}X",
        *FOLLOWED,
        "EPOCHS",
    ]:
        problems: list[str] = []
        schema.validate(
            schema.read()["else"],
            {"name": "t", "envs": {name: "x"}},
            lambda *found, seen=problems: seen.append(found[0]),
        )
        free = name in (*FOLLOWED, "EPOCHS")
        assert problems == ([] if free else ["refused-field"]), name


def test_the_default_port_of_the_rendezvous_is_the_contracts():
    assert defaults("ddp-run")["rendezvous"]["port"] == contract.RENDEZVOUS_PORT


WRONG = {
    "MASTER_PORT": [
        "",
        " 29500",
        "1, hostPort: 22",
        *["abc", "0", "1023", "65535", "70000", "08", "é$X"],
    ],
    "NPROC_PER_NODE": ["", "0", "-1", "1025", "gpu", "1.5"],
    "MASTER_ADDR": ["", "two words", "a\nb"],
}
RIGHT = {
    "MASTER_PORT": ["1024", "29500", "65534"],
    "NPROC_PER_NODE": ["1", "8", "1024"],
    "MASTER_ADDR": ["a.b", "fd00::9"],
}


@each_chart
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_followed_variable_takes_only_values_that_can_work(chart, name):
    for value in WRONG[name]:
        assert f"env.{name}: " in refusal(chart, with_env(chart, {name: value})), value
    for value in RIGHT[name]:
        assert environment(chart, {name: value})[name] == value


def test_the_range_of_a_port_is_that_of_the_launcher():
    low, high = config.NUMBERS["MASTER_PORT"]
    assert [port for port in range(70_000) if re.fullmatch(contract.PORT, str(port))] == list(
        range(low, high + 1)
    )
    low, high = config.NUMBERS["NPROC_PER_NODE"]
    assert [n for n in range(70_000) if re.fullmatch(contract.PROCESSES, str(n))] == list(
        range(low, high + 1)
    )
