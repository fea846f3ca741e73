"""The charts as packages: what a user installs from a package or a registry is what is in this
repository.

`make test-package` runs all of it, with an OCI registry; without PACKAGE_TESTS one example of each
chart is rendered.
"""

import os
import tarfile
from pathlib import Path

import pytest

from hack.paths import BIN
from tests.helpers.rendering import (
    CHARTS,
    HELMS,
    REPO,
    Scenario,
    each_helm,
    output,
    rendered,
    scenarios,
)
from tests.package.conftest import SIGNER, run

EXAMPLES = [each for each in scenarios() if each.source.is_relative_to(REPO / "values-examples")]
FIRST = {each.chart: each for each in reversed(EXAMPLES)}
TRIED = EXAMPLES if os.environ.get("PACKAGE_TESTS") else list(FIRST.values())


def assert_same(helm: str, package: Path, scenario: Scenario):
    """The package renders what the folder renders, byte for byte."""
    assert output(helm, package, scenario.values) == rendered(helm, scenario)


def test_every_chart_has_an_example():
    assert set(FIRST) == set(CHARTS)


@pytest.mark.parametrize("scenario", TRIED, ids=str)
@each_helm
def test_a_package_renders_as_its_folder(packages, helm, scenario):
    assert_same(helm, packages[scenario.chart], scenario)


def test_a_package_has_what_its_user_reads_and_no_tests(packages):
    for chart, package in packages.items():
        with tarfile.open(package) as archive:
            names = {name.removeprefix(f"{chart}/") for name in archive.getnames()}
        assert {"README.md", "values.yaml", "values.schema.json"} <= names
        assert [name for name in names if name.startswith(("ci/", "tests/"))] == []


@each_helm
def test_a_pulled_chart_is_what_was_pushed(packages, helm, registry, tmp_path):
    """Rendered from the pulled file, so without the registry: as on a machine without a network."""
    for chart, package in packages.items():
        version = package.stem.removeprefix(f"{chart}-")
        repository = f"oci://{registry}/{package.parent.name}/{helm}"
        run(helm, "push", package, repository, "--plain-http")
        wanted = (f"{repository}/{chart}", "--version", version, "--plain-http")
        run(helm, "pull", *wanted, "--destination", tmp_path)
        assert (tmp_path / package.name).read_bytes() == package.read_bytes()
        shown = run(helm, "show", "readme", *wanted)
        assert "| value | type | default | meaning |" in shown
    for scenario in EXAMPLES:
        assert_same(helm, tmp_path / packages[scenario.chart].name, scenario)


@pytest.mark.parametrize("verifier", HELMS)
@each_helm
def test_a_signature_admits_the_package_and_nothing_else(helm, verifier, registry, keys, tmp_path):
    secret, public = keys
    run(helm, "package", REPO / "charts/ddp-run", "--destination", tmp_path, "--sign", "--key", SIGNER,
        "--keyring", secret)  # fmt: skip
    (package,) = tmp_path.glob("*.tgz")
    repository = f"oci://{registry}/signed-{helm}-{verifier}"
    run(helm, "push", package, repository, "--plain-http")  # with the .prov file beside it
    pulled = tmp_path / "pulled"
    version = package.stem.removeprefix("ddp-run-")
    pull = (verifier, "pull", f"{repository}/ddp-run", "--version", version, "--plain-http")
    pulled.mkdir()
    run(*pull, "--destination", pulled, "--verify", "--keyring", public)
    verify = (verifier, "verify", pulled / package.name, "--keyring", public)
    assert SIGNER in run(*verify)
    with open(pulled / package.name, "ab") as damaged:
        damaged.write(b"\0")
    with pytest.raises(AssertionError, match="sha256"):
        run(*verify)


def test_cosign_admits_what_was_signed_only(packages, registry, tmp_path):
    """With a pair of keys and without a transparency log, which would need the internet."""
    cosign = ("env", "COSIGN_PASSWORD=", BIN / "cosign")
    offline = ("--allow-http-registry", "--allow-insecure-registry")
    for name in ("ours", "theirs"):
        run(*cosign, "generate-key-pair", "--output-key-prefix", tmp_path / name)
    package = packages["job-group"]
    repository = f"{registry}/cosign-{package.parent.name}"
    run("helm", "push", package, f"oci://{repository}", "--plain-http")
    reference = f"{repository}/job-group:{package.stem.removeprefix('job-group-')}"
    verify = (*cosign, "verify", "--insecure-ignore-tlog", *offline)
    with pytest.raises(AssertionError, match="signatures"):
        run(*verify, "--key", tmp_path / "ours.pub", reference)
    sign = (*cosign, "sign", "--yes", "--tlog-upload=false", "--use-signing-config=false")
    run(*sign, *offline, "--key", tmp_path / "ours.key", reference)
    assert "job-group" in run(*verify, "--key", tmp_path / "ours.pub", reference)
    with pytest.raises(AssertionError, match="signature"):
        run(*verify, "--key", tmp_path / "theirs.pub", reference)
