"""Record of a token file: the sizes and checksums of what it consists of.

A file that was cut, or zeroed by a power failure, would be trained on without an error. The ranks of a node read it
whole at the start anyway; here each of them checks a share of its blocks.
"""

from __future__ import annotations

import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RECORD = "record.json"
FILES = ("tokens", "ends")
BLOCK_BYTES = 1 << 24
THREADS = 8


def write(folder: Path) -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        files = {}
        for name in FILES:
            path = folder / name
            checksums = list(threads.map(lambda number, path=path: checksum(path, number), range(blocks(path))))
            files[name] = {"size": path.stat().st_size, "crc32": checksums}
    (folder / RECORD).write_text(json.dumps(files))


def problem(folder: Path, part: int, parts: int) -> str:
    """What is wrong with a token file, or an empty string. All `parts` together check all of its blocks."""
    try:
        recorded = json.loads((folder / RECORD).read_text())
        for name in FILES:
            path, size, checksums = folder / name, recorded[name]["size"], recorded[name]["crc32"]
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes, not {size}"
            for number in range(part, len(checksums), parts):
                if checksum(path, number) != checksums[number]:
                    return f"{name} differs from its checksum at byte {number * BLOCK_BYTES} or after"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (ValueError, LookupError, TypeError) as error:
        return f"{RECORD} cannot be read: {error}"
    return ""


def blocks(path: Path) -> int:
    return -(-path.stat().st_size // BLOCK_BYTES)


def checksum(path: Path, block: int) -> int:
    with path.open("rb") as file:
        file.seek(block * BLOCK_BYTES)
        return zlib.crc32(file.read(BLOCK_BYTES))
