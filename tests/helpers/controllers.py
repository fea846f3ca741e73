"""Controllers as processes of this machine, for the cluster of KUBECONFIG, and their custom
resource definitions.
"""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.helpers.kube import run, true_conditions, wait_until


class Programs:
    """Processes that write their logs to a folder."""

    def __init__(self, folder: Path):
        self.folder, self.processes = folder, {}

    def launch(self, name: str, *command: str | Path, environment: dict[str, str]):
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment,
            )  # fmt: skip

    def all_run(self) -> bool:
        for name, process in self.processes.items():
            log = (self.folder / f"{name}.log").read_bytes().decode(errors="replace")
            assert process.poll() is None, f"{name} ended with {process.returncode}:\n{log[-3000:]}"
        return True

    def stop(self):
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def definitions(files: list[Path], product: str) -> Iterator[None]:
    """The custom resource definitions in these files, on a cluster that has none of them; removed
    at the end.
    """
    names = [yaml.safe_load(file.read_text())["metadata"]["name"] for file in files]
    assert names, f"no custom resource definitions of {product}"
    installed = run("kubectl", "get", "crds", "--output=name")
    assert not any(name in installed for name in names), (
        f"these tests need a cluster without {product}"
    )
    try:
        run(
            "kubectl",
            "apply",
            "--server-side",
            *(word for file in files for word in ("-f", str(file))),
        )
        wait_until(
            lambda: all(map(established, names)),
            f"the API server serves the kinds of {product}",
            60,
        )
        yield
    finally:
        run("kubectl", "delete", "crds", "--ignore-not-found", *names)


def established(definition: str) -> bool:
    found = json.loads(run("kubectl", "get", "crd", definition, "--output=json"))
    return "Established" in true_conditions(found)
