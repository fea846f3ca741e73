"""Python packages, pinned with hashes, in a virtual environment: python3 -m tools.venv dev [torch] [fuzz] [skypilot].

`dev` is what the generator, lint and the tests need; `torch` only the worker's unit tests, `fuzz` only the fuzzer.
`skypilot` is for the comparison with SkyPilot; its hundred packages get an environment of their own.
"""

from __future__ import annotations

import fcntl
import hashlib
import sys

from tools.paths import CACHE, REPO, main, remove, run, step

VENV = CACHE / "venv"
SKYPILOT = CACHE / "venv-skypilot"


def ensure(name: str) -> None:
    """Install requirements/<name>.txt; a stamp, written last, says that it is in."""
    locked = REPO / "requirements" / f"{name}.txt"
    digest = hashlib.sha256(locked.read_bytes() + sys.version.encode()).hexdigest()[:12]
    venv = SKYPILOT if name == "skypilot" else VENV
    stamp = venv / f".{name}-{digest}"
    if stamp.exists():
        return
    with step(f"Python packages: {name}"):
        if not (venv / ".created").exists():
            remove(venv)
            run(sys.executable, "-m", "venv", venv)
            (venv / ".created").touch()
        run(venv / "bin" / "pip", "install", "--quiet", "--require-hashes", "--requirement", locked)
    for old in venv.glob(f".{name}-*"):
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
