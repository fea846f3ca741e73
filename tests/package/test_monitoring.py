"""monitoring/: alerts and dashboard use what /metrics of the fleet page exports, and its pods are
the ones scraped.
"""

import json
import os
import re
from collections.abc import Iterator

import pytest
import yaml

from gpuworker.fleet.formats.prometheus import prometheus
from gpuworker.judgement.sources import Expected
from hack.deps import debian
from tests.helpers.fleet_reports import check, failing, merged, world_report
from tests.helpers.rendering import CHARTS, REPO, objects, render, rendered, scenarios
from tests.package.conftest import run
from tests.package.test_umbrella import pod_labels

RULES = yaml.safe_load((REPO / "monitoring/alerts.yaml").read_text())["spec"]
DASHBOARD = json.loads((REPO / "monitoring/dashboard.json").read_text())
MONITOR = yaml.safe_load((REPO / "monitoring/podmonitor.yaml").read_text())["spec"]
ADDED = {"namespace", "pod"}  # labels that Prometheus adds to what it scrapes from a pod
SELECTOR = re.compile(r"(gpu_accept_\w+)(?:\{([^}]*)\})?")


def alerts() -> list[dict]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def exported() -> dict[str, set[str]]:
    """Metric -> its labels, for all that the help texts announce."""
    world = world_report({"n1": [0]}, check("all_reduce"))
    text = prometheus(merged(failing("n1"), world, expected=Expected(2)))
    found: dict[str, set[str]] = {
        name: set() for name in re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)
    }
    for name, labels in re.findall(r"^(gpu_accept_\w+)\{(.*)\} ", text, re.MULTILINE):
        found[name] |= set(re.findall(r'(\w+)="', labels))
    return found


def used(expressions: list[str]) -> Iterator[tuple[str, set[str]]]:
    """Metrics in expressions, each with the labels of its selector."""
    for expression in expressions:
        for name, selector in SELECTOR.findall(expression):
            yield name, set(re.findall(r"(\w+)(?:=~|!~|!=|=)", selector))


@pytest.mark.parametrize("source", ["alerts", "dashboard"])
def test_only_exported_metrics_and_labels_are_used(source):
    has = exported()
    expressions = [rule["expr"] for rule in alerts()] if source == "alerts" else queries()
    found = list(used(expressions))
    assert len({name for name, _ in found}) > 4
    assert [name for name, _ in found if name not in has] == []
    assert [(name, labels) for name, labels in found if labels - ADDED - has[name]] == []


def test_texts_of_alerts_use_labels_that_remain():
    known = ADDED | {"node", "label_app_kubernetes_io_instance"}
    texts = [text for rule in alerts() for text in rule["annotations"].values()]
    assert {name for text in texts for name in re.findall(r"\$labels\.(\w+)", text)} <= known


def test_the_alerts_of_runs_find_their_pods():
    """By the labels that kube-state-metrics is told to export, which every pod of the charts has."""
    rules = [rule for rule in alerts() if rule["alert"].startswith("GpuRun")]
    (pattern,) = {
        re.search(r'label_app_kubernetes_io_name=~"([^"]+)"', rule["expr"])[1] for rule in rules
    }
    watched = set(pattern.split("|"))
    assert watched == set(CHARTS) - {"gpu-accept"}
    examples = {each.chart: each for each in scenarios() if each.chart in watched}
    for chart, example in examples.items():
        pods = pod_labels(objects(rendered("helm", example)))
        assert pods and all(labels["app.kubernetes.io/name"] == chart for labels in pods)
        assert all("app.kubernetes.io/instance" in labels for labels in pods)


def test_the_monitor_scrapes_the_fleet_page_and_no_other_pod():
    items = render("gpu-accept", {"nodes": 2})
    pods = [item["spec"]["template"] for item in items if "template" in item.get("spec", {})]
    wanted = MONITOR["selector"]["matchLabels"].items()
    (pod,) = [pod for pod in pods if wanted <= pod["metadata"]["labels"].items()]
    assert len(pods) > 1
    ports = {port["name"] for container in pod["spec"]["containers"] for port in container["ports"]}
    assert {endpoint["port"] for endpoint in MONITOR["podMetricsEndpoints"]} <= ports


@pytest.mark.skipif(
    not os.environ.get("PACKAGE_TESTS"), reason="run by `make test-package`, which gets promtool"
)
def test_promtool_accepts_rules_and_queries_and_the_alerts_fire(tmp_path):
    promtool, rules, cases = (
        debian.unpacked("prometheus"),
        tmp_path / "rules.yaml",
        tmp_path / "cases.yaml",
    )
    asked = [re.sub(r"\$\{?\w+\}?", "x", query) for query in queries()]
    records = [
        {"record": f"dashboard:{number}", "expr": query} for number, query in enumerate(asked)
    ]
    rules.write_text(
        yaml.safe_dump({"groups": [*RULES["groups"], {"name": "dashboard", "rules": records}]})
    )
    cases.write_text(
        (REPO / "tests/package/alerts_test.yaml").read_text().replace("RULES", str(rules))
    )
    assert f"{len(alerts()) + len(records)} rules found" in run(promtool, "check", "rules", rules)
    run(promtool, "test", "rules", cases)
