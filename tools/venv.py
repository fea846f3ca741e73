"""Python packages, pinned with hashes, in one virtual environment: python3 -m tools.venv dev [torch].

`dev` is what the generator, lint and the tests need; `torch` only the worker's unit tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import sys

from tools.paths import CACHE, REPO, main, remove, run, step

VENV = CACHE / "venv"


def ensure(name: str) -> None:
    """Install requirements/<name>.txt; a stamp, written last, says that it is in."""
    locked = REPO / "requirements" / f"{name}.txt"
    digest = hashlib.sha256(locked.read_bytes() + sys.version.encode()).hexdigest()[:12]
    stamp = VENV / f".{name}-{digest}"
    if stamp.exists():
        return
    with step(f"Python packages: {name}"):
        if not (VENV / ".created").exists():
            remove(VENV)
            run(sys.executable, "-m", "venv", VENV)
            (VENV / ".created").touch()
        run(VENV / "bin" / "pip", "install", "--quiet", "--require-hashes", "--requirement", locked)
    for old in VENV.glob(f".{name}-*"):
        old.unlink()
    stamp.touch()


def entry() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "venv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in sys.argv[1:]:
            ensure(name)


if __name__ == "__main__":
    main(entry)
