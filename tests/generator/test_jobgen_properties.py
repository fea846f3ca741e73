"""Accepted groups: the chart renders their values, in which Helm reads every text as it was
written.
"""

import subprocess

import pytest
import yaml

from jobgen.api import to_values
from jobgen.yaml_writer import dump
from tests.differential import groups
from tests.fuzz.check import options
from tests.generator.test_jobgen_yaml import AMBIGUOUS, SCRIPTS
from tests.helpers.rendering import each_helm, output

pytestmark = pytest.mark.slow


@each_helm
def test_values_render(helm):
    """That they fit the chart's schema is proved for every group of tests/fuzz."""
    results = (
        to_values(groups.make(f"render-{number}").encode(), options()) for number in range(60)
    )
    accepted = [result.text for result in results if result.text is not None]
    assert len(accepted) >= 20
    for text in accepted[:20]:
        assert output(helm, "job-group", text.encode())


@each_helm
def test_helm_reads_the_same_text(helm, tmp_path):
    """Scripts and ambiguous words survive Helm's parser."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: echo, version: 1.0.0}")
    (tmp_path / "templates/values.yaml").write_text("values: {{ .Values.texts | toJson }}")
    texts = {
        f"t{index}": text
        for index, text in enumerate(
            [*SCRIPTS, *AMBIGUOUS, "/a:b", "a:b", "a@b", "x: y", "# x", "é"]
        )
    }
    texts |= {
        "numbers": [1, 2.5, 1e-5, True, None, {}, []],
        **{word: "key" for word in AMBIGUOUS if word},
    }
    command = [helm, "template", "echo", str(tmp_path), "-f", "-"]
    done = subprocess.run(
        command, input=dump({"texts": texts}, b"").encode(), capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()
    assert yaml.safe_load(done.stdout)["values"] == texts
