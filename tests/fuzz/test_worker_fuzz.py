"""What the worker reads from other pods and programs holds its invariants for any bytes; FUZZ_SECONDS in total."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
CORPUS = Path(__file__).with_name("corpus_worker")
TARGETS = ("launch", "group", "reports")
SECONDS = max(1, int(os.environ.get("FUZZ_SECONDS", "20")) // len(TARGETS))


def unpack(target: str, folder: Path) -> None:
    """Write the inputs of corpus_worker/TARGET.json, one file each. A letter stands for the byte of its number."""
    folder.mkdir()
    for number, text in enumerate(json.loads((CORPUS / f"{target}.json").read_text())):
        (folder / str(number)).write_bytes(text.encode("latin-1"))


@pytest.mark.parametrize("target", TARGETS)
def test_coverage_guided_fuzzing_finds_no_failure(target, tmp_path) -> None:
    (tmp_path / "grown").mkdir()
    unpack(target, tmp_path / "corpus")
    options = [f"-max_total_time={SECONDS}", "-max_len=4000", "-timeout=10", "-print_final_stats=1"]
    command = [sys.executable, "-m", "tests.fuzz.worker_harness", target, *options, f"-artifact_prefix={tmp_path}/"]
    command += [str(tmp_path / "grown"), str(tmp_path / "corpus")]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, errors="replace", timeout=SECONDS + 120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    executed = int(done.stderr.partition("stat::number_of_executed_units:")[2].split()[0])
    print(f"{executed} inputs")
    assert executed > 20  # on a machine with much other load, too; each starts from the corpus
