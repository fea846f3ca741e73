"""The code of each kind of diagnostic: what it means, and a file that causes it. docs/jobgen-errors.md shows this."""

from __future__ import annotations

from dataclasses import dataclass, field

HEADER = "name: rl\nexecution: parallel\n---\n"


@dataclass(frozen=True)
class Code:
    meaning: str
    example: str  # the group file, or the task below HEADER if it starts with "name: trainer"
    files: dict[str, int | None] = field(default_factory=dict)  # files beside it: path -> size; None is a named pipe

    @property
    def source(self) -> str:
        return HEADER + self.example if self.example.startswith("name: trainer") else self.example


def _task(meaning: str, fields: str, files: dict[str, int | None] | None = None) -> Code:
    return Code(meaning, f"name: trainer\n{fields}\n", files or {})


CODES = {
    # The file as a whole
    "not-text": Code("The file is binary, or its encoding is not UTF-8.", "name: caf\x00\n"),
    "not-yaml": Code("The file breaks YAML's rules.", "name: rl\n\texecution: parallel\n"),
    "merge-conflict": Code("git left a conflict in the file.", "<<<<<<< HEAD\nname: rl\n"),
    "too-large": Code(
        "The file is larger than 16 MB, has more keys and values than any group, or its aliases make it so.",
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
        ),
    ),
    "too-deep": Code(
        "Mappings and lists are nested deeper than any group's, or an alias contains itself.", "a: &a [*a]\n"
    ),
    "not-a-group": Code(
        "The file is something else; the message says what, and what to do.", "name: single\nrun: python train.py\n"
    ),
    # YAML's surprises
    "duplicate-key": _task("A key stands twice in one mapping; YAML would keep the last one.", "run: a\nrun: b"),
    "yaml-key": _task("YAML does not read a key as text, for example no or 1.", "envs: {no: x}"),
    "yaml-surprise": _task(
        "YAML turned the value of a variable into something else (no, 010, 12:30, 1.10).", "envs: {VERSION: 1.10}"
    ),
    "bad-tag": _task("A YAML tag that is not known here, or a value that does not fit it.", "run: !script x"),
    # Fields
    "unknown-field": _task("No such field here.", "resorces: {cpus: 4}"),
    "wrong-type": _task("Text where a number belongs, a list where a mapping belongs, and so on.", "num_nodes: two"),
    "bad-value": _task("The right type, but not a value that the field takes.", "resources: {memory: lots}"),
    "missing-field": Code("A field that must be there is not.", "name: rl\nexecution: parallel\n---\nrun: echo hi\n"),
    "missing-value": _task("A variable has no value, neither in the file nor from --env.", "envs: {TOKEN: }"),
    "refused-field": _task(
        "jobgen cannot honour the field; the message says why, and what to do instead. "
        "--lenient leaves it out with a warning where the rest still runs.",
        "resources: {use_spot: true}",
    ),
    "ignored-field": _task("The field has no meaning here; nothing is lost.", "resources: {max_hourly_cost: 10}"),
    "honoured-differently": _task(
        "The field is honoured in another way than SkyPilot's.", 'resources: {accelerators: "H100:0.5"}'
    ),
    "no-effect": Code(
        "The field is right and has no effect.",
        "name: rl\nexecution: parallel\ntermination_delay: 30s\n---\nname: trainer\n",
    ),
    "conflicting-fields": _task(
        "Two fields, or two tasks, exclude each other.", "resources: {infra: k8s, cloud: kubernetes}"
    ),
    # Names
    "bad-name": Code("Kubernetes does not take the name.", "name: My_Group\nexecution: parallel\n---\nname: trainer\n"),
    "name-too-long": Code(
        "The names that are made of it are too long for Kubernetes.",
        f"name: {'g' * 30}\nexecution: parallel\n---\nname: {'t' * 30}\n",
    ),
    "duplicate-task": Code("Two tasks have the same name.", HEADER + "name: a\n---\nname: a\n"),
    "unknown-task": Code(
        "The header names a task that is not there.",
        "name: rl\nexecution: parallel\nprimary_tasks: [trianer]\n---\nname: trainer\n",
    ),
    # Secrets and variables
    "secret-needed": _task("The command that makes the Secret; run it before helm.", "secrets: {HF_TOKEN: }"),
    "secret-value": _task("The file has the value of a secret; jobgen does not use it.", "secrets: {HF_TOKEN: abc}"),
    "secret-in-values": _task(
        "A path contains a secret, which would be readable in the values.", "secrets: {PLACE: abc}\nworkdir: $PLACE"
    ),
    "unknown-variable": _task(
        "A path contains a variable that is not one of the task's envs.", "workdir: code-${VERSION}"
    ),
    # Files and volumes
    "embedded": _task("The files are in the values now.", "file_mounts: {/etc/app.toml: app.toml}", {"app.toml": 120}),
    "file-missing": _task("There is no such file or folder, or a folder is empty.", "workdir: no-such-folder"),
    "file-outside": _task(
        "The path leads out of the group file's folder; --allow-outside allows it.", "workdir: ../code"
    ),
    "file-unreadable": _task(
        "Neither a file nor a folder, or not readable, or a folder that contains itself.",
        "file_mounts: {/code: pipe}",
        {"pipe": None},
    ),
    "files-too-large": _task(
        "The files do not fit into a ConfigMap, or into Helm's record of the release.",
        "file_mounts: {/data: data.bin}",
        {"data.bin": 1_200_000},
    ),
    "volume-of-one-node": _task(
        "A volume that one node can mount, for a task of several nodes.",
        "num_nodes: 2\nvolumes: {/scratch: {size: 100Gi}}",
    ),
    "same-path": _task(
        "Two things would be mounted on one path, or something on the pod's own.",
        "volumes: {/data: a}\nfile_mounts: {/data: ./data}",
    ),
}
