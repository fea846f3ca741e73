"""Each program of faults.py ends as its oracle says, on every node."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess

import pytest

from tests.helpers.launchers import Run
from tests.helpers.processes import until
from tests.launch_programs.faults import HEAD, PROGRAMS

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def full_disk(folder):
    """A volume of 1 MiB, which root can make."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no volume can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_verdict_is_the_oracles(start, tmp_path, name):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the launcher would ignore it, too
    fault, run, out = PROGRAMS[name], Run(start, tmp_path, PROGRAMS[name].torch), tmp_path / "out"
    out.mkdir()
    program = run.script(HEAD + fault.text)
    words = shlex.split(fault.command.format(program=program))
    environ = {"NPROC_PER_NODE": fault.each, "OUT": out} | fault.environ
    with full_disk(out / "small") if fault.full_disk else contextlib.nullcontext():
        for node in range(fault.nodes):
            run.pod(
                node,
                fault.nodes,
                "--join-timeout=120",
                *fault.flags.split(),
                program=words,
                **environ,
            )
        if fault.act:
            until(
                lambda: all(pod.output.count("READY") == fault.each for pod in run.pods),
                "the programs run",
            )
            number, pod = signal.Signals[f"SIG{fault.act[0]}"], run.pods[fault.act[1]]
            os.kill(pod.started.process.pid, number)
            if number == signal.SIGKILL:
                run.pods.remove(pod)
        if fault.wanted == "0 done":
            assert set(run.wait()) == {0}, run.output
        else:
            code, cause = fault.wanted.split()
            run.assert_verdict(int(code), cause, *fault.words, within_s=120)
    assert [
        file
        for file in fault.files
        if not (out / file).is_file() or not (out / file).stat().st_size
    ] == []
    assert [words for words in fault.shown if words not in run.output] == [], run.output
