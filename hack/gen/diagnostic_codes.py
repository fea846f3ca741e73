"""Diagnostic codes with their meaning and an example that causes each; docs/jobgen-errors.md is
generated from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

HEADER = "name: rl\nexecution: parallel\n---\n"


@dataclass(frozen=True)
class Code:
    meaning: str
    example: str  # the group file, or the task below HEADER if it starts with "name: trainer"
    files: dict[str, int | None] = field(
        default_factory=dict
    )  # path -> size of files next to it; None: a named pipe

    @property
    def source(self) -> str:
        return HEADER + self.example if self.example.startswith("name: trainer") else self.example


def _task(meaning: str, fields: str, files: dict[str, int | None] | None = None) -> Code:
    return Code(meaning, f"name: trainer\n{fields}\n", files or {})


CODES = {
    # The file as a whole
    "not-text": Code("The file is binary, or its encoding is not UTF-8.", "name: caf\x00\n"),
    "not-yaml": Code("The file breaks YAML's rules.", "name: rl\n\texecution: parallel\n"),
    "too-large": Code(
        "The file is larger than 4 MB, has too many keys and values, or grows too large with its aliases expanded.",
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n"
            for old, new in zip("abcdefg", "bcdefgh", strict=True)
        ),
    ),
    "too-deep": Code(
        "Mappings and lists are nested too deeply, or an alias contains itself.", "a: &a [*a]\n"
    ),
    "not-a-group": Code(
        "The file is not a job group. The message names what it is and what to do.",
        "name: single\nrun: python train.py\n",
    ),
    # YAML
    "duplicate-key": _task(
        "A mapping has the same key twice. YAML would keep the last value.", "run: a\nrun: b"
    ),
    "yaml-key": _task("YAML does not read a key as text, for example no or 1.", "envs: {no: x}"),
    "yaml-surprise": _task(
        "YAML changes the value of a variable (no, 010, 12:30, 1.10).", "envs: {VERSION: 1.10}"
    ),
    "bad-tag": _task("A YAML tag is unknown, or the value does not fit its tag.", "run: !script x"),
    # Fields
    "unknown-field": _task("The schema has no such field.", "resorces: {cpus: 4}"),
    "wrong-type": _task(
        "The value has the wrong type, for example text in place of a number.", "num_nodes: two"
    ),
    "bad-value": _task(
        "The value has the right type, but the field does not accept it.",
        "resources: {memory: lots}",
    ),
    "missing-field": Code(
        "A required field is missing.", "name: rl\nexecution: parallel\n---\nrun: echo hi\n"
    ),
    "missing-value": _task(
        "A variable has no value, neither in the file nor from --env.", "envs: {TOKEN: }"
    ),
    "refused-field": _task(
        "jobgen does not support the field. The message gives the reason and the alternative.",
        "resources: {use_spot: true}",
    ),
    "ignored-field": _task(
        "The field has no meaning on Kubernetes and is left out.",
        "resources: {max_hourly_cost: 10}",
    ),
    "honoured-differently": _task(
        "The field works differently from SkyPilot. The message describes how.",
        'resources: {accelerators: "H100:0.5"}',
    ),
    "no-effect": Code(
        "The field is valid but has no effect.",
        "name: rl\nexecution: parallel\ntermination_delay: 30s\n---\nname: trainer\n",
    ),
    "default-differs": _task(
        "What the group does not set is different in SkyPilot: the user, the image, and the requested CPUs and memory. "
        "Every group has one such note.",
        "resources: {cpus: 4}",
    ),
    "sky-config": _task(
        "A configuration of SkyPilot for the user or the project exists. SkyPilot merges it into every task.",
        "run: x",
        {".sky.yaml": 10},
    ),
    "workload-jobs": _task(
        "The group has more ranks than a JobSet holds, or than Kueue takes of one. Plain Jobs run it.",
        "num_nodes: 101",
    ),
    "conflicting-fields": _task(
        "Two fields, or two tasks, exclude each other.", "resources: {gpus: L4, accelerators: L4}"
    ),
    "unknown-gpu": _task(
        "The chart has no node labels for the GPU type. Pods stay Pending unless a node has the type as its label, or "
        "the chart's value accelerators.types has its labels.",
        "resources: {accelerators: MI300X}",
    ),
    # Names
    "bad-name": Code(
        "Kubernetes does not accept the name.",
        "name: My_Group\nexecution: parallel\n---\nname: trainer\n",
    ),
    "name-too-long": Code(
        "Object names that contain the name are too long for Kubernetes.",
        f"name: {'g' * 30}\nexecution: parallel\n---\nname: {'t' * 30}\n",
    ),
    "duplicate-task": Code("Two tasks have the same name.", HEADER + "name: a\n---\nname: a\n"),
    "unknown-task": Code(
        "The header names a task that does not exist.",
        "name: rl\nexecution: parallel\nprimary_tasks: [trianer]\n---\nname: trainer\n",
    ),
    # Secrets and variables
    "secret-needed": _task(
        "The task needs a Secret. The message has the command that creates it; run it before helm.",
        "secrets: {HF_TOKEN: }",
    ),
    "secret-value": _task(
        "The file contains the value of a secret, which jobgen does not use. An empty one is optional.",
        "secrets: {HF_TOKEN: abc}",
    ),
    "secret-in-values": _task(
        "A path contains a secret, which would be readable in the values.",
        "secrets: {PLACE: abc}\nworkdir: $PLACE",
    ),
    "credential-value": _task(
        "A value looks like a credential, by its format or by the name of its variable, and would be readable in the "
        "values. --allow with the name that the message shows accepts it.",
        "envs: {WANDB_API_KEY: abc}",
    ),
    "credential-file": _task(
        "A file looks like a credential, by its name or its content, or is the group file itself, and would be "
        "readable in the values. --allow with the path that the message shows accepts it.",
        "file_mounts: {/app/.env: .env}",
        {".env": 20},
    ),
    "unknown-variable": _task(
        "A path contains a variable that is not one of the task's envs.", "workdir: code-${VERSION}"
    ),
    # Files and volumes
    "embedded": _task(
        "The files are embedded in the values.",
        "file_mounts: {/etc/app.toml: app.toml}",
        {"app.toml": 120},
    ),
    "file-missing": _task(
        "The file or folder does not exist in the folders that the message names, or is empty.",
        "workdir: no-such-folder",
    ),
    "file-outside": _task(
        "The path leads outside the folder in which it is looked up; --allow-outside permits it.",
        "workdir: ..",
    ),
    "file-unreadable": _task(
        "The path is not a file or folder, is not readable, or is a folder that contains itself.",
        "file_mounts: {/code: pipe}",
        {"pipe": None},
    ),
    "files-too-large": _task(
        "The files do not fit into a ConfigMap, or into Helm's record of the release.",
        "file_mounts: {/data: data.bin}",
        {"data.bin": 1_200_000},
    ),
    "volume-of-one-node": _task(
        "A task of several nodes uses a volume that only one node can mount.",
        "num_nodes: 2\nvolumes: {/scratch: {size: 100Gi}}",
    ),
    "same-path": _task(
        "Two mounts have the same path, or the pod uses the path itself.",
        "volumes: {/data: a}\nfile_mounts: {/data: ./data}",
    ),
}
