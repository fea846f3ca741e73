"""Intended differences between jobgen and SkyPilot."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.differential.compare import Difference

HEADER = "name: rl\nexecution: parallel\n---\n"
LOGIN = (
    "{SKYPILOT_DOCKER_USERNAME: a, SKYPILOT_DOCKER_PASSWORD: b, SKYPILOT_DOCKER_SERVER: ghcr.io}"
)
YEAR = 365 * 24 * 60 * 60
REFUSED, ACCEPTED, OTHER = "jobgen refuses", "jobgen accepts", "jobgen writes another value"


def always(_difference: Difference) -> bool:
    return True


@dataclass(frozen=True)
class Entry:
    """One kind of difference, identified by jobgen's codes and path, by SkyPilot's error, or by the
    field.
    """

    what: str
    why: str
    example: str  # of a task, or of a whole file
    codes: str = ""  # refused by jobgen with one of these,
    path: str = ""  # at a path that matches
    theirs: str = ""  # refused by SkyPilot with a message that matches
    field: str = ""  # of another value; several are separated by |
    check: Callable[[Difference], bool] = always

    @property
    def kind(self) -> str:
        return REFUSED if self.codes else ACCEPTED if self.theirs else OTHER

    @property
    def text(self) -> str:
        return self.example if "execution:" in self.example else HEADER + self.example

    def explains(self, difference: Difference) -> bool:
        if self.codes:
            found = difference.code in self.codes.split() and re.search(self.path, difference.path)
        elif self.theirs:
            found = not (difference.code or difference.field) and re.search(
                self.theirs, str(difference.theirs)
            )
        else:
            found = difference.field in self.field.split("|")
        return bool(found) and self.check(difference)


def same_size_in_binary_units(difference: Difference) -> bool:
    """16Gi is 17.18e9 bytes in jobgen and 16e9 in SkyPilot; 1TB is 1e12 and 1024e9; at most 13 %
    apart.
    """
    (ours,), (theirs,) = difference.ours, difference.theirs
    return None not in (ours, theirs) and abs(ours - theirs) <= theirs * 13 / 100


def not_kubernetes(difference: Difference) -> bool:
    """Whether the field requests something other than Kubernetes."""
    value = difference.value
    if difference.key in ("infra", "cloud"):
        # A zone without a context, k8s//zone, is a place of a cloud.
        return not re.fullmatch(r"(k8s|kubernetes)(/[^/].*)?|\*?", str(value), re.IGNORECASE)
    if difference.key == "image_id":
        return isinstance(value, dict)
    if difference.key in ("accelerators", "gpus"):
        return "tpu" in str(value).lower() or bool(re.search(r"\d+[GgMmTt][Bb]", str(value)))
    return difference.key != "use_spot" or value is True


def no_dns_label(difference: Difference) -> bool:
    good = isinstance(difference.value, str) and re.fullmatch(
        r"[a-z]([-a-z0-9]*[a-z0-9])?", difference.value
    )
    return not good or len(difference.value) > 63


def no_plain_amount(difference: Difference) -> bool:
    """Not a usual number, or zero (which SkyPilot accepts if an alternative hides it), or huge."""
    amount = re.fullmatch(
        r"(\d{1,9})(\.\d+)?([kmgtp][bi])?[smhdw]?\+?", str(difference.value), re.IGNORECASE
    )
    small = amount and (amount[3] or "").lower() in ("kb", "ki", "mb", "mi")
    return not amount or small or float(amount[1] + (amount[2] or "")) == 0 or int(amount[1]) > 1024


TABLE = [
    Entry(
        "Names of groups and tasks that are not DNS-1035 labels",
        "J-i.G is a DNS name, and Jobs and Services have the names. The error suggests a valid name.",
        "name: My_Task\n",
        codes="bad-name wrong-type yaml-key",
        path=r"^\$\.name$",
        check=no_dns_label,
    ),
    Entry(
        "Names that are too long in combination",
        "A Job's name contains those of the group and of the task, and has at most 63 characters.",
        f"name: {'x' * 40}\nexecution: parallel\n---\nname: replay-buffer\n",
        codes="name-too-long",
        check=lambda difference: len(difference.value) > 10,
    ),
    Entry(
        "Unknown fields of the header",
        "SkyPilot logs a warning and continues. A misspelt primary_tasks would change when the group ends.",
        "name: rl\nexecution: parallel\nprimary_task: [a]\n---\nname: a\n",
        codes="unknown-field refused-field wrong-type",
        path=r"^\$(\.\w+|\[.*\])$",
        check=lambda difference: difference.task is None,
    ),
    Entry(
        "`placement` with another value than SAME_INFRA",
        "SkyPilot has removed the field and ignores it. jobgen supports SAME_INFRA.",
        "name: rl\nexecution: parallel\nplacement: INVALID\n---\nname: a\n",
        codes="bad-value wrong-type",
        path=r"^\$\.placement$",
    ),
    Entry(
        "Unknown fields below config, volumes and job_recovery, and values of the wrong type there",
        "SkyPilot's command line leaves them to its server, which has plug-ins. jobgen has no later check.",
        "name: a\nvolumes: {/scratch: {size: 10Gi, x: 1}}\n",
        codes="unknown-field wrong-type bad-value missing-field",
        path=r"^\$\.(config|volumes|resources\.(.*\.)?job_recovery)\b",
    ),
    Entry(
        "Other infrastructure than Kubernetes: in infra, cloud, region, zone, instance_type, use_spot, image_id; TPUs",
        "The group runs on one Kubernetes cluster. The error names the alternative for each field.",
        "name: a\nresources: {infra: aws}\n",
        codes="refused-field",
        path=r"^\$\.resources\.(.*\.)?(infra|cloud|region|zone|instance_type|use_spot|image_id|volumes|accelerators|gpus)$",
        check=not_kubernetes,
    ),
    Entry(
        "Alternatives in any_of and ordered, and GPU types with different counts",
        "A Job has one set of resources. Several GPU types are a list in accelerators.",
        "name: a\nresources: {any_of: [{cpus: 4}, {cpus: 8}]}\n",
        codes="refused-field",
        path=r"^\$\.resources\.(any_of|ordered|accelerators|gpus)$",
    ),
    Entry(
        "Features of a SkyPilot server: services, pools, event_callback, volume_mounts, managed secrets as files",
        "The group runs without a SkyPilot server.",
        "name: a\nservice: {readiness_probe: /}\n",
        codes="refused-field",
        path=r"^\$\.(service|pool|event_callback|volume_mounts|managed_secrets\[\d+\])$",
    ),
    Entry(
        "Buckets in file_mounts",
        "Nothing copies the buckets. The error describes how to mount one with a CSI driver.",
        "name: a\nfile_mounts: {/data: 's3://bucket/x'}\n",
        codes="refused-field",
        path=r"^\$\.file_mounts\b",
        check=lambda difference: (
            "://" in str(difference.value) or not isinstance(difference.value, str)
        ),
    ),
    Entry(
        "Settings of config, and folders of the node as volumes, that belong elsewhere",
        "The error names the place.",
        "name: a\nconfig: {kubernetes: {dws: {enabled: true}}}\n",
        codes="refused-field",
        path=r"^\$\.(config\.(hooks|kubernetes\.(dws|quota|remote_identity|enable_docker|set_pod_resource_limits|pod_config\.spec\..*))"
        r"|volumes\b.*)$",
        check=lambda difference: "config" in difference.path or "host_path" in difference.value,
    ),
    Entry(
        "Recovery on exit code 0",
        "0 means success, after which Kubernetes does not restart.",
        "name: a\nresources: {job_recovery: {recover_on_exit_codes: [0]}}\n",
        codes="refused-field",
        path=r"recover_on_exit_codes",
        # Below an alternative, the path of an inherited field has no value in the file.
        check=lambda difference: difference.value in (None, 0) or 0 in difference.value,
    ),
    Entry(
        "Files that do not exist, in the notation with source",
        "SkyPilot looks for them when it uploads them.",
        "name: a\nfile_mounts: {/code: {source: ./cod}}\n",
        codes="file-missing",
        path=r"^\$\.file_mounts\b",
    ),
    Entry(
        "Files outside the folder in which the path is looked up",
        "They would be embedded in the values, so --allow-outside must confirm the intention.",
        "name: a\nworkdir: ..\n",
        codes="file-outside",
    ),
    Entry(
        "What looks like a credential: variables by their name, files, tokens and addresses with a password",
        "Values are committed and stored in ConfigMaps. The error names the way to a Secret; --allow accepts it.",
        "name: a\nenvs: {WANDB_API_KEY: abc}\n",
        codes="credential-value credential-file",
    ),
    Entry(
        "A login to a registry in SKYPILOT_DOCKER_*",
        "The nodes pull images with a Secret of the cluster, which pod_config names in imagePullSecrets.",
        f"name: a\nresources: {{image_id: 'docker:x'}}\nenvs: {LOGIN}\n",
        codes="refused-field",
        path=r"^\$\.(envs|secrets)\b",
    ),
    Entry(
        "A variable in both envs and secrets",
        "SkyPilot silently uses the secret.",
        "name: a\nenvs: {A: x}\nsecrets: {A: null}\n",
        codes="conflicting-fields",
        path=r"^\$\.(secrets|managed_secrets)\b",
    ),
    Entry(
        "Contexts of several clusters in one group",
        "A Helm release belongs to one cluster.",
        "name: a\nresources: {infra: k8s/one}\n---\nname: b\nresources: {infra: k8s/two}\n",
        codes="conflicting-fields",
        path=r"infra$",
    ),
    Entry(
        "A volume with a size on a task of several nodes",
        "It would be one disk per node, without sharing.",
        "name: a\nnum_nodes: 2\nvolumes: {/scratch: {size: 10Gi}}\n",
        codes="volume-of-one-node",
    ),
    Entry(
        "Duplicate keys",
        "SkyPilot silently uses the last one.",
        "name: a\nnum_nodes: 1\nnum_nodes: 2\n",
        codes="duplicate-key",
    ),
    Entry(
        "Keys that YAML does not read as text, such as `no` or 1",
        "In SkyPilot the variable gets the name `False`.",
        "name: a\nenvs: {no: x}\n",
        codes="yaml-key",
    ),
    Entry(
        "Lists and maps as values of envs",
        "In SkyPilot the variable gets Python's notation of them.",
        "name: a\nenvs: {A: [1]}\n",
        codes="wrong-type",
        path=r"^\$\.envs\b",
        check=lambda difference: isinstance(difference.value, dict | list),
    ),
    Entry(
        "Characters that no container accepts: NUL and halves of surrogate pairs",
        "The Job would fail at the start of the container.",
        'name: a\nrun: "a\\0b"\n',
        codes="not-text",
    ),
    Entry(
        "Variables in paths that are not among the task's envs",
        "SkyPilot leaves `${A}` unchanged.",
        "name: a\nvolumes: {/data: '${A}'}\n",
        codes="unknown-variable",
    ),
    Entry(
        "Values that Kubernetes does not accept: labels, GPU types, images, PriorityClasses, mount paths, variables",
        "SkyPilot's server or the cluster reports them after submission. jobgen reports an error with its position.",
        "name: a\nresources: {labels: {a b: c}}\n",
        codes="bad-value wrong-type",
        path=r"labels\b|(accelerators|gpus)\.(_\w*|\w*_)$|image_id$|priority_class$|^\$\.(file_mounts|workdir|secrets|managed_secrets)\b",
    ),
    Entry(
        "Variables and secrets with a name that the chart sets itself, such as RUN_ID or SKYPILOT_NUM_NODES",
        "A user's value would contradict the pod that the chart creates.",
        "name: a\nenvs: {RUN_ID: x}\n",
        codes="refused-field",
        path=r"^\$\.(envs|secrets|managed_secrets)\b",
    ),
    Entry(
        "Amounts that are not plain numbers, such as inf, 1e3 or 1_000, disks in KB or MB, and huge amounts",
        "SkyPilot reads them as Python does. More than 1,024 nodes, or delays of 30 years, are typing errors.",
        "name: a\nresources: {memory: inf}\n",
        codes="bad-value",
        path=r"(cpus|memory|disk_size|ephemeral_storage|num_nodes|accelerators|gpus)(\b|$)|^\$\.termination_delay",
        check=no_plain_amount,
    ),
    Entry(
        "Whole numbers that are written as 1.0",
        "SkyPilot accepts them in some fields, but not in num_nodes.",
        "name: a\nresources: {priority: 1.0}\n",
        codes="wrong-type",
        check=lambda difference: (
            isinstance(difference.value, float) and difference.value.is_integer()
        ),
    ),
    Entry(
        "A group without a task",
        "SkyPilot starts an empty group.",
        "name: rl\nexecution: parallel\n---\n---\n",
        codes="not-a-group",
    ),
    Entry(
        "A field without a value counts as absent everywhere, and so does an empty map of accelerators",
        "SkyPilot accepts that in most places and fails in others.",
        "name: a\nenvs:\n",
        theirs=r"NoneType|None is not (of type|valid under)|Invalid task args: dict_keys\(\['(in|out)puts'|^IndexError",
    ),
    Entry(
        "Both infra and cloud, region or zone",
        "Each of them names Kubernetes, or is refused.",
        "name: a\nresources: {infra: kubernetes, cloud: kubernetes}\n",
        theirs="Cannot specify both `infra` and `cloud`",
    ),
    Entry(
        "Names with three dashes in a row",
        "DNS permits them.",
        "name: a---b\n",
        theirs="No triple dashes",
        check=lambda difference: "---" in difference.theirs,
    ),
    Entry(
        "A slash at the end of a local folder",
        "It names the same folder.",
        "name: a\nfile_mounts: {/code: ./code/}\n",
        theirs=r"cannot end with a slash Found: (\S+/) in file_mounts\.\S+: \1$",
    ),
    Entry(
        "Ports that do not exist",
        "Ports are ignored, because all ports are reachable inside the cluster.",
        "name: a\nresources: {ports: 9-8}\n",
        theirs="Invalid port",
    ),
    Entry(
        "`<<` as a value is text",
        "YAML merges only at a key of this name; SkyPilot's parser fails elsewhere.",
        "name: a\nenvs: {A: <<}\n",
        theirs=r"constructor for the tag 'tag:yaml\.org,2002:merge'",
    ),
    Entry(
        "Values of envs in paths may contain quotes and line ends",
        "SkyPilot inserts them into JSON without escaping, which breaks it.",
        "name: a\nenvs: {A: '\"'}\nfile_mounts: {'/code/${A}': ./code}\n",
        theirs="JSONDecodeError",
    ),
    Entry(
        "A task without cpus or memory requests none",
        "SkyPilot requests 2 CPUs and 2 GB, or 4 CPUs and 16 GB for each GPU.",
        "name: a\n",
        field="default cpus|default memory",
        check=lambda difference: difference.ours == [None],
    ),
    Entry(
        "Memory with a unit keeps its unit: 64Gi is 64Gi, 1TB is 1T",
        "SkyPilot converts units by powers of 1024 and then requests that many G: 64Gi is 64G, 1TB is 1024G.",
        "name: a\nresources: {memory: 64Gi}\n",
        field="memory",
        check=same_size_in_binary_units,
    ),
    Entry(
        "A part of the name of a GPU type",
        "SkyPilot takes the only type whose name contains it. The warning names the types with labels.",
        "name: a\nresources: {accelerators: rtx6000}\n",
        field="accelerator types",
        check=lambda difference: all(
            any(each in name for name in difference.theirs) for each in difference.ours
        ),
    ),
    Entry(
        "A delay of more than a year becomes a year",
        "Kubernetes stores such times in 32 bits.",
        "name: rl\nexecution: parallel\ntermination_delay: 60w\n---\nname: a\n",
        field="delay",
        check=lambda difference: difference.ours == YEAR < difference.theirs,
    ),
]
