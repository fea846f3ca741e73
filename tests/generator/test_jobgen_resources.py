"""The field resources: its values, and the errors and notes about unsupported parts."""

import pytest

from jobgen.accelerators import ACCELERATORS
from tests.generator.diagnostic_lines import brief


def resources(text: str) -> str:
    return f"name: t\nresources: {text}\n"


def test_disk_size_and_not_ephemeral_storage_is_requested(task_values, task_notes):
    task = resources("{ephemeral_storage: 1, disk_size: 2GB}")
    assert task_values(task)["resources"]["requests"] == {"ephemeral-storage": "2G"}
    (note,) = task_notes(task)
    assert brief(note) == "$.resources.ephemeral_storage ignored-field" and "disk_size" in note


def test_a_fraction_of_a_gpu_is_rounded_up(task_values, task_notes):
    task = resources("{accelerators: 'V100:0.5'}")
    assert task_values(task)["accelerator"] == {"types": ["V100"], "count": 1}
    (note,) = task_notes(task)
    assert (
        brief(note) == "$.resources.accelerators honoured-differently" and "rounded up to 1" in note
    )


def test_an_unknown_gpu_type_causes_a_warning(task_notes, task_values):
    (note,) = task_notes(resources("{accelerators: MI300X}"))
    assert note.startswith("warning[") and brief(note) == "$.resources.accelerators unknown-gpu"
    assert (
        "nvidia.com/gpu.product=MI300X" in note
        and "accelerators.types" in note
        and "Pending" in note
    )
    assert task_values(resources("{accelerators: MI300X}"))["accelerator"]["types"] == ["MI300X"]


@pytest.mark.parametrize("name", sorted(ACCELERATORS))
def test_gpu_types_are_written_in_any_case(task_values, name):
    for spelling in (name.lower(), name.upper(), name.swapcase()):
        assert task_values(resources(f"{{accelerators: '{spelling}:2'}}"))["accelerator"] == {
            "types": [name],
            "count": 2,
        }
    assert task_values(resources(f"{{accelerators: {{{name.lower()}: 2}}}}"))["accelerator"][
        "types"
    ] == [name]
    assert task_values(resources(f"{{gpus: [{name.lower()}, {name}]}}"))["accelerator"][
        "types"
    ] == [name]


def test_a_context_causes_a_note_and_must_be_the_same_for_all_tasks(
    task_values, task_notes, errors
):
    task = resources("{infra: 'k8s/aws:eks:cluster/prod'}")
    assert task_values(task) == {"numNodes": 1}
    (note,) = task_notes(task)
    assert brief(note) == "$.resources.infra honoured-differently"
    assert "`helm --kube-context aws:eks:cluster/prod`" in note
    other = "---\nname: u\nresources: {infra: k8s/test}\n"
    (line,) = errors(f"name: rl\nexecution: parallel\n---\n{task}{other}")
    assert ']: task "u": ' in line and brief(line) == "8:20 $.resources.infra conflicting-fields"
    assert 'task "t"' in line and "context" in line


# What SkyPilot refuses, too, is compared in tests/differential, and what the schema refuses has an
# example there.
REFUSED = {
    "accelerators": ["tpu-v5e-8"],
    "infra": ["aws/us-east-1", "'*/us-east-1'"],
    "cloud": ["gcp"],
    "image_id": ["'docker:'", "{us-east-1: ami-1}"],
    "labels": ["{kubernetes.io/a: b}", "{job-group/a: b}", "{a: -b}"],
}


@pytest.mark.parametrize("field", REFUSED)
def test_resource_is_refused(task_error, field):
    for value in REFUSED[field]:
        assert f"]: $.resources.{field}" in task_error(resources(f"\n  {field}: {value}")), value
