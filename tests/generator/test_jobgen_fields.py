"""Conversion and errors of the header, and of a task's fields other than resources."""

import pytest

from tests.generator.diagnostic_lines import brief

HEADER = "name: rl\nexecution: parallel\n"


def test_header_fields_become_values(values):
    found, lines = values(
        HEADER
        + """\
primary_tasks: [trainer, trainer]
termination_delay: {default: 2m, trainer: 5, buffer: 1H}
inter_connection: false
---
name: trainer
---
name: buffer
---
name: reward
"""
    )
    assert lines == []
    assert {key: value for key, value in found.items() if key != "tasks"} == {
        "name": "rl",
        "primaryTasks": ["trainer"],
        "interConnection": False,
        "schemaVersion": 1,
    }
    assert {name: task["terminationDelaySeconds"] for name, task in found["tasks"].items()} == {
        "trainer": 5,
        "buffer": 3600,
        "reward": 120,
    }
    assert list(found)[-1] == "schemaVersion"


def test_defaults_are_not_written(values):
    found, lines = values(
        f"{HEADER}primary_tasks: []\ninter_connection: true\ntermination_delay:\n---\nname: t\n"
    )
    assert (found, lines) == (
        {"name": "rl", "tasks": {"t": {"numNodes": 1, "run": ""}}, "schemaVersion": 1},
        [],
    )


def test_delay_without_primary_tasks_is_noted(values):
    _, (note,) = values(f"{HEADER}termination_delay: 5\n---\nname: t\n")
    assert "]: header: " in note and brief(note) == "3:20 $.termination_delay no-effect"


def test_keys_without_a_value_count_as_absent(task_values):
    assert task_values("name: t\nnum_nodes:\nresources:\n  cpus:\nsetup:\nfile_mounts:\n") == {
        "numNodes": 1
    }


def test_setup_and_run_keep_their_last_newline(task_values):
    found = task_values("name: t\nsetup: |\n  pip install x\nrun: |-\n  python x.py\n")
    assert (found["setup"], found["run"]) == ("pip install x\n", "python x.py")


def test_config_becomes_pod_template_queue_and_barrier(values):
    found, lines = values(
        HEADER
        + """\
---
name: t
resources: {labels: {a: "1", b: "1"}, priority_class: low}
config:
  kubernetes:
    kueue: {local_queue_name: team-a}
    provision_timeout: 900
    custom_metadata: {labels: {b: "2", c: "2"}, annotations: {x: "2"}}
    pod_config:
      metadata: {labels: {c: "3"}}
      spec:
        nodeSelector: {pool: gpu}
        priorityClassName: high
        containers: [{securityContext: {capabilities: {add: [IPC_LOCK]}}}]
---
name: u
config: {kubernetes: {provision_timeout: 60, kueue: {local_queue_name: team-a}}}
"""
    )
    assert (found["kueue"], found["timeouts"]) == ({"queueName": "team-a"}, {"joinSeconds": 900})
    assert lines == []
    assert found["tasks"]["t"]["podTemplate"] == {
        "metadata": {"labels": {"a": "1", "b": "2", "c": "3"}, "annotations": {"x": "2"}},
        "spec": {
            "priorityClassName": "high",
            "nodeSelector": {"pool": "gpu"},
            "containers": [{"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}],
        },
    }


def test_two_queues_are_refused(errors):
    task = "---\nname: {}\nconfig: {{kubernetes: {{kueue: {{local_queue_name: {}}}}}}}\n"
    (line,) = errors(HEADER + task.format("a", "x") + task.format("b", "y"))
    assert brief(line) == "8:49 $.config.kubernetes.kueue.local_queue_name conflicting-fields"
    assert ']: task "b": ' in line and 'task "a"' in line and "queue" in line


@pytest.mark.parametrize(
    "spec",
    ["hostname: x", "restartPolicy: Always", "initContainers: []", "a: .inf"]
    + ["containers: [{command: [x]}]", "containers: [{}, {}]"],
)
def test_what_the_chart_decides_of_a_pod_is_refused(task_error, spec):
    assert task_error(f"name: t\nconfig: {{kubernetes: {{pod_config: {{spec: {{{spec}}}}}}}}}\n")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Trainer", "trainer"),
        ("my_job", "my-job"),
        ("a.b", "a-b"),
        ("2nd", "job-2nd"),
        ("job-", "job"),
    ],
)
def test_invalid_name_is_refused_with_a_valid_one(errors, name, hint):
    header, task = errors(f"name: {name}\nexecution: parallel\n---\nname: {name}x_\n")
    assert (
        brief(header) == "1:7 $.name bad-name"
        and f'"{name}"' in header
        and "63" in header
        and f'"{hint}"' in header
    )
    assert brief(task) == "4:7 $.name bad-name" and f']: task "{name}x_": ' in task


def test_names_that_are_too_long_in_combination_are_refused(jobgen, errors):
    group, task = "g" * 20, "t" * 29  # with hash, rank and two more dashes: 63
    text = f"name: {group}\nexecution: parallel\n---\nname: {task}\nnum_nodes: 10\n"
    assert jobgen("validate", "-", stdin=text).exit_code == 0
    (line,) = errors(text.replace("10", "11"))
    assert brief(line) == "4:7 $.name name-too-long" and "63" in line
