"""Python packages, pinned with hashes: python3 -m hack.deps.venv dev [torch] [train] [fuzz]
[skypilot] ….

`dev`: generator, lint and tests. `torch`, `train`: the worker's unit tests. `trainers`: Lightning,
for its example. `browser`: the tests of pages. `fuzz`: the fuzzer. `skypilot`: the comparison with
SkyPilot. `track`: the tests of experiment trackers. The last two have a hundred packages each and
get separate environments.
"""

from __future__ import annotations

import fcntl
import hashlib
import sys

from hack.paths import CACHE, REPO, main, remove, run, step

VENV = CACHE / "venv"
SKYPILOT = CACHE / "venv-skypilot"
TRACK = CACHE / "venv-track"


def ensure(name: str) -> None:
    """Install requirements/<name>.txt; a stamp, written last, marks a complete installation."""
    locked = REPO / "requirements" / f"{name}.txt"
    digest = hashlib.sha256(locked.read_bytes() + sys.version.encode()).hexdigest()[:12]
    venv = {"skypilot": SKYPILOT, "track": TRACK}.get(name, VENV)
    # track.txt omits requirements of MLflow's server that it does not use; the others omit what is
    # in torch.txt.
    no_deps = ["--no-deps"] if name in ("track", "train", "trainers") else []
    stamp = venv / f".{name}-{digest}"
    if stamp.exists():
        return
    with step(f"Python packages: {name}"):
        if not (venv / ".created").exists():
            remove(venv)
            run(sys.executable, "-m", "venv", venv)
            (venv / ".created").touch()
        run(
            venv / "bin" / "pip",
            "install",
            "--quiet",
            "--require-hashes",
            *no_deps,
            "--requirement",
            locked,
        )
    for old in venv.glob(f".{name}-*"):
        old.unlink()
    stamp.touch()


def entry() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "venv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in sys.argv[1:]:
            ensure(name)
        if "track" in sys.argv[1:]:  # its torch and transformers are those of the main environment
            for where in (VENV / "lib").glob("python*/site-packages"):
                (TRACK / where.relative_to(VENV) / "main.pth").write_text(f"{where}\n")


if __name__ == "__main__":
    main(entry)
