"""Make everything that is derived from a source in this repository: python3 -m hack.gen.generate [--check].

schemas/charts/NAME.yaml   -> charts/NAME/values.schema.json, with the definitions of common.yaml and kubernetes.json
    that it uses, and the names of checks and faults
schemas/report.yaml, fleet.yaml -> schemas/report.schema.json, fleet.schema.json
worker/…/runtime/gpu_specs.yaml -> the same as JSON, for images without a YAML parser
worker/…/accept/ (checks, limits) -> docs/accept-checks.md, charts/gpu-accept/templates/_names.tpl
worker/…/launch/failure_causes.py -> the table of causes in docs/ddp-run.md
schemas/jobgroup/*.yaml    -> generator/src/jobgen/schemas/document.json, docs/jobgen-fields.md
the table of differences   -> the last part of docs/jobgen-fields.md (tests/differential/table.py)
jobgen's table of codes    -> docs/jobgen-errors.md, with jobgen's output for each example
charts/job-group/files/gpu-types.yaml -> generator/src/jobgen/accelerators.py
worker/…/runtime/contract.py -> charts/NAME/templates/_contract.tpl, generator/src/jobgen/contract.py,
    docs/environment.md, the version in charts/NAME/Chart.yaml and the exit codes in charts/job-group/files/entry.sh
gitops/argocd/health/GROUP/KIND/health.lua -> gitops/argocd/argocd-cm.yaml
first sentences of the source files -> docs/files.md
charts/NAME/values.yaml    -> charts/NAME/templates/_keys.tpl and _defaults.tpl; with
    Chart.yaml and the schema charts/NAME/README.md
charts/shared/*            -> charts/NAME/templates, with NAME as the templates' prefix
worker/start.py, worker/src -> charts/NAME/files/programs.pyz, the chart's programs

--check writes nothing and fails when something is out of date.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from hack.gen import (
    accept_docs,
    accept_names,
    argocd_cm,
    chart_readme,
    contract_files,
    entry_exit_codes,
    environment_docs,
    failure_docs,
    file_index,
    jobgroup_docs,
    jobgroup_schema,
    programs,
    value_keys,
)
from hack.paths import REPO, ToolError, main

CHARTS = ("ddp-run", "gpu-accept", "job-group")
SHARED_BY = {
    "_fullname.tpl": ("ddp-run", "gpu-accept"),
    "_helperimage.tpl": ("gpu-accept", "job-group"),
    "_nodetest.tpl": ("ddp-run", "job-group"),
    "policy.yaml": ("ddp-run", "gpu-accept"),
}  # other shared templates: all charts
FIGURES = REPO / "worker/src/gpuworker/runtime/gpu_specs.yaml"


def outputs() -> Iterator[tuple[Path, str | bytes]]:
    """Every generated file with its content."""
    shared = yaml.safe_load((REPO / "schemas/charts/common.yaml").read_text())
    shared |= (
        json.loads((REPO / "schemas/charts/kubernetes.json").read_text())
        | accept_names.definitions()
    )
    for chart in CHARTS:
        schema = yaml.safe_load(
            contract_files.filled((REPO / f"schemas/charts/{chart}.yaml").read_text())
        )
        place(schema, shared["elsewhere"] | schema.pop("elsewhere"))
        if task := schema.get("definitions", {}).get("task"):
            place(task, shared["elsewhere"] | schema.pop("elsewhereInATask"))
        yield (
            REPO / f"charts/{chart}/values.schema.json",
            chart_schema(with_definitions(schema, shared)),
        )
        yield (
            REPO / f"charts/{chart}/templates/_keys.tpl",
            value_keys.helm(chart, with_definitions(schema, shared)),
        )
        yield REPO / f"charts/{chart}/Chart.yaml", contract_files.chart(chart)
        yield (
            REPO / f"charts/{chart}/README.md",
            chart_readme.page(chart, with_definitions(schema, shared)),
        )
        yield REPO / f"charts/{chart}/templates/_contract.tpl", contract_files.helm(chart)
        yield from programs.files(chart)
        yield (
            REPO / f"charts/{chart}/templates/_defaults.tpl",
            value_keys.defaults(REPO / "charts" / chart),
        )
        for path in sorted((REPO / "charts/shared").iterdir()):
            if chart in SHARED_BY.get(path.name, CHARTS):
                text = path.read_text().replace('"CHART.', f'"{chart}.')
                yield REPO / f"charts/{chart}/templates/{path.name}", text
    yield REPO / "charts/gpu-accept/templates/_names.tpl", accept_names.helm()
    for name in ("report", "fleet"):
        yield (
            REPO / f"schemas/{name}.schema.json",
            to_json(yaml.safe_load((REPO / f"schemas/{name}.yaml").read_text())),
        )
    yield FIGURES.with_suffix(".json"), to_json(yaml.safe_load(FIGURES.read_text()))
    text = json.dumps(jobgroup_schema.document(), ensure_ascii=False, separators=(",", ":"))
    yield REPO / "generator/src/jobgen/schemas/document.json", f"{text}\n"
    yield REPO / "generator/src/jobgen/accelerators.py", jobgroup_schema.accelerators()
    yield REPO / "generator/src/jobgen/contract.py", contract_files.jobgen()
    script = REPO / "charts/job-group/files/entry.sh"
    yield script, entry_exit_codes.updated(script.read_text())
    yield REPO / "docs/environment.md", environment_docs.page()
    yield REPO / "docs/files.md", file_index.page()
    yield REPO / "docs/accept-checks.md", accept_docs.page()
    launch = REPO / "docs/ddp-run.md"
    yield launch, failure_docs.updated(launch.read_text())
    yield REPO / "docs/jobgen-fields.md", jobgroup_docs.fields()
    yield REPO / "docs/jobgen-errors.md", jobgroup_docs.errors()
    yield REPO / "gitops/argocd/argocd-cm.yaml", argocd_cm.config_map()


def place(schema: dict, elsewhere: dict[str, str]) -> None:
    """Let the error about a usual name that the schema does not have say where the value belongs."""
    for name, where in elsewhere.items():
        field = f"{where}.{name}" if where.endswith(("spec", "[0]", "TASK")) else where
        schema["properties"].setdefault(name, {"const": f"did you mean {field}?"})


def with_definitions(schema: dict, shared: dict) -> dict:
    """Add the shared definitions that the schema uses, and those that they use."""
    found = dict(schema.get("definitions", {}))
    while missing := sorted(
        set(re.findall(r"#/definitions/(\w+)", json.dumps([schema, found]))) - set(found)
    ):
        found |= {name: shared[name] for name in missing}
    return {**schema, "definitions": found}


def to_json(data: dict | list) -> str:
    return json.dumps(data, indent=2) + "\n"


def chart_schema(schema: dict) -> str:
    """JSON with each definition of Kubernetes on one line."""
    kubernetes = {name: each for name, each in schema["definitions"].items() if name[0].isupper()}
    text = to_json(
        {**schema, "definitions": {**schema["definitions"], **dict.fromkeys(kubernetes)}}
    )
    for name, definition in kubernetes.items():
        text = text.replace(f'    "{name}": null', f'    "{name}": {json.dumps(definition)}')
    return text


def is_current(path: Path, content: str | bytes) -> bool:
    if isinstance(content, bytes):
        return programs.unpacked(path.read_bytes()) == programs.unpacked(content)
    return path.read_text() == content


def entry() -> None:
    check, stale = "--check" in sys.argv[1:], []
    for path, content in outputs():
        if path.exists() and is_current(path, content):
            continue
        stale.append(str(path.relative_to(REPO)))
        if not check:  # written before the next one is made, which may read it
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    names = ", ".join(stale)
    if check and stale:
        raise ToolError(f"out of date: {names}; run `make generate` and commit the result")
    print(
        f"written: {names}" if stale else "nothing to do: all generated files are up to date",
        flush=True,
    )
    if not check and str(FIGURES.with_suffix(".json").relative_to(REPO)) in stale:
        subprocess.run(
            [sys.executable, "-m", "hack.gen.generate"], check=True
        )  # modules here read the old figures


if __name__ == "__main__":
    main(entry)
