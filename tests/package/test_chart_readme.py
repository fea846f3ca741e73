"""A chart's README and Chart.yaml, which a registry shows: every value is listed, with what the
chart really has.
"""

from collections.abc import Iterator

import yaml

from hack.gen import chart_readme
from tests.helpers.rendering import REPO, defaults, each_chart


def leaves(values: dict, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


@each_chart
def test_every_value_of_a_chart_is_documented(chart):
    text = (REPO / f"charts/{chart}/values.yaml").read_text()
    paths = {path for path, _ in chart_readme.documented(text)}
    assert [
        leaf
        for leaf in leaves(yaml.safe_load(text))
        if not any(leaf[: len(path)] == path for path in paths)
    ] == []


def test_the_listed_images_are_those_of_the_chart():
    about = yaml.safe_load((REPO / "charts/ddp-run/Chart.yaml").read_text())
    (image,) = yaml.safe_load(about["annotations"]["artifacthub.io/images"])
    assert image["image"] == defaults("ddp-run")["rendezvous"]["etcd"]["image"]
