"""Copy of a task's output on a volume: nothing that the program prints, the volume or the agent does stops the task."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.processes import descendants, until

pytestmark = pytest.mark.slow
ROOT = os.geteuid() == 0
LINES = "i=0; while [ $i -lt {n} ]; do echo line $i; i=$((i + 1)); done"


@pytest.fixture
def group(group, tmp_path):
    group.logs = tmp_path / "logs"
    group.write_plan({"a": {}})
    return group


@pytest.fixture
def small_disk(tmp_path):
    """small_disk(FOLDER) mounts a disk of 100 KiB."""
    if not ROOT:
        pytest.skip("needs root to mount a disk")
    mounted = []

    def mount(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k,mode=777", "tmpfs", folder], check=True)
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", folder], check=True)


def numbered(count: int) -> list[bytes]:
    return [b"line %d" % number for number in range(count)]


def end(rank) -> int:
    """Exit code of the task. The agent ends as a sidecar does, by SIGTERM after the task."""
    code = rank.main.wait(60)
    rank.sidecar.terminate()
    rank.sidecar.wait(30)
    rank.lose()
    return code


def printed(rank) -> list[bytes]:
    """Lines of the task's own log, from the start of the program, without what tee writes between two of its chunks."""
    text = re.sub(rb"tee: [^\n]*\n", b"", (rank.root / "task").read_bytes())
    lines = text.removesuffix(b"\n").split(b"\n")
    return lines[next(i for i, line in enumerate(lines) if b"starts attempt=" in line) :]


def python(code: str) -> str:
    return f"exec {sys.executable} -c '{code}'"


@pytest.mark.parametrize("process_1", [False, pytest.param(True, marks=pytest.mark.skipif(not ROOT, reason="root"))])
def test_a_nul_in_an_unfinished_line_stops_nothing(group, process_1):
    rank = group.new_rank("a-0").publish_name().start_agent()
    rank.start_task(r"printf 'sample: a\0b'; sleep 0.3; echo; " + LINES.format(n=3000), process_1=process_1)
    assert end(rank) == 0
    assert rank.kept_lines() == printed(rank)
    assert rank.kept_lines()[1:] == [b"sample: a\0b", *numbered(3000)]


def test_binary_output_is_kept_byte_for_byte(group, tmp_path):
    data = os.urandom(300_000).replace(b"\n", b"\n\n") + b"end\n"
    (tmp_path / "data").write_bytes(data)
    rank = group.start_rank("a-0", f"cat {tmp_path / 'data'}")
    assert end(rank) == 0
    assert b"\n".join(rank.kept_lines()[1:]) + b"\n" == data


def test_output_without_newlines_costs_constant_memory(group):
    code = 'import sys\nfor i in range(36): sys.stdout.write("\\r" + "x" * (1 << 20) + str(i))'
    rank = group.start_rank("a-0", python(code) + "\n")
    code = rank.main.wait(60)
    status = Path(f"/proc/{rank.sidecar.pid}/status").read_text()
    peak = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    assert code == 0
    assert peak < 60 << 10, f"the agent's memory reached {peak >> 10} MiB"
    assert len(rank.kept_lines()[1]) > 36 << 20
    assert (rank.root / "state/output").stat().st_blocks * 512 < 4 << 20, "what is on the volume was freed"
    rank.lose()


def test_a_full_volume_does_not_stop_the_program_and_is_reported(group, small_disk):
    small_disk(group.logs)
    rank = group.start_rank("a-0", LINES.format(n=3000) + "; sleep 2; exit 5")
    assert end(rank) == 5
    lines = printed(rank)
    assert set(numbered(3000)) <= set(lines)
    (failing,) = (line for line in lines if b"log_copy=failing" in line)
    assert b"No space left on device" in failing and lines.index(failing) < lines.index(b"line 2999") + 3
    (missing,) = (line for line in lines if b"log_copy=incomplete" in line)
    assert 0 < int(missing.partition(b"bytes_missing=")[2].split()[0]) < 100_000
    kept = b"\n".join(rank.kept_lines())  # the last line may be cut
    assert len(kept) > 10_000
    assert b"\n".join(line for line in lines if b"log_copy" not in line).startswith(kept)


