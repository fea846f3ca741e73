"""Packages of the charts, a registry for them, and keys to sign them."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.paths import BIN
from tests.helpers.processes import ran, until
from tests.helpers.rendering import CHARTS, HELMS, REPO

SIGNER = "Charts under test <charts@example.com>"
CONFIGURATION = """\
version: 0.1
storage: {filesystem: {rootdir: ROOT}}
http: {addr: "127.0.0.1:0"}
"""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = ran(*command, cwd=cwd, timeout=120)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="session", params=HELMS if os.environ.get("PACKAGE_TESTS") else HELMS[:1])
def packages(request, tmp_path_factory) -> dict[str, Path]:
    """The package of each chart, made by each release of Helm; by the first one only if not all is
    tested.
    """
    folder = tmp_path_factory.mktemp(f"packages-{request.param}")
    charts = [REPO / "charts" / chart for chart in CHARTS]
    run(request.param, "package", *charts, "--destination", folder)
    return {chart: next(folder.glob(f"{chart}-[0-9]*.tgz")) for chart in CHARTS}


@pytest.fixture(scope="session")
def registry(tmp_path_factory) -> Iterator[str]:
    """Address of an empty OCI registry on a free port of this machine."""
    if not os.environ.get("PACKAGE_TESTS"):
        pytest.skip("run by `make test-package`, which builds the registry")
    folder = tmp_path_factory.mktemp("registry")
    (folder / "config.yaml").write_text(CONFIGURATION.replace("ROOT", str(folder / "data")))
    log = folder / "log"
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
    with open(log, "wb") as output:
        command = [BIN / "registry", "serve", folder / "config.yaml"]
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        yield address(server, log)
    finally:
        server.kill()
        server.wait()


def address(server: subprocess.Popen, log: Path) -> str:
    """Where the registry listens, as soon as its log says so."""

    def listens():
        assert server.poll() is None, log.read_text(errors="replace")
        return re.search(r"listening on (127\.0\.0\.1:\d+)", log.read_text(errors="replace"))

    return until(listens, "the registry listens")[1]


@pytest.fixture(scope="session")
def keys(tmp_path_factory) -> tuple[Path, Path]:
    """Keyrings with one new key: the secret one, which signs, and the public one, which verifies."""
    home = tmp_path_factory.mktemp("gpg")
    quiet = ["--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase"]
    gpg = ("gpg", "--homedir", home, *quiet, "")
    run(*gpg, "--quick-generate-key", SIGNER, "rsa2048", "sign", "1d")
    secret, public = home / "secret.gpg", home / "public.gpg"
    run(*gpg, "--output", secret, "--export-secret-keys")
    run(*gpg, "--output", public, "--export")
    run("gpgconf", "--homedir", home, "--kill", "gpg-agent")
    return secret, public
