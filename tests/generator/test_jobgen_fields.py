"""What becomes of each field, and what is said about one that cannot be honoured."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from jobgen.schema import text as schema_text


@pytest.mark.parametrize(
    ("cpus", "quantity"), [("4", "4"), ("4+", "4"), ('"4+"', "4"), ("0.5", "0.5"), ("1000", "1000"), ("2.0", "2")]
)
def test_cpus(task_values, cpus, quantity):
    assert task_values(f"{{name: t, resources: {{cpus: {cpus}}}}}")["resources"] == {"requests": {"cpu": quantity}}


@pytest.mark.parametrize(
    ("memory", "quantity"),
    [("16", "16G"), ("16+", "16G"), ("64GB", "64G"), ("2gb", "2G"), ("0.5", "0.5G"), ("8Gi", "8Gi"), ("512mi", "512Mi")]
    + [("100KB", "100k"), ("1TB", "1T"), ("1Pi", "1Pi"), ("10000+", "10000G")],
)
def test_memory(task_values, memory, quantity):
    assert task_values(f"{{name: t, resources: {{memory: {memory}}}}}")["resources"] == {
        "requests": {"memory": quantity}
    }


@pytest.mark.parametrize(
    ("accelerators", "kind", "count"),
    [("H100:8", "H100", 8), ("H100", "H100", 1), ("{H100: 8}", "H100", 8), ("A100-80GB:2", "A100-80GB", 2)],
)
def test_accelerators(task_values, accelerators, kind, count):
    values = task_values(f"name: t\nresources:\n  accelerators: {accelerators}\n")
    assert values["accelerator"] == {"type": kind, "count": count}
    assert "resources" not in values


@pytest.mark.parametrize("image", ["docker:registry.example.com/a/b:1", "registry.example.com/a/b:1"])
def test_image(task_values, image):
    assert task_values(f"{{name: t, resources: {{image_id: '{image}'}}}}")["image"] == "registry.example.com/a/b:1"


@pytest.mark.parametrize("infra", ["kubernetes", "k8s", "Kubernetes"])
def test_infra(task_values, infra):
    assert task_values(f"{{name: t, resources: {{infra: {infra}}}}}") == {"numNodes": 1}


def test_envs_become_the_text_that_skypilot_makes_of_them(task_values):
    values = task_values("""\
        name: t
        envs: {EPOCHS: 10, FLAG: true, RATE: 1e-4, HALF: 0.5, EMPTY: "", DAY: 2026-01-02, TEXT: "yes", N: "2"}
        """)
    assert values["env"] == {
        "EPOCHS": "10",
        "FLAG": "True",
        "RATE": "1e-4",
        "HALF": "0.5",
        "EMPTY": "",
        "DAY": "2026-01-02",
        "TEXT": "yes",
        "N": "2",
    }


def test_env_option_overrides_adds_and_fills_in(task_values):
    values = task_values("{name: t, envs: {A: 1, B: null}}", "--env", "A=x=y", "--env", "B=", "--env", "C=3")
    assert values["env"] == {"A": "x=y", "B": "", "C": "3"}


def test_keys_without_a_value_are_as_good_as_absent(task_values):
    assert task_values("name: t\nnum_nodes:\nresources:\n  cpus:\nsetup:\nfile_mounts:\n") == {"numNodes": 1}


def test_setup_and_run_keep_their_last_newline(task_values):
    values = task_values("name: t\nsetup: |\n  pip install x\nrun: |-\n  python x.py\n")
    assert (values["setup"], values["run"]) == ("pip install x\n", "python x.py")


def test_anchors_and_merges(task_values):
    values = task_values("name: t\nresources: &r {cpus: 2}\nenvs: {<<: {A: 1, B: 2}, B: 3}\n")
    assert values["env"] == {"A": "1", "B": "3"}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("cpus", "some", 'must be a number above 0, such as 4 or "4+", got "some"'),
        ("cpus", "0", 'must be a number above 0, such as 4 or "4+", got 0'),
        ("cpus", "true", "must be a number or text, got true/false"),
        ("memory", "64 apples", 'must be a size above 0, such as 16, "16+", "64GB" or "64Gi", got "64 apples"'),
        ("memory", ".inf", 'must be a size above 0, such as 16, "16+", "64GB" or "64Gi", got Infinity'),
        ("accelerators", "V100:0.5", "a fraction of a GPU is not supported: Kubernetes gives whole GPUs to a pod"),
        ("accelerators", "[L4, A100]", 'alternatives are not supported; write the one you want, such as "H100:8"'),
        (
            "accelerators",
            "{L4: 1, A100: 1}",
            'alternatives are not supported; write the one you want, such as "H100:8"',
        ),
        ("accelerators", "'H100:'", 'must be a type and a count above 0, such as H100, "H100:8" or {H100: 8}'),
        ("accelerators", "{H100: }", 'must be a type and a count above 0, such as H100, "H100:8" or {H100: 8}'),
        ("infra", "aws/us-east-1", 'only "kubernetes" is supported, got "aws/us-east-1"'),
        ("infra", "k8s/prod", 'write "kubernetes" without a context; helm chooses the cluster, with --kube-context'),
        ("image_id", "'docker:'", 'must be a container image, such as "docker:python:3.12"'),
    ],
)
def test_resource_is_refused(task_error, field, value, message):
    assert task_error(f"name: t\nresources:\n  {field}: {value}\n") == f"$.resources.{field}: {message}"


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("num_nodes: 0", "$.num_nodes: must be at least 1"),
        ("num_nodes: 1.5", "$.num_nodes: must be a whole number, got a number"),
        ("num_nodes: '2'", "$.num_nodes: must be a whole number, got text"),
        ("run: [echo]", "$.run: must be text, got a list"),
        ("run: 1", "$.run: must be text, got a whole number; put it in quotes"),
        ("resources: H100", "$.resources: must be a mapping, got text"),
        ("file_mounts: {/code: .}", "$.file_mounts: not supported: build the files into the task's image"),
        ("workdir: .", "$.workdir: not supported: build the files into the task's image"),
        ("volumes: {/mnt/shared: v}", "$.volumes: not supported by this version"),
        ("envs: {1A: x}", '$.envs["1A"]: a variable\'s name has letters, digits and _, and starts with no digit'),
        ("envs: {ON: x}", "$.envs.ON: YAML does not read this key as text; put it in quotes"),
        ("envs: {A: null}", "$.envs.A: has no value; write one, or give it with --env A=VALUE"),
        ("setpu: x", '$.setpu: unknown field; did you mean "setup"?'),
        ("qqqqqq: x", "$.qqqqqq: unknown field"),
    ],
)
def test_field_is_refused(task_error, field, message):
    assert task_error(f"name: t\n{field}\n") == message


@pytest.mark.parametrize("field", ["primary_tasks: [t]", "termination_delay: 30s"])
def test_header_field_is_refused(errors, field):
    (line,) = errors(f"name: rl\nexecution: parallel\n{field}\n---\nname: t\n")
    assert line.startswith(f"3:1: error: header: $.{field.split(':')[0]}: not supported by this version")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("Trainer", "trainer"), ("my_job", "my-job"), ("a.b", "a-b"), ("2nd", "job-2nd"), ("job-", "job")],
)
def test_name_that_kubernetes_refuses(errors, name, hint):
    header, task = errors(f"name: {name}\nexecution: parallel\n---\nname: {name}x_\n")
    assert header.startswith(f'1:7: error: header: $.name: "{name}" is no Kubernetes name: must be at most 63 of')
    assert header.endswith(f'; write "{hint}"')
    assert task.startswith(f'4:7: error: task "{name}x_": $.name: "{name}x_" is no Kubernetes name')


def test_names_that_are_too_long_together(jobgen, errors):
    group, task = "g" * 20, "t" * 29  # with hash, rank and two more dashes: 63
    text = f"name: {group}\nexecution: parallel\n---\nname: {task}\nnum_nodes: 10\n"
    assert jobgen("validate", "-", stdin=text).exit_code == 0
    (line,) = errors(text.replace("10", "11"))
    assert line.startswith('4:7: error: task "ttt') and "64 characters; Kubernetes allows 63" in line


@pytest.mark.parametrize("name", ["header", "task"])
def test_schema_command_prints_a_schema_that_describes_every_field(jobgen, name):
    schema = json.loads(jobgen("schema", name).stdout)
    jsonschema.Draft7Validator.check_schema(schema)
    assert schema["properties"]
    for field, described in {
        **schema["properties"],
        **schema["properties"].get("resources", {}).get("properties", {}),
    }.items():
        assert described["description"], field
        # jobgen shows the description of a refused field as the reason
        assert ("not" in described) == described["description"].startswith("Not supported"), field


@pytest.mark.parametrize("name", ["header", "task"])
def test_shipped_schema_is_generated_from_its_source(name):
    source = Path(__file__).parents[2] / "schemas" / "jobgroup" / f"{name}.yaml"
    assert schema_text(name) == json.dumps(yaml.safe_load(source.read_text()), indent=2) + "\n"
