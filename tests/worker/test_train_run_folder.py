"""What a start and a save leave in the folder of a run: files of users, damaged checkpoints, links."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from gpuworker.train.checkpoint import Checkpointer
from gpuworker.train.checkpoint_files import MANIFEST
from tests.helpers.processes import environment
from tests.worker.test_train_checkpoint import CORRUPTIONS, cut_manifest, flip_byte, make_checkpointer, save, write


@pytest.mark.parametrize("name", ["epoch-0001-step-00000005.good", "epoch-0001-hf", "epoch-notes", "epoch-0001-copy"])
def test_what_a_user_puts_into_the_folder_is_neither_resumed_nor_removed(tmp_path, name):
    made = make_checkpointer(tmp_path / "run")
    shutil.copytree(made.folder / "epoch-0001-step-00000010", made.folder / name)
    assert made.load_newest().folder.name == "epoch-0001-step-00000010"
    for step in (15, 20, 25, 30):
        save(made, step)
        made.remove_old()
    assert (made.folder / name / MANIFEST).is_file()


@pytest.mark.parametrize("corrupt", [flip_byte, cut_manifest, CORRUPTIONS["no manifest"][0]])
def test_a_damaged_checkpoint_is_kept_beside_those_of_the_run(tmp_path, capfd, corrupt):
    checkpointer = make_checkpointer(tmp_path / "run")
    corrupt(checkpointer.folder / "epoch-0001-step-00000010")
    found = checkpointer.load_newest()
    assert found.folder.name == "epoch-0001-step-00000005"
    checkpointer.resume_from(found)
    for step in (10, 15, 20, 25):
        save(checkpointer, step)
        checkpointer.remove_old()
    (kept,) = checkpointer.folder.glob("damaged-epoch-0001-step-00000010-*")
    assert (kept / "rank-0/model.safetensors").stat().st_size == 5000 and kept.name in capfd.readouterr().out


@pytest.mark.parametrize("best", [True, False])
def test_the_links_are_repaired_at_the_next_start(tmp_path, best):
    checkpointer = make_checkpointer(tmp_path / "run")
    name = "epoch-0001-step-00000015"
    partial = checkpointer.begin(name)
    write(partial)
    checkpointer.commit(partial, name, (15, 0), {"best": best})
    for link in ("latest", "best"):  # as a kill leaves them that comes before they are set
        checkpointer.link(link, "epoch-0001-step-00000010")
    checkpointer.resume_from(checkpointer.load_newest())
    assert checkpointer.linked_name("latest") == name
    assert checkpointer.linked_name("best") == (name if best else "epoch-0001-step-00000010")


def test_a_link_in_place_of_a_checkpoint_is_removed_and_not_what_it_names(tmp_path):
    checkpointer = make_checkpointer(tmp_path / "run")
    save(Checkpointer(tmp_path / "other", keep=1), 1)
    link = checkpointer.folder / "epoch-0001-step-00000001"
    link.symlink_to(tmp_path / "other" / link.name)
    save(checkpointer, 15)
    checkpointer.remove_old()
    assert not link.is_symlink() and not list(checkpointer.folder.glob(".old-*"))
    assert (tmp_path / "other" / link.name / MANIFEST).is_file()


def test_a_volume_that_takes_a_part_of_a_file_is_named(tmp_path):
    """As with a quota, or a limit of the size of files: a single write ends early, without an error."""
    probe = (
        "import sys; from pathlib import Path; from gpuworker.train import volume; volume.probe(Path(sys.argv[1]), 0)"
    )
    limited = ["prlimit", "--fsize=600000", sys.executable, "-c", probe, tmp_path]
    done = subprocess.run(limited, env=environment(), capture_output=True, text=True)
    assert done.returncode == 1 and "OSError: [Errno 27] File too large" in done.stderr
