"""A NetworkPolicy where it applies. What it admits, and which container has the key, is in the charts' own tests."""

from __future__ import annotations

import pytest

from tests.helpers.rendering import CHARTS, LEAST, refusal, render, task

ON_NODE = {"podTemplate": {"spec": {"hostNetwork": True}}}
RULES = {"restrictEgress": True, "ingress": [{"ports": [{"port": 80}]}]}


@pytest.mark.parametrize("chart", CHARTS)
@pytest.mark.parametrize("off", ["host network", "switched off"])
def test_there_is_no_policy_where_it_would_not_apply_and_rules_are_refused(chart: str, off: str) -> None:
    values, disabled = LEAST[chart], {}
    if off == "switched off":
        disabled = {"enabled": False}
    else:
        values = task(**ON_NODE) if chart == "job-group" else ON_NODE
    kinds = [item["kind"] for item in render(chart, values | {"networkPolicy": disabled})]
    assert kinds and "NetworkPolicy" not in kinds
    for name, rule in RULES.items():
        assert f"networkPolicy.{name}: " in refusal(chart, values | {"networkPolicy": {**disabled, name: rule}})
