"""Every scenario renders, with Helm 3 and Helm 4 to the same objects, and each time to the same bytes."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.helpers.rendering import CHARTS, HELMS, REPO, Scenario, objects, rendered, scenarios, template

pytestmark = pytest.mark.slow

SCENARIOS = scenarios()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_helm_3_and_helm_4_render_the_same_objects(scenario: Scenario) -> None:
    helm, helm3 = (objects(rendered(helm, scenario)) for helm in HELMS)
    assert by_name(helm) == by_name(helm3)


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_rendering_twice_gives_the_same_bytes(scenario: Scenario, helm: str) -> None:
    assert template(helm, scenario.chart, scenario.values).stdout.decode() == rendered(helm, scenario)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_every_object_says_whose_it_is(scenario: Scenario) -> None:
    values = yaml.safe_load(scenario.values)
    wanted = {"app.kubernetes.io/name": scenario.chart, "app.kubernetes.io/instance": "test"}
    if scenario.chart == "job-group":
        wanted["job-group/name"] = values["name"]
    users = values.get("extraObjects", [])
    for item in (item for item in objects(rendered("helm", scenario)) if item not in users):
        assert wanted.items() <= item["metadata"]["labels"].items(), item["metadata"]
        assert item["metadata"]["name"].startswith(wanted.get("job-group/name", "test"))


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_whole_numbers_stay_whole(scenario: Scenario, helm: str) -> None:
    """Helm keeps numbers as floats, and would print a million as 1e+06."""
    assert re.findall(r"^.*[:-] [0-9.]+e[+][0-9]+$", rendered(helm, scenario), re.MULTILINE) == []


def test_every_chart_and_every_kind_of_source_has_a_scenario() -> None:
    assert {scenario.chart for scenario in SCENARIOS} == set(CHARTS)
    sources = {scenario.source.relative_to(REPO).parts[0] for scenario in SCENARIOS}
    assert sources == {"charts", "values-examples", "tests"}


def by_name(items: list[dict]) -> dict[tuple[str, str], dict]:
    named = {(item["kind"], item["metadata"]["name"]): item for item in items}
    assert len(named) == len(items), "two objects with one name"
    return named
