"""Packages of the worker image and of the test environment."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import Requirement

REPO = Path(__file__).resolve().parents[2]


def lines(path: str) -> list[str]:
    return [line for line in (REPO / path).read_text().splitlines() if line and not line.startswith("#")]


def test_the_lock_has_versions_that_the_worker_image_allows():
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (REPO / "worker/requirements.txt").read_text(), re.MULTILINE))
    for line in lines("worker/requirements.in"):
        required = Requirement(line)
        assert required.specifier.contains(pinned[required.name]), (line, pinned[required.name])


def test_the_worker_image_has_the_packages_that_its_programs_import():
    """All but the clients of trackers and the formats of data, which users add."""
    source = "".join(path.read_text() for path in (REPO / "worker/src/gpuworker/train").rglob("*.py"))
    imported = set(re.findall(r"^ *(?:import|from) (accelerate|peft|transformers|safetensors)\b", source, re.MULTILINE))
    assert {"peft", "transformers"} <= imported <= {Requirement(line).name for line in lines("worker/requirements.in")}


def test_packages_of_the_worker_image_are_listed_only_in_its_requirements():
    listed = lines("requirements/train.in")
    assert "-r ../worker/requirements.in" in listed
    image = {Requirement(line).name for line in lines("worker/requirements.in")}
    assert image.isdisjoint(Requirement(line).name for line in listed if not line.startswith("-"))
