"""Properties of every accepted group: the chart accepts the values, and their bytes are always the same."""

import json
import random
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings

from jobgen.api import to_values
from jobgen.yaml_writer import dump
from tests.generator.strategies import group, groups
from tests.generator.test_jobgen_yaml import AMBIGUOUS, SCRIPTS
from tests.helpers.rendering import HELMS, template

pytestmark = pytest.mark.slow

REPO = Path(__file__).parents[2]
VALUES = jsonschema.Draft7Validator(json.loads((REPO / "charts/job-group/values.schema.json").read_text()))


@settings(max_examples=500, suppress_health_check=[HealthCheck.filter_too_much])
@given(groups())
def test_values_fit_the_charts_schema(text):
    result = to_values(text.encode())
    assert result.text is None or not [error.message for error in VALUES.iter_errors(yaml.safe_load(result.text))]
    assume(result.text)  # most are accepted, or hypothesis complains


@pytest.mark.parametrize("helm", HELMS)
def test_values_render(helm):
    rendered = 0
    for seed in range(20):
        text = to_values(group(random.Random(seed)).encode()).text
        if text is not None:
            done = template(helm, "job-group", text.encode())
            assert done.returncode == 0, done.stderr.decode()
            rendered += 1
    assert rendered >= 10


@pytest.mark.parametrize("helm", HELMS)
def test_helm_reads_the_same_text(helm, tmp_path):
    """Scripts and ambiguous words survive Helm's parser."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: echo, version: 1.0.0}")
    (tmp_path / "templates/values.yaml").write_text("values: {{ .Values.texts | toJson }}")
    texts = {
        f"t{index}": text for index, text in enumerate([*SCRIPTS, *AMBIGUOUS, "/a:b", "a:b", "a@b", "x: y", "# x", "é"])
    }
    texts |= {"numbers": [1, 2.5, 1e-5, True, None, {}, []], **{word: "key" for word in AMBIGUOUS if word}}
    command = [helm, "template", "echo", str(tmp_path), "-f", "-"]
    done = subprocess.run(command, input=dump({"texts": texts}, b"").encode(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert yaml.safe_load(done.stdout)["values"] == texts
