"""Container images without a registry: built with buildah, kept as archives in the cache."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from hack.deps import debian
from hack.paths import CACHE, REPO, built_once, remove, run, step, unmount_below

WORKER_IMAGE = "localhost/gpu-worker"
SHELL_IMAGE = "localhost/busybox:1"
ETCD_IMAGE = "localhost/etcd:1"
PYTHON_IMAGE = "localhost/python:1"
STORE = (
    "--root",
    CACHE / "buildah" / "root",
    "--runroot",
    CACHE / "buildah" / "run",
    "--storage-driver",
    "overlay",
)

# The CPU base image: Debian's PyTorch and common command-line programs.
BASE_SUITE = "trixie"
BASE_PYTHON = "3.13"
# Python packages of the training that Debian lacks.
BASE_LIBRARIES = REPO / "worker" / "requirements.txt"
BASE_PACKAGES = ["python3-torch", "tini", "bash", "ca-certificates", "curl", "git"]
BASE_PACKAGES += ["iproute2", "iputils-ping", "procps"]
BASE_PACKAGES += ["python3-etcd"]  # for torchrun's etcd rendezvous
# Debian builds PyTorch without libuv, and PyTorch 2.6 requires libuv by default, so no rendezvous
# would start. This patch turns libuv off at every place. Images for GPUs have libuv and do not need
# the patch.
NO_LIBUV = (
    "cd $1/usr/lib/python3/dist-packages/torch/distributed && "
    "sed -i 's/multi_tenant=True/multi_tenant=True, use_libuv=False/' elastic/rendezvous/*.py && "
    "sed -i 's/is_master=False,/& use_libuv=use_libuv,/' rendezvous.py && "
    "grep -q 'use_libuv=False' elastic/rendezvous/c10d_rendezvous_backend.py && "
    "grep -q 'is_master=False, use_libuv=use_libuv' rendezvous.py"
)
BASE = (BASE_SUITE, *BASE_PACKAGES, NO_LIBUV, BASE_PYTHON, BASE_LIBRARIES)  # parts of the base


def buildah(*args: str | Path) -> str:
    return run("buildah", *STORE, *args).strip()


def from_binary(name: str, binary: Path) -> Path:
    """An image that holds one static binary: archive with the tag localhost/<name>:1."""
    archive = CACHE / "images" / f"{name}-{digest(binary, Path(__file__))}.tar"
    if not archive.exists():
        with step(f"image of {name}"), built_once(archive) as scratch:
            container = buildah("from", "scratch")
            buildah(
                "copy", container, binary, "/manager"
            )  # the command in the charts of JobSet and Kueue
            buildah("config", "--entrypoint", '["/manager"]', "--user", "65532:65532", container)
            buildah("commit", "--rm", container, f"docker-archive:{scratch}:localhost/{name}:1")
    return archive


def shell() -> Path:
    """Archive of SHELL_IMAGE: busybox only, for tests that need an image without bash and Python."""
    binary = debian.program("busybox-static")
    archive = CACHE / "images" / f"busybox-{digest(binary, Path(__file__))}.tar"
    if not archive.exists():
        with step("image of busybox"), built_once(archive) as scratch:
            container = buildah("from", "scratch")
            buildah("copy", container, binary, "/bin/busybox")
            buildah(
                "run", "--isolation", "chroot", container, "/bin/busybox", "--install", "-s", "/bin"
            )
            buildah("commit", "--rm", container, f"docker-archive:{scratch}:{SHELL_IMAGE}")
    return archive


def etcd() -> Path:
    """Archive of ETCD_IMAGE: Debian's etcd with the v2 API that torchrun needs, and the library
    that it uses.
    """
    binary = debian.program("etcd-server")
    loader, library = Path("/lib64/ld-linux-x86-64.so.2"), Path("/lib/x86_64-linux-gnu/libc.so.6")
    archive = CACHE / "images" / f"etcd-{digest(binary, loader, library, Path(__file__))}.tar"
    if not archive.exists():
        with step("image of etcd"), built_once(archive) as scratch:
            container = buildah("from", "scratch")
            buildah("copy", container, binary, "/bin/etcd")
            for file in (loader, library):
                buildah("copy", container, file.resolve(), file)
            buildah("config", "--env", "PATH=/bin", container)
            buildah("commit", "--rm", container, f"docker-archive:{scratch}:{ETCD_IMAGE}")
    return archive


def base() -> str:
    """The CPU base image, in the image store: Debian with its PyTorch, and transformers."""
    tag = f"localhost/gpu-worker-base:{digest(*BASE)}"
    if tag not in buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        folder = CACHE / "images" / "base"  # a killed build may have left it, with mounts
        unmount_below(folder)
        remove(folder)
        folder.mkdir(parents=True)
        with step(f"CPU base image (Debian {BASE_SUITE} with its PyTorch)"):
            include = f"--include={','.join(BASE_PACKAGES)}"
            options = ("--variant=minbase", "--format=tar", f"--customize-hook={NO_LIBUV}")
            inside = {**os.environ, "TMPDIR": str(folder)}
            run(
                "mmdebstrap",
                "--quiet",
                *options,
                include,
                BASE_SUITE,
                folder / "root.tar",
                env=inside,
            )
            container = buildah("from", "scratch")
            buildah("add", container, folder / "root.tar", "/")
            wheels(BASE_LIBRARIES, folder / "libraries")
            buildah(
                "copy",
                container,
                folder / "libraries",
                f"/usr/local/lib/python{BASE_PYTHON}/dist-packages",
            )
            buildah("config", "--env", "USE_LIBUV=0", container)
            buildah("commit", "--rm", container, tag)
            remove(folder)
    return tag


def torch_tag() -> str:
    return f"localhost/torch:{digest(*BASE)}"


def torch() -> Path:
    """Archive of the CPU base image: PyTorch, and nothing of this project."""
    tag = torch_tag()
    archive = CACHE / "images" / f"torch-{tag.rpartition(':')[2]}.tar"
    if not archive.exists():
        base_tag = base()
        with step(f"image {tag}"), built_once(archive) as scratch:
            buildah("push", base_tag, f"docker-archive:{scratch}:{tag}")
    return archive


def python() -> Path:
    """Archive of PYTHON_IMAGE: Debian's Python, without torch."""
    archive = CACHE / "images" / f"python-{digest(BASE_SUITE, Path(__file__))}.tar"
    if not archive.exists():
        with step("image of Python"), built_once(archive) as scratch:
            tree = archive.with_name("python-root.tar")
            run("mmdebstrap", "--quiet", "--variant=minbase", "--include=python3", BASE_SUITE, tree)
            container = buildah("from", "scratch")
            buildah("add", container, tree, "/")
            buildah("commit", "--rm", container, f"docker-archive:{scratch}:{PYTHON_IMAGE}")
            tree.unlink()
    return archive


