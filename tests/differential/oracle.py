"""SkyPilot's reading of group files: a JSON list of texts on stdin, a JSON list of answers on
stdout.

It runs in SkyPilot's virtual environment, in a scratch folder with the files that the groups
mention.
"""

from __future__ import annotations

import json
import logging
import math
import socket
import sys
from pathlib import Path

FILE = Path("group.yaml")


def no_network(*_arguments, **_options):
    raise OSError("the network was used")


def load(dag_utils, text: str) -> dict:
    """Return the group's fields, or the error with its stage: "detect", "load" or "submit"."""
    FILE.write_text(text, encoding="utf-8", newline="", errors="surrogatepass")
    stage = "detect"
    try:
        if not dag_utils.is_job_group_yaml(str(FILE)):
            return {"accepted": False, "stage": stage, "error": "not a job group"}
        stage = "load"
        group = dag_utils.load_job_group_from_yaml(str(FILE))
        stage = "submit"
        for task in group.tasks:
            check_at_submission(task)
    except RecursionError:
        return {"accepted": False, "stage": stage, "error": "RecursionError"}
    except Exception as error:
        return {"accepted": False, "stage": stage, "error": f"{type(error).__name__}: {error}"}
    delay = group.termination_delay
    return {
        "accepted": True,
        "name": group.name,
        "primaries": group.primary_tasks,
        "delays": delay if isinstance(delay, dict) else {"default": delay or "0"},
        "inter_connection": group.inter_connection,
        "tasks": [describe(task) for task in group.tasks],
    }


def check_at_submission(task):
    """Run the checks of `sky jobs launch` that need neither a server nor a cluster."""
    task.validate_name()
    task.validate_run()
    task.validate_job()
    task.expand_and_validate_workdir()
    task.expand_and_validate_file_mounts()


def describe(task) -> dict:
    return {
        "name": task.name,
        "num_nodes": task.num_nodes,
        "envs": task.envs,
        "secrets": sorted(
            [*task.secrets, *(reference.name for reference in task._managed_secret_refs)]
        ),
        "alternatives": [alternative(each) for each in task.resources],
    }


def alternative(resources) -> dict:
    """Return one of the alternative resources."""
    infra = resources.infra
    return {
        "cloud": infra.cloud and infra.cloud.lower(),
        "context": infra.region,
        # The public fields look names up in a catalog of the clouds.
        "accelerators": {
            canonical(name): count for name, count in (resources._accelerators or {}).items()
        },
        "cpus": resources._cpus,
        "memory": resources._memory,
        "image": image(resources),
        **default_sizes(resources),
        "disk_size": resources._disk_size,
        "labels": resources.labels or {},
        "priority_class": resources.priority_class,
        "recovery": {
            key: value for key, value in (resources.job_recovery or {}).items() if key != "strategy"
        },
    }


def default_sizes(resources) -> dict:
    """Return the CPUs and GB that a pod requests if the task names none. A part of a GPU is a whole
    one in a pod.
    """
    from sky.clouds import Kubernetes
    from sky.provision.kubernetes.utils import KubernetesInstanceType

    try:
        name = Kubernetes.get_default_instance_type(cpus=resources._cpus, memory=resources._memory)
        found = KubernetesInstanceType.from_instance_type(name)
        gpus = math.ceil(sum((resources._accelerators or {}).values()))
    except (
        ValueError,
        OverflowError,
    ):  # SkyPilot accepts memory: inf and L4: .inf, and fails with them later
        return {"default_cpus": 0, "default_memory": 0}
    cpus, memory = found.cpus, found.memory
    if gpus:
        cpus = cpus if resources._cpus else Kubernetes._DEFAULT_NUM_VCPUS_WITH_GPU * gpus
        memory = (
            memory if resources._memory else cpus * Kubernetes._DEFAULT_MEMORY_CPU_RATIO_WITH_GPU
        )
    return {"default_cpus": cpus, "default_memory": memory}


def image(resources) -> str | None:
    """Return the image with the server of a login. On Kubernetes, docker: before the image is
    optional.
    """
    found = resources.extract_docker_image() or next(
        iter((resources.image_id or {}).values()), None
    )
    login = resources.docker_login_config
    return login.format_image(found) if found and login else found


def canonical(name: str) -> str:
    """Return SkyPilot's spelling of a GPU type."""
    from sky.utils import accelerator_registry

    try:
        return accelerator_registry.canonicalize_accelerator_name(name, "Kubernetes")
    except ValueError:  # ambiguous, which SkyPilot reports when it looks for nodes
        return name


def use_names_without_catalog():
    """Replace the catalog of the clouds, which is on the network, by the names that SkyPilot knows
    without it.
    """
    import pandas
    from sky import catalog
    from sky.utils import accelerator_registry, gpu_names

    names = gpu_names.CANONICAL_GPU_NAMES
    accelerator_registry._accelerator_df = pandas.DataFrame(
        {"AcceleratorName": names, "Clouds": ["Kubernetes"] * len(names)}
    )
    catalog.list_accelerators = lambda **_options: {}


def main():
    answers, sys.stdout = sys.stdout, sys.stderr
    socket.socket.connect = socket.getaddrinfo = no_network
    logging.disable()
    from sky.utils import dag_utils

    use_names_without_catalog()
    json.dump([load(dag_utils, text) for text in json.load(sys.stdin)], answers)


if __name__ == "__main__":
    main()