@pytest.mark.parametrize("fault", [errno.EIO, errno.ESTALE, 0])
@pytest.mark.parametrize("synced", [True, False])
def test_a_volume_that_fails_for_a_while_loses_and_repeats_nothing(group, fault, synced):
    group.agent_settings = {"SYNC_S": 0 if synced else 100}
    waits = "until [ -e {} ]; do sleep 0.1; done; "
    rank = group.start_rank("a-0", LINES.format(n=300) + f"; {waits.format('go')} echo last; {waits.format('end')}")
    rank.until_output("line 299\n")
    until(lambda: any(b"line 299" in file.read_bytes() for file in group.logs.glob("rl-1/*.log")), "it is copied")
    group.fault.write_text(str(fault))
    rank.touch("go")
    rank.until_output("last\n")
    time.sleep(1)  # so that the copy meets the fault
    group.fault.unlink()
    rank.touch("end")
    assert end(rank) == 0
    assert rank.kept_lines() == [line for line in printed(rank) if b"log_copy" not in line]
    assert b"log_copy=incomplete" not in b"".join(printed(rank))


@pytest.mark.parametrize(("fault", "why"), [(errno.EIO, "Input/output error"), (0, "does not answer")])
def test_a_volume_that_fails_to_the_end_is_reported_twice(group, fault, why):
    group.fault.write_text(str(fault))
    group.agent_settings = {"HANGS_S": 1}
    rank = group.start_rank("a-0", LINES.format(n=3000) + "; sleep 3; exit 4")
    assert rank.main.wait(60) == 4
    lines = [line.encode() for line in rank.output().splitlines() if "log_copy" in line]
    assert [line.split()[2] for line in lines] == [b"log_copy=failing", b"log_copy=incomplete"]
    assert all(why.encode() in line for line in lines)
    total = sum(len(line) + 1 for line in printed(rank) if b"log_copy" not in line)
    assert int(lines[1].partition(b"bytes_missing=")[2].split()[0]) == total
    assert numbered(3000)[-1] in printed(rank)


def test_what_waits_for_a_volume_is_bounded_and_the_rest_counted(group):
    group.agent_settings = {"BACKLOG_BYTES": 4 << 20}
    group.fault.write_text(str(errno.EIO))
    code = "awk 'BEGIN { for (i = 0; i < 200000; i++) printf \"%099d %d\\n\", 0, i }'"
    rank = group.start_rank("a-0", code + "; until [ -e go ]; do sleep 0.1; done")
    rank.until_output(" 199999\n")
    spool = rank.root / "state/output"
    until(lambda: spool.stat().st_blocks * 512 < 5 << 20, "the spool is cut")
    group.fault.unlink()
    until(lambda: list(group.logs.glob("*/*.log")), "the copy goes on")
    rank.touch("go")
    assert end(rank) == 0
    kept = rank.kept_lines()
    (gap,) = (index for index, each in enumerate(kept) if b"log_bytes_lost=" in each)
    lost = int(kept[gap].partition(b"=")[2])
    text = b"".join(each + b"\n" for each in printed(rank) if b"log_copy" not in each)
    before, after = (b"".join(each + b"\n" for each in part) for part in (kept[:gap], kept[gap + 1 :]))
    assert before + after == text[: len(before)] + text[len(before) + lost :]
    assert f"bytes_missing={lost} ".encode() in b"".join(printed(rank))


@pytest.mark.parametrize("process_1", [False, pytest.param(True, marks=pytest.mark.skipif(not ROOT, reason="root"))])
def test_an_agent_that_is_killed_and_starts_again_is_invisible(group, process_1):
    rank = group.new_rank("a-0").publish_name().start_agent()
    waits = "until [ -e go ]; do sleep 0.1; done; "
    rank.start_task(LINES.format(n=2000) + "; " + waits + LINES.format(n=2000) + "; exit 7", process_1=process_1)
    rank.until_output("line 1999\n")
    rank.kill_agent()
    rank.touch("go")
    until(lambda: rank.output().count("line 1999\n") == 2, "the task goes on without its agent")
    rank.start_agent()
    assert end(rank) == 7
    assert rank.kept_lines() == printed(rank)
    assert rank.kept_lines()[1:4001] == numbered(2000) * 2


