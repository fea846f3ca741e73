"""Golden files: the wording that users read, one file per package, compared as a whole.

UPDATE_GOLDEN=1 pytest …      write what the code prints now; review the difference before you commit it
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "golden"


def check(name: str, text: str) -> None:
    """Compare `text` with tests/golden/`name`."""
    path = FOLDER / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{path} is missing: run the test with UPDATE_GOLDEN=1 and review the file"
    assert text == path.read_text(), f"the wording differs from {path}: review it, then run with UPDATE_GOLDEN=1"
