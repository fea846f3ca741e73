"""Debian packages that the local cluster and the image build use."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hack.paths import CACHE, built_once, run, step

# Program whose presence proves the installation -> package.
INSTALLED = {
    "buildah": "buildah",
    "conntrack": "conntrack",
    "ethtool": "ethtool",
    "ip": "iproute2",
    "ipset": "ipset",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    "openssl": "openssl",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
# Unpacked into the cache, not installed: as packages they would start services on the host.
UNPACKED = {
    "containerd": "usr/bin/containerd",
    "etcd-server": "usr/bin/etcd",
    "busybox-static": "bin/busybox",
}
ON_DEMAND = {"prometheus": "usr/bin/promtool"}  # unpacked likewise, by the test that uses it


@contextlib.contextmanager
def _apt(packages: str) -> Iterator[dict[str, str]]:
    """The environment of apt-get, with fresh lists. One user at a time: apt itself fails where
    another one runs.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "debian.lock").open("w") as lock, step(f"Debian packages: {packages}"):
        fcntl.flock(lock, fcntl.LOCK_EX)
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run("apt-get", "update", "-qq", env=quiet)
        yield quiet


def install() -> None:
    missing = [package for program, package in INSTALLED.items() if not shutil.which(program)]
    absent = [package for package in UNPACKED if not (_folder(package)).exists()]
    if not missing and not absent:
        return
    with _apt(" ".join(missing + absent)) as quiet:
        if missing:
            run("apt-get", "install", "-qq", "-y", "--no-install-recommends", *missing, env=quiet)
        for package in absent:
            _unpack(package)


def browser() -> None:
    """Install Chromium, which the tests of pages use."""
    if not shutil.which("chromium"):
        with _apt("chromium") as quiet:
            run("apt-get", "install", "-qq", "-y", "--no-install-recommends", "chromium", env=quiet)


def unpacked(package: str) -> Path:
    """Path of the program of a package in ON_DEMAND."""
    if not _folder(package).exists():
        with _apt(package):
            _unpack(package)
    return program(package)


def _unpack(package: str) -> None:
    with built_once(_folder(package)) as scratch:
        scratch.mkdir(parents=True)
        run("apt-get", "download", "-qq", package, cwd=scratch)
        run("dpkg-deb", "-x", next(scratch.glob("*.deb")), scratch)


def program(package: str, name: str = "") -> Path:
    """Path of a program in an unpacked package; by default the one in UNPACKED or ON_DEMAND."""
    path = _folder(package) / (UNPACKED | ON_DEMAND)[package]
    if not path.exists():  # newer releases of Debian keep every program below usr
        path = _folder(package) / "usr" / (UNPACKED | ON_DEMAND)[package]
    return path.with_name(name) if name else path


def _folder(package: str) -> Path:
    return CACHE / "debian" / package