def test_a_task_ends_without_its_agent(group):
    rank = group.start_rank("a-0", "until [ -e go ]; do sleep 0.1; done; exit 7")
    rank.until_output("starts attempt")
    rank.kill_agent()
    rank.touch("go")
    assert rank.main.wait(60) == 7
    assert "log_copy=unknown" in rank.output()


def test_a_program_may_close_its_output(group):
    rank = group.start_rank("a-0", "echo first; exec >&- 2>&-; sleep 1; exit 3")
    assert end(rank) == 3
    assert b"first" in rank.kept_lines()
    assert any(b"[FATAL]" in line and b"exit_code=3" in line for line in rank.kept_lines())


def test_what_was_printed_before_sigterm_is_kept(group):
    rank = group.start_rank("a-0", "trap 'echo caught; exit 0' TERM; echo ran; while :; do sleep 0.1; done")
    rank.until_output("\nran")
    rank.main.send_signal(signal.SIGTERM)
    assert end(rank) == 143
    assert rank.kept_lines() == printed(rank)
    assert b"caught" in rank.kept_lines()


def test_a_full_disk_of_the_node_does_not_stop_the_program(group, small_disk):
    rank = group.new_rank("a-0").publish_name()
    small_disk(rank.root / "state")
    rank.start_agent().start_task(LINES.format(n=20_000) + "; exit 6")
    assert rank.main.wait(60) == 6
    assert set(numbered(20_000)) <= set(printed(rank))
    assert "log_copy=incomplete" in rank.output()


def name_of(pid: int) -> str:
    with contextlib.suppress(OSError):  # one of the program's own has ended
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_program_that_kills_or_stops_the_copy_keeps_its_exit_code(group, tmp_path, sent):
    """As `kill -9 -1` does in a container, where the program and the copy have the same user."""
    rank = group.start_rank("a-0", f"echo one; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; exit 16")
    rank.until_output("\none")
    (copy,) = (pid for pid in descendants(rank.main.pid) if name_of(pid) == "tee")
    os.kill(copy, sent)
    (tmp_path / "go").touch()
    assert end(rank) == 16
    assert re.search(r"^\[FATAL\] node=a-0 step=run exit_code=16 ", rank.output(), re.MULTILINE)


@pytest.mark.parametrize("number", range(4))
def test_a_program_that_kills_the_copy_as_its_last_act_has_its_cause_in_the_log(group, tmp_path, number):
    """The copy may still be ending, with the line in its pipe."""
    pid = tmp_path / "copy"
    run = f"until [ -s {pid} ]; do sleep 0.1; done; read -r copy <{pid}; kill -s KILL $copy; exit 16"
    rank = group.start_rank("a-0", run)
    (copy,) = until(lambda: [pid for pid in descendants(rank.main.pid) if name_of(pid) == "tee"], "it copies")
    pid.write_text(f"{copy}\n")
    assert end(rank) == 16
    causes = re.findall(r"^\[FATAL\] node=a-0 step=run exit_code=16 ", rank.output(), re.MULTILINE)
    assert len(causes) == 1, rank.output()


def test_the_cause_has_a_line_of_its_own(group):
    """Whatever the program printed last. No signal has a number above 64."""
    rank = group.start_rank("a-0", "printf 'no end'; exit 255")
    assert end(rank) == 255
    assert re.search(r"^\[FATAL\] node=a-0 step=run exit_code=255 errors=", rank.output(), re.MULTILINE)


def test_logs_without_a_barrier(group):
    """interConnection: false; the agent keeps logs only."""
    rank = group.new_rank("a-0").start_agent("--logs-only")
    rank.start_task("echo one; exit 2", GPU_CHARTS_AGENT="")
    assert end(rank) == 2
    assert b"one" in rank.kept_lines()
    assert "log_copy" not in rank.output()
