"""What becomes of the header and of a task's fields other than resources, and what is refused."""

import pytest

HEADER = "name: rl\nexecution: parallel\n"


def test_whole_header(values):
    found, said = values(
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
    assert said == []
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


@pytest.mark.parametrize(
    ("delay", "seconds"), [("30s", 30), ("30", 30), ("'30'", 30), ("2M", 120), ("1w", 604800), ("0", None)]
)
def test_one_delay_for_all(values, delay, seconds):
    found, _ = values(f"{HEADER}primary_tasks: [t]\ntermination_delay: {delay}\n---\nname: t\n")
    assert found["tasks"]["t"].get("terminationDelaySeconds") == seconds


def test_what_means_nothing_is_not_written(values):
    found, said = values(f"{HEADER}primary_tasks: []\ninter_connection: true\ntermination_delay:\n---\nname: t\n")
    assert (found, said) == ({"name": "rl", "tasks": {"t": {"numNodes": 1}}, "schemaVersion": 1}, [])


def test_delay_without_primary_tasks_is_noted(values):
    _, (note,) = values(f"{HEADER}termination_delay: 5\n---\nname: t\n")
    assert note.startswith("3:20: note: header: $.termination_delay: has no effect") and note.endswith("[no-effect]")


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (
            "primary_tasks: [u]",
            "3:17: error: header: $.primary_tasks[0]: no task has this name; available: t [unknown-task]",
        ),
        ("primary_tasks: t", "3:16: error: header: $.primary_tasks: must be a list, got text [wrong-type]"),
        (
            "primary_tasks: [1]",
            "3:17: error: header: $.primary_tasks[0]: must be text, got a whole number; put it in quotes [wrong-type]",
        ),
        (
            "termination_delay: {u: 1}",
            "3:21: error: header: $.termination_delay.u: no task has this name; available: t, default [unknown-task]",
        ),
        (
            "termination_delay: 1.5",
            "3:20: error: header: $.termination_delay: must be text or a whole number or a mapping, got a"
            " number [wrong-type]",
        ),
        (
            "termination_delay: soon",
            "3:20: error: header: $.termination_delay: must be a whole number with s, m, h, d or w behind"
            ' it, such as 30s or 2m, got "soon" [bad-value]',
        ),
        (
            "inter_connection: 'yes'",
            "3:19: error: header: $.inter_connection: must be true/false, got text [wrong-type]",
        ),
        (
            "placement: NEAR",
            '3:12: error: header: $.placement: Invalid placement mode "NEAR"; supported: SAME_INFRA [bad-value]',
        ),
        ("intermesh: {}", "3:1: error: header: $.intermesh: unknown field [unknown-field]"),
        (
            "primary_task: [t]",
            '3:1: error: header: $.primary_task: unknown field; did you mean "primary_tasks"? [unknown-field]',
        ),
    ],
)
def test_header_is_refused(errors, field, expected):
    assert errors(f"{HEADER}{field}\n---\nname: t\n") == [expected]


def test_unknown_header_field_is_a_warning_for_the_lenient(values, errors):
    found, said = values(f"{HEADER}intermesh: {{}}\n---\nname: t\n", "--lenient")
    assert found["name"] == "rl"
    assert said == ["3:1: warning: header: $.intermesh: unknown field (left out) [unknown-field]"]
    assert errors(f"{HEADER}---\nname: t\nrnu: x\n", "--lenient")  # but not in a task


def test_keys_without_a_value_are_as_good_as_absent(task_values):
    assert task_values("name: t\nnum_nodes:\nresources:\n  cpus:\nsetup:\nfile_mounts:\n") == {"numNodes": 1}


def test_setup_and_run_keep_their_last_newline(task_values):
    found = task_values("name: t\nsetup: |\n  pip install x\nrun: |-\n  python x.py\n")
    assert (found["setup"], found["run"]) == ("pip install x\n", "python x.py")


