"""start.py, which starts the programs that a chart carries."""

import io
import lzma
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from gpuworker.judgement import registry
from hack.gen import programs
from tests.helpers.chart_programs import mount, write_call

PROGRAM = """
import os, signal, sys, time
words = sys.argv[1:]
if words == ["wait"]:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    if os.fork() == 0 and os.fork():
        os._exit(0)  # its child becomes one of process 1, and ends
    print("ready", flush=True)
    time.sleep(60)
if words == ["killed"]:
    os.kill(os.getpid(), signal.SIGKILL)
print(os.path.basename(sys.argv[0]), __name__, words, os.environ.get("PYTHONPATH"))
sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """A mounted folder whose archive has a program of the test's."""
    modules = io.BytesIO()
    with tarfile.open(fileobj=modules, mode="w") as archive:
        for name in (
            "gpuworker/__init__.py",
            "gpuworker/launch/__init__.py",
            "gpuworker/launch/launcher.py",
        ):
            text = PROGRAM.encode() if name.endswith("launcher.py") else b""
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    entries = {"modules.tar.xz": lzma.compress(modules.getvalue())}
    (tmp_path / "programs.pyz").write_bytes(programs.archive(entries))
    for name in ("ddp-launch", "accept-report"):
        write_call(tmp_path, name)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def start(folder: Path, *words: str, before: tuple[str, ...] = ()) -> subprocess.Popen:
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TMPDIR": str(folder / "tmp"),
    }
    command = [*before, str(folder / "ddp-launch"), *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_the_name_of_the_file_chooses_the_program(folder):
    done = start(folder, "a b", "*")
    assert done.communicate()[0] == "ddp-launch __main__ ['a b', '*'] None\n"
    assert done.returncode == 3


def test_many_at_once_unpack_one_folder(folder):
    running = [start(folder) for _ in range(12)]
    assert {each.communicate()[0] for each in running} == {"ddp-launch __main__ [] None\n"}
    assert len(list((folder / "tmp").iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_named(folder):
    (folder / "tmp").rmdir()
    (folder / "tmp").write_text("no folder")
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TMPDIR": str(folder / "tmp"),
    }
    (folder / "programs.pyz").write_bytes(programs.archive({"modules.tar.xz": b"damaged"}))
    done = subprocess.run(
        [str(folder / "ddp-launch")], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1 and str(folder / "programs.pyz") in done.stderr
    assert "Traceback" not in done.stderr


AS_PROCESS_1 = ("unshare", "--pid", "--fork", "--kill-child")


@pytest.mark.skipif(os.getuid() != 0, reason="a PID namespace needs root")
class TestProcess1:
    def test_a_signal_reaches_the_program_whose_code_it_ends_with(self, folder):
        with start(folder, "wait", before=AS_PROCESS_1) as running:
            assert running.stdout.readline() == "ready\n"
            children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGTERM)  # process 1 in there
            assert running.wait(timeout=20) == 75

    def test_a_program_that_a_signal_ends_has_the_code_of_a_shell(self, folder):
        with start(folder, "killed", before=AS_PROCESS_1) as running:
            assert running.wait(timeout=20) == 128 + signal.SIGKILL


@pytest.mark.parametrize("chart", programs.CHARTS)
def test_every_program_starts_from_its_archive_alone(chart, tmp_path):
    folder = mount(chart, tmp_path / "programs")
    for name in programs.CHARTS[chart]:
        site_packages = (
            [] if name in ("ddp-tests", "train", "train-framework") else ["-S"]
        )  # these need torch
        command = [sys.executable, *site_packages, str(folder / name), "--help"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env={"TMPDIR": str(tmp_path)}
        )
        assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stdout + done.stderr
        assert ("--bad-nodes" in done.stdout) == (name == "ddp-tests"), "a check"
    if "accept-node" in programs.CHARTS[chart]:
        command = [sys.executable, "-S", str(folder / "accept-node"), "--list"]
        listed = subprocess.check_output(command, text=True, env={"TMPDIR": str(tmp_path)})
        assert set(registry.node_checks()) <= set(listed.split())


def test_archives_are_the_same_at_any_time_and_place():
    command = [sys.executable, "-c", "from hack.gen import programs as p; import hashlib; "
               "print([hashlib.sha256(c).hexdigest()"
               " for each in p.CHARTS for _, c in p.files(each)])"]  # fmt: skip
    found = {
        subprocess.run(
            command, env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=True
        ).stdout
        for zone in ("UTC", "Asia/Tokyo")
    }
    assert len(found) == 1
