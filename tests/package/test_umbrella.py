"""The charts as dependencies of another chart: each renders what it renders alone, and can be
switched off.
"""

import functools
import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.helpers.rendering import (
    CHARTS,
    REPO,
    Scenario,
    each_chart,
    each_helm,
    objects,
    output,
    parts,
    pod_templates,
    refusal,
    scenarios,
)

EXAMPLES = {
    each.chart: each
    for each in reversed(scenarios())
    if each.source.is_relative_to(REPO / "values-examples")
}


@pytest.fixture(scope="module")
def umbrella(tmp_path_factory) -> Path:
    return made(tmp_path_factory.mktemp("umbrella"), {chart: chart for chart in CHARTS})


def made(folder: Path, aliases: dict[str, str]) -> Path:
    """A chart with a dependency for each alias of a chart."""
    for chart in CHARTS:
        shutil.copytree(REPO / "charts" / chart, folder / "charts" / chart)
    dependencies = [
        {"name": chart, "version": "*", "alias": alias, "condition": f"{alias}.enabled"}
        for alias, chart in aliases.items()
    ]
    about = {"apiVersion": "v2", "name": "umbrella", "version": "1.0.0"}
    about |= {"dependencies": dependencies}
    (folder / "Chart.yaml").write_text(yaml.safe_dump(about))
    return folder


def values_of(scenario: Scenario) -> dict:
    image = {"repository": "registry.example.com/gpu-worker"}
    return yaml.safe_load(scenario.values) | {"image": image}


def rendered(helm: str, chart: str | Path, values: dict) -> dict[tuple[str, str], dict]:
    items = objects(output(helm, chart, values))
    return {(each["kind"], each["metadata"]["name"]): each for each in items}


@functools.cache
def alone(helm: str, chart: str) -> dict[tuple[str, str], dict]:
    return rendered(helm, chart, values_of(EXAMPLES[chart]))


@each_helm
def test_three_dependencies_render_what_each_renders_alone(umbrella, helm):
    together = rendered(
        helm, umbrella, {chart: {**values_of(EXAMPLES[chart]), "enabled": True} for chart in CHARTS}
    )
    expected = [item for chart in CHARTS for item in alone(helm, chart).items()]
    assert together == dict(expected)
    assert len(together) == len(expected)  # no two objects have one name


@each_helm
def test_each_chart_twice_shares_no_object_and_no_pod(tmp_path, helm):
    aliases = {f"{chart}-{side}": chart for chart in CHARTS for side in ("left", "right")}
    made(tmp_path, aliases)
    values = {alias: values_of(EXAMPLES[chart]) for alias, chart in aliases.items()}
    for alias in ("job-group-left", "job-group-right"):
        values[alias]["name"] = alias[-5:].strip("-")
    off = {alias: {"enabled": False} for alias in aliases}
    parts = {
        alias: rendered(helm, tmp_path, off | {alias: values[alias] | {"enabled": True}})
        for alias in aliases
    }
    together = rendered(helm, tmp_path, values)
    assert (
        len(together)
        == sum(map(len, parts.values()))
        == 2 * sum(len(alone(helm, chart)) for chart in CHARTS)
    )
    pods = {
        alias: [pod for each in found.values() for pod in pod_labels(each)]
        for alias, found in parts.items()
    }
    for alias, found in parts.items():
        selectors = [each for item in found.values() for each in own_selectors(item)]
        foreign = [pod for other in aliases if other != alias for pod in pods[other]]
        assert selectors and not [
            pod for one in selectors for pod in foreign if one.items() <= pod.items()
        ], alias


def test_openshift_gives_the_user_also_to_a_dependency(umbrella):
    """null in the values of a parent removes no default of a dependency."""
    world = {"global": {"compatibility": {"openshift": {"adaptSecurityContext": "force"}}}}
    values = {chart: {**values_of(EXAMPLES[chart]), "enabled": True} for chart in CHARTS} | world
    items = rendered("helm", umbrella, values).values()
    contexts = [each["securityContext"] for each in parts([*items]) if "containers" in each]
    assert len(contexts) > len(CHARTS)
    assert not [each for each in contexts if {"runAsUser", "runAsGroup", "fsGroup"} & set(each)]
    assert all(each["runAsNonRoot"] for each in contexts)


@each_chart
def test_a_chart_alone_is_never_disabled(chart):
    """Alone, nothing reads `enabled`: a false that has no effect would mislead."""
    assert "enabled" in refusal(chart, {}, "--set", "enabled=false")


def pod_labels(node: object) -> list[dict]:
    return [template["metadata"].get("labels", {}) for template in pod_templates(node)]


def own_selectors(item: dict) -> list[dict]:
    """Labels by which a Service, a NetworkPolicy or a workload finds its pods."""
    spec = item.get("spec", {})
    if item["kind"] == "Service":
        return [spec["selector"]]
    if item["kind"] == "NetworkPolicy":
        peers = [peer for rule in spec.get("ingress", []) for peer in rule.get("from", [])]
        return [
            each["podSelector"]["matchLabels"] for each in [spec, *peers] if "podSelector" in each
        ]
    return [spec["selector"]["matchLabels"]] if "matchLabels" in spec.get("selector", {}) else []


@each_chart
def test_names_of_templates_begin_with_the_chart(chart):
    """They are global in Helm: a sibling with the same name would take ours over."""
    text = "".join(
        path.read_text()
        for path in (REPO / "charts" / chart / "templates").rglob("*")
        if path.is_file()
    )
    names = re.findall(r'\bdefine "([^"]+)"', text)
    assert names
    assert [name for name in names if not name.startswith(f"{chart}.")] == []