def test_config(values):
    found, said = values(
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
    assert (found["kueue"], found["barrier"], said) == ({"queueName": "team-a"}, {"timeoutSeconds": 900}, [])
    assert found["tasks"]["t"]["podTemplate"] == {
        "metadata": {"labels": {"a": "1", "b": "2", "c": "3"}, "annotations": {"x": "2"}},
        "spec": {
            "priorityClassName": "high",
            "nodeSelector": {"pool": "gpu"},
            "containers": [{"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}],
        },
    }


def test_two_queues(errors):
    task = "---\nname: {}\nconfig: {{kubernetes: {{kueue: {{local_queue_name: {}}}}}}}\n"
    (line,) = errors(HEADER + task.format("a", "x") + task.format("b", "y"))
    assert line == (
        '8:49: error: task "b": $.config.kubernetes.kueue.local_queue_name: task "a" names another queue;'
        " a group is admitted as a whole [conflicting-fields]"
    )


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("num_nodes: 0", "$.num_nodes: must be at least 1, got 0 [bad-value]"),
        ("num_nodes: 1.5", "$.num_nodes: must be a whole number, got a number [wrong-type]"),
        ("num_nodes: '2'", "$.num_nodes: must be a whole number, got text [wrong-type]"),
        ("num_nodes: true", "$.num_nodes: must be a whole number, got true/false [wrong-type]"),
        ("run: [echo]", "$.run: must be text, got a list [wrong-type]"),
        ("run: 1", "$.run: must be text, got a whole number; put it in quotes [wrong-type]"),
        ("resources: H100", "$.resources: must be a mapping, got text [wrong-type]"),
        ("setpu: x", '$.setpu: unknown field; did you mean "setup"? [unknown-field]'),
        ("setpu:", '$.setpu: unknown field; did you mean "setup"? [unknown-field]'),
        ("qqqqqq: x", "$.qqqqqq: unknown field [unknown-field]"),
        ("service: {replicas: 1}", None),
        ("pool: {workers: 1}", None),
        ("event_callback: x", None),
        ("volume_mounts: []", None),
        ("config: {hooks: []}", None),
        ("config: {docker: {run_options: x}}", None),
        ("config: {kubernetes: {dws: {}}}", None),
        ("config: {kubernetes: {quota: {}}}", None),
        ("config: {kubernetes: {remote_identity: x}}", None),
        ("config: {kubernetes: {enable_docker: true}}", None),
        ("config: {kubernetes: {pod_config: {spec: {hostname: x}}}}", None),
        ("config: {kubernetes: {pod_config: {spec: {restartPolicy: Always}}}}", None),
        ("config: {kubernetes: {pod_config: {spec: {initContainers: []}}}}", None),
        ("config: {kubernetes: {pod_config: {spec: {containers: [{command: [x]}]}}}}", None),
        ("config: {kubernetes: {pod_config: {spec: {containers: [{}, {}]}}}}", None),
        ("config: {kubernetes: {pod_config: {spec: {a: .inf}}}}", None),
        ("config: {kubernetes: {provison_timeout: 1}}", None),
    ],
)
def test_field_is_refused(task_error, field, message):
    error = task_error(f"name: t\n{field}\n")
    assert message is None or error == message


@pytest.mark.parametrize(
    "field",
    ["job: {wait_for_scheduling_timeout: 1h}", "api_server_access: true", "inputs: {a: 1}", "outputs: {a: 1}"]
    + ["_metadata: {}", "file_mounts_mapping: {}", "config: {gcp: {}}", "config: {nvidia_gpus: {disable_ecc: true}}"]
    + ["config: {active_workspace: x}", "config: {kubernetes: {kueue: {admission_timeout: 5}}}"],
)
def test_field_is_ignored_aloud(task_values, task_notes, field):
    assert task_values(f"name: t\n{field}\n") == {"numNodes": 1}
    (note,) = task_notes(f"name: t\n{field}\n")
    assert ": ignored: " in note and note.endswith("[ignored-field]")


def test_lenient_leaves_out_what_is_refused(task_values, task_notes):
    task = "name: t\nevent_callback: x\nresources: {region: x, cpus: 2}\nconfig: {hooks: []}\n"
    assert task_values(task, "--lenient") == {"numNodes": 1, "resources": {"requests": {"cpu": "2"}}}
    notes = task_notes(task, "--lenient")
    assert len(notes) == 3 and all(note.startswith("warning: ") and "(left out)" in note for note in notes)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("Trainer", "trainer"), ("my_job", "my-job"), ("a.b", "a-b"), ("2nd", "job-2nd"), ("job-", "job")],
)
def test_name_that_kubernetes_refuses(errors, name, hint):
    header, task = errors(f"name: {name}\nexecution: parallel\n---\nname: {name}x_\n")
    assert header.startswith(f'1:7: error: header: $.name: "{name}" is no Kubernetes name: must be at most 63 of')
    assert header.endswith(f'; write "{hint}" [bad-name]')
    assert task.startswith(f'4:7: error: task "{name}x_": $.name: "{name}x_" is no Kubernetes name')


def test_names_that_are_too_long_together(jobgen, errors):
    group, task = "g" * 20, "t" * 29  # with hash, rank and two more dashes: 63
    text = f"name: {group}\nexecution: parallel\n---\nname: {task}\nnum_nodes: 10\n"
    assert jobgen("validate", "-", stdin=text).exit_code == 0
    (line,) = errors(text.replace("10", "11"))
    assert line.startswith('4:7: error: task "ttt') and "64 characters; Kubernetes allows 63" in line