def wheels(requirements: Path, folder: Path) -> None:
    """Unpack pinned packages into a folder, for the Python of the base, not for that of this
    machine.
    """
    machine = os.uname().machine
    platforms = [
        f"--platform=manylinux{version}_{machine}"
        for version in ("2014", "_2_17", "_2_27", "_2_28")
    ]
    run(
        sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, "--no-deps", "--require-hashes",
        "--only-binary=:all:", f"--python-version={BASE_PYTHON}", *platforms, "--requirement", requirements,
    )  # fmt: skip


def worker_tag() -> str:
    """Image reference of the worker; the tag is a hash of its sources."""
    sources = sorted(
        p for p in (REPO / "worker").rglob("*") if p.is_file() and "__pycache__" not in p.parts
    )
    return f"{WORKER_IMAGE}:{digest(*BASE, *sources)}"


def worker() -> Path:
    """Archive of the worker image on the CPU base, built by its own Dockerfile."""
    tag = worker_tag()
    archive = CACHE / "images" / f"gpu-worker-{tag.rpartition(':')[2]}.tar"
    if not archive.exists():
        buildah("rm", "--all")  # containers of a killed build
        base_tag = base()
        with step(f"image {tag}"), built_once(archive) as scratch:
            buildah(
                "bud", "--isolation", "chroot", "--network", "host", "--layers=false",
                "--build-arg", f"BASE_IMAGE={base_tag}", "--tag", tag, REPO / "worker",
            )  # fmt: skip
            buildah("push", tag, f"docker-archive:{scratch}:{tag}")
            buildah("rmi", tag)  # only the archive is kept
        for old in archive.parent.glob("gpu-worker-*.tar"):
            if old != archive:
                old.unlink()
    return archive


def digest(*parts: str | Path) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part.read_bytes() if isinstance(part, Path) else part.encode())
        whole.update(b"\0")
    return whole.hexdigest()[:12]
