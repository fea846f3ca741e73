"""Private registries: SKYPILOT_DOCKER_* becomes the image's server and a pull secret."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.generator.diagnostic_lines import brief
from tests.helpers.rendering import HELMS, template

HEADER = "name: rl\nexecution: parallel\n---\n"
IMAGE = "resources: {image_id: 'docker:team/app:1'}\n"
LOGIN = "{SKYPILOT_DOCKER_USERNAME: me, SKYPILOT_DOCKER_PASSWORD: s3cret, SKYPILOT_DOCKER_SERVER: r.example.com}"


def task(fields: str, image: str = IMAGE) -> str:
    return f"name: t\n{fields}\n{image}"


@pytest.mark.parametrize("field", ["envs", "secrets"])
def test_a_login_becomes_the_server_and_a_pull_secret(values, field):
    found, lines = values(HEADER + task(f"{field}: {LOGIN}"))
    assert found["tasks"]["t"]["image"] == "r.example.com/team/app:1"
    assert found["tasks"]["t"]["podTemplate"] == {"spec": {"imagePullSecrets": [{"name": "rl-registry"}]}}
    assert "SKYPILOT_DOCKER" not in str(found) and "secretName" not in found
    (line,) = [line for line in lines if "[secret-needed]" in line]
    assert "generic rl-registry" in line and "s3cret" not in str(found) + "".join(lines)


@pytest.mark.parametrize("image", ["r.example.com/team/app:1", "{docker: r.example.com/team/app:1}"])
def test_the_server_is_written_once(task_values, image):
    found = task_values(task(f"envs: {LOGIN}", f"resources: {{image_id: {image}}}\n"))
    assert found["image"] == "r.example.com/team/app:1"


def test_a_login_comes_from_the_command_line(task_values, tmp_path, monkeypatch):
    monkeypatch.setenv("SKYPILOT_DOCKER_PASSWORD", "s3cret")
    null = LOGIN.replace(" s3cret", " ").replace(" me", " ").replace(" r.example.com", " ")
    options = ["--env", "SKYPILOT_DOCKER_PASSWORD", "--env", "SKYPILOT_DOCKER_SERVER=r.example.com"]
    assert task_values(task(f"envs: {null}"), *options)["image"] == "r.example.com/team/app:1"
    options = ["--secret", "SKYPILOT_DOCKER_PASSWORD", "--secret", "SKYPILOT_DOCKER_SERVER=r.example.com"]
    found = task_values(task("x: y").replace("x: y\n", ""), *options, "--secret", "SKYPILOT_DOCKER_USERNAME=me")
    assert found["image"] == "r.example.com/team/app:1"
    (tmp_path / "docker.env").write_text(LOGIN.strip("{}").replace(": ", "=").replace(", ", "\n"))
    for declared in ("", f"envs: {null}", f"secrets: {null}"):
        found = task_values(task(declared), "--env-file", str(tmp_path / "docker.env"))
        assert found["image"] == "r.example.com/team/app:1" and "s3cret" not in str(found)


def test_pull_secrets_of_the_file_are_kept(task_values):
    config = "config: {kubernetes: {pod_config: {spec: {imagePullSecrets: [{name: mine}]}}}}"
    found = task_values(task(f"envs: {LOGIN}\n{config}"))
    assert found["podTemplate"]["spec"]["imagePullSecrets"] == [{"name": "mine"}, {"name": "rl-registry"}]


def test_servers_have_one_secret_each(values):
    other = task(f"envs: {LOGIN.replace('r.example.com', 'other.io:5000')}").replace("name: t", "name: u")
    found, lines = values(
        f"{HEADER}{task(f'envs: {LOGIN}')}---\n{task(f'secrets: {LOGIN}').replace('t', 'v', 1)}---\n{other}"
    )
    names = [each["podTemplate"]["spec"]["imagePullSecrets"][0]["name"] for each in found["tasks"].values()]
    assert names == ["rl-registry", "rl-registry", "rl-registry-other-io-5000"]
    assert len([line for line in lines if "[secret-needed]" in line]) == 2


PARTIAL = [
    ("envs: {SKYPILOT_DOCKER_PASSWORD: s3cret}", "$.envs missing-value"),
    ("envs: {SKYPILOT_DOCKER_USERNAME: me, SKYPILOT_DOCKER_SERVER: s3cret}", "$.envs missing-value"),
    ("secrets: {SKYPILOT_DOCKER_USERNAME: me, SKYPILOT_DOCKER_PASSWORD: s3cret}", "$.secrets missing-value"),
    ("secrets: ['secrets:SKYPILOT_DOCKER_PASSWORD']", "$.secrets missing-value"),
    (
        "envs: {SKYPILOT_DOCKER_USERNAME: me, SKYPILOT_DOCKER_SERVER: r.io}\n"
        "secrets: {SKYPILOT_DOCKER_PASSWORD: s3cret}",
        "$.secrets conflicting-fields",
    ),
    (f"secrets: {LOGIN.replace('r.example.com', '')}", "$.secrets missing-value"),
    (f"envs: {LOGIN.replace('r.example.com', 'https://s3cret/')}", "$.envs bad-value"),
    (f"envs: {LOGIN.replace('r.example.com', '7')}", "$.envs bad-value"),
]


@pytest.mark.parametrize(("fields", "expected"), PARTIAL)
def test_partial_logins_are_refused(task_error, fields, expected):
    error = task_error(task(fields))
    assert brief(error) == expected and "SKYPILOT_DOCKER_" in error and "s3cret" not in error


def test_a_login_without_an_image_has_no_effect(task_values, task_notes):
    assert task_values(task(f"envs: {LOGIN}", "")) == {"numNodes": 1}
    (note,) = task_notes(task(f"envs: {LOGIN}", ""))
    assert brief(note) == "$.envs no-effect"


@pytest.mark.parametrize("helm", HELMS)
def test_the_chart_pulls_with_the_secret(jobgen, helm):
    text = jobgen("to-values", "-", stdin=HEADER + task(f"envs: {LOGIN}")).stdout
    done = template(helm, "job-group", text.encode())
    assert done.returncode == 0, done.stderr
    (jobset,) = [each for each in yaml.safe_load_all(done.stdout) if each["kind"] == "JobSet"]
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "rl-registry"}]
    assert pod["containers"][0]["image"] == "r.example.com/team/app:1"


def test_the_command_makes_what_a_node_reads(values, tmp_path):
    """With a kubectl that prints what it gets: the password is on standard input, not among the arguments."""
    lines = values(HEADER + task(f"envs: {LOGIN}"))[1]
    command = next(line for line in lines if "[secret-needed]" in line).partition("install: ")[2].rpartition(" [")[0]
    fake = tmp_path / "kubectl"
    fake.write_text('#!/bin/sh\necho "$@"\ncat\n')
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{Path(shutil.which('sh')).parent}:/usr/bin:/bin"}
    environment |= {"SKYPILOT_DOCKER_USERNAME": "me", "SKYPILOT_DOCKER_PASSWORD": "pa ss%s"}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, check=True)
    arguments, _, config = done.stdout.partition("\n")
    assert re.search("--type=kubernetes.io/dockerconfigjson --from-file=.dockerconfigjson=/dev/stdin", arguments)
    assert json.loads(config) == {"auths": {"r.example.com": {"username": "me", "password": "pa ss%s"}}}
