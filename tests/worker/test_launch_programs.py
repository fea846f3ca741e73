"""Healthy programs cannot tell ddp-launch from Python: files, exit codes, output and what they see of themselves."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuworker.runtime import machine
from tests.helpers.processes import SOURCE, free_port
from tests.launch_programs.healthy import PROGRAMS, WITH_TORCH, Program

pytestmark = pytest.mark.slow

LAUNCH = [sys.executable, "-m", "gpuworker.launch.launcher", "--nproc-per-node=1"]
# Of the launcher's own lines, which are at the beginning of a line or behind a program's unfinished one.
TAGS = ("[ENV]", "[DDP]", "[STEP]", "[DONE]", "[FATAL]")
# As ddp-launch sets them; both sides have the same ones, whose values differ.
RANK = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
    "ROLE_RANK": "0", "ROLE_WORLD_SIZE": "1", "ROLE_NAME": "default",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
    "ATTEMPT": "0", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1", "PYTHONPATH": "",
    **{f"TORCHELASTIC_{name}": "" for name in ("RESTART_COUNT", "MAX_RESTARTS", "RUN_ID",
                                               "USE_AGENT_STORE", "ERROR_FILE")},
    **{f"TORCH_{name}": "" for name in ("NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "NCCL_DUMP_ON_TIMEOUT",
                                        "NCCL_ASYNC_ERROR_HANDLING", "FR_BUFFER_SIZE", "FR_DUMP_TEMP_FILE")},
}  # fmt: skip
if re.match(r"2\.\d\.|2\.10", machine.torch_version()):  # its names of the same settings
    RANK |= {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "", "TORCH_NCCL_TRACE_BUFFER_SIZE": ""}


def put(program: Program, folder: Path) -> None:
    for name, text in program.files.items():
        name, _, target = name.partition(" -> ")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if target:
            path.symlink_to(target)
        else:
            path.write_text(text.replace("{python}", f"{sys.executable} -u"))


def clean() -> dict[str, str]:
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER")
    return {name: os.environ[name] for name in kept if name in os.environ}


def run(command: list[str], folder: Path, environ: dict[str, str]) -> subprocess.CompletedProcess:
    encoded = [os.fsencode(word) for word in command]
    return subprocess.run(
        encoded, cwd=folder, env=environ, input=b"given", capture_output=True, timeout=120, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


def own_output(data: bytes) -> bytes:
    """A rank's own output, without the launcher's lines and the newline behind an unfinished one."""
    lines = data.splitlines(keepends=True)
    return b"".join(
        line for line in lines if not line.startswith(tuple(tag.encode() for tag in TAGS))
    ).removesuffix(b"\n")


def files(out: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes().replace(str(out.parent).encode(), b"FOLDER")
        for path in sorted(out.iterdir())
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_cannot_tell_the_difference(name, tmp_path):
    program, seen = PROGRAMS[name], []
    for side in ("python", "launch"):
        folder = tmp_path / side / "x"
        out = folder / "out"
        out.mkdir(parents=True)
        put(program, folder)
        words = [word.replace("{out}", str(out)) for word in shlex.split(program.command)]
        more = {key: text.replace("{folder}", str(folder)) for key, text in program.environ.items()}
        if side == "python":
            command = words[1:] if words[0] == "--no-python" else [sys.executable, "-u", *words]
            environ = clean() | RANK | more
        else:
            command, environ = [*LAUNCH, f"--master-port={free_port(2)}", *words], clean() | more
        environ["PYTHONPATH"] = ":".join(filter(None, [str(SOURCE), more.get("PYTHONPATH", "")]))
        done = run(command, folder, environ)
        found = files(out)
        streams = [own_output(done.stdout), own_output(done.stderr)]
        streams = [text.replace(str(folder.parent).encode(), b"FOLDER") for text in streams]
        streams = [re.sub(rb"0x[0-9a-f]+", b"ADDRESS", text) for text in streams]
        seen.append((found, streams, done.returncode))
    (files_1, output_1, code_1), (files_2, output_2, code_2) = seen
    assert code_1 == program.code
    assert code_2 == (0 if code_1 == 0 else 1)
    assert {k: v.decode(errors="replace") for k, v in files_2.items()} == {
        k: v.decode(errors="replace").replace("/python/x", "/launch/x") for k, v in files_1.items()
    }
    assert output_2 == [text.replace(b"/python/x", b"/launch/x") for text in output_1]


@pytest.mark.parametrize("name", WITH_TORCH)
def test_a_program_with_torch_does_the_same(name, tmp_path):
    results = {}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for side, command in (
        ("torchrun", torchrun),
        ("launch", [*LAUNCH, "--nproc-per-node=2", "--standalone"]),
    ):
        folder = tmp_path / side
        folder.mkdir()
        (folder / "train.py").write_text(WITH_TORCH[name])
        environ = clean() | {
            "PYTHONPATH": str(SOURCE),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        done = run([*command, "train.py", str(folder)], folder, environ)
        assert done.returncode == 0, done.stdout + done.stderr
        written = {path.name: path.read_bytes() for path in folder.glob("*.pt")}
        results[side] = (written, sorted(own_output(done.stdout).splitlines()))
    assert results["torchrun"] == results["launch"]
