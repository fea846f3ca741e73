"""What a task prints, and its exit code: neither its agent, a full disk nor the program itself
changes them.
"""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.helpers.processes import PATIENCE_S, descendants

REPO = Path(__file__).parents[2]
WAITS = "until [ -e go ]; do sleep 0.1; done"


@pytest.fixture
def group(group):
    group.write_plan({"a": {}})
    return group


def test_a_task_ends_without_its_agent(group):
    rank = group.start_rank("a-0", f"{WAITS}; exit 7")
    rank.until_output("starts attempt")
    rank.kill_agent()
    rank.touch("go")
    assert rank.wait() == 7


def test_a_program_may_close_its_output(group):
    rank = group.start_rank("a-0", "echo first; exec >&- 2>&-; sleep 1; exit 3")
    assert rank.wait() == 3
    assert re.search(r"\nfirst\n\n\[FATAL\] node=a-0 step=run exit_code=3 ", rank.output())


def test_the_cause_has_a_line_of_its_own(group):
    """Whatever the program printed last. No signal has a number above 64."""
    rank = group.start_rank("a-0", "printf 'no end'; exit 255")
    assert rank.wait() == 255
    assert re.search(
        r"^\[FATAL\] node=a-0 step=run exit_code=255 errors=", rank.output(), re.MULTILINE
    )


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a disk")
def test_a_full_disk_of_the_node_does_not_stop_the_program(group):
    rank = group.new_rank("a-0").publish_name()
    state = rank.root / "state"
    state.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k,mode=777", "tmpfs", state], check=True)
    try:
        rank.start_agent().start_task(
            f"head -c 200000 /dev/zero >{state}/full; echo printed; exit 6"
        )
        assert rank.main.wait(PATIENCE_S) == 6
    finally:
        subprocess.run(["umount", "--lazy", state], check=True)
    assert "\nprinted" in rank.output()


@pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root for a process namespace, as in a container"
)
@pytest.mark.parametrize("stopped", [False, True])
def test_the_way_that_the_page_names_keeps_the_output_on_a_volume(group, tmp_path, stopped):
    page = (REPO / "docs/job-group.md").read_text()
    (example,) = re.findall(r"^ +set -o pipefail\n.*\n", page, re.MULTILINE)
    program = "bash -c 'trap \"echo caught; exit 5\" TERM; echo ran; until [ -e go ]; do sleep 0.1; done; exit 5'"
    run = example.replace("python train.py", program).replace("/kept", str(tmp_path))
    rank = group.start_rank("a-0", run, process_1=True)
    rank.until_output("\nran")
    if stopped:
        os.kill(min(descendants(rank.main.pid)), signal.SIGTERM)
    else:
        rank.touch("go")
    assert rank.wait() == (143 if stopped else 5)
    kept = (tmp_path / "rl-1.p-x.log").read_text()
    assert kept in rank.output() and kept.startswith("ran\n") and ("caught\n" in kept) == stopped
