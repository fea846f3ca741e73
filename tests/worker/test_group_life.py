"""A running group of real processes: start order, end, failures, logs."""

import os
import signal
import time

import pytest

from tests.helpers.group_agents import codes
from tests.helpers.processes import PATIENCE_S, until

pytestmark = pytest.mark.slow
WAITS = "until [ -e open ]; do sleep 0.1; done"
CATCHES = "trap 'echo caught; exit 0' TERM; echo ran; while :; do sleep 0.1; done"


def test_a_task_waits_until_another_has_started(group):
    group.write_plan({"buffer": {}, "trainer": {"dependsOn": {"buffer": "started"}}})
    trainer = group.start_rank("trainer-0", "echo ran")
    buffer = group.start_rank("buffer-0", "sleep 600", setup=WAITS)
    buffer.until_output("starts attempt")
    time.sleep(2)  # a trainer that does not wait would run by now
    assert "\nran" not in trainer.output()
    buffer.touch("open")
    trainer.until_output("\nran")


PAIR = {"numNodes": 2}


def pair(group, first: str, second: str, run: str = "echo ran; sleep 600", **settings):
    """Ranks of one task with these setups."""
    group.write_plan({"a": PAIR}, workload="jobs")
    more = {"NNODES": 2, "GPU_CHARTS_IN_PLACE": "", **settings}
    return [
        group.start_rank(f"a-{n}", run, setup=setup, **more)
        for n, setup in enumerate((first, second))
    ]


def test_no_rank_of_a_task_runs_before_setup_has_succeeded_on_all(group):
    quick, slow = pair(group, "true", WAITS)
    quick.until_output("waits for that of the other ranks")
    time.sleep(2)  # a rank that does not wait would run by now
    assert "\nran" not in quick.output()
    slow.touch("open")
    for rank in (quick, slow):
        rank.until_output("\nran")
    slow.lose()  # its pod is replaced, and what runs goes on
    other = group.start_rank("a-1", "echo ran", setup="true", NNODES=2, GPU_CHARTS_IN_PLACE="")
    assert other.wait() == 0 and "\nran" in other.output()
    assert quick.main.poll() is None


def test_a_setup_that_fails_ends_the_ranks_that_wait_for_it(group):
    quick, failed = pair(group, "true", f"{WAITS}; exit 6")
    quick.until_output("waits for that of the other ranks")
    failed.touch("open")
    assert failed.wait() == 6
    assert quick.wait() == 1 and "\nran" not in quick.output()
    assert "step=setup" in quick.output() or "failed a-1 6" in quick.output()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_rank_that_waits_for_setup_survives_its_agent_and_is_stopped_by_sigterm(group, restarts):
    quick, slow = pair(group, "true", WAITS)
    quick.until_output("waits for that of the other ranks")
    if restarts:
        quick.kill_agent()
        quick.start_agent()
        slow.touch("open")
        quick.until_output("\nran")
    else:
        quick.main.send_signal(signal.SIGTERM)
        assert quick.wait() == 143 and "\nran" not in quick.output()


def test_a_task_waits_until_all_ranks_of_another_are_done(group):
    group.write_plan({"data": {"numNodes": 2}, "trainer": {"dependsOn": {"data": "done"}}})
    trainer = group.start_rank("trainer-0", "echo ran")
    quick, slow = (
        group.start_rank("data-0"),
        group.start_rank("data-1", WAITS),
    )
    assert quick.wait() == 0
    time.sleep(2)  # a trainer that does not wait would run by now
    assert "\nran" not in trainer.output()
    slow.touch("open")
    assert (slow.wait(), trainer.wait()) == (0, 0)


def test_a_task_is_not_started_when_what_it_waits_for_has_failed(group):
    group.write_plan({"data": {}, "trainer": {"dependsOn": {"data": "done"}}}, stop=False)
    trainer = group.start_rank("trainer-0", "echo ran")
    group.start_rank("data-0", "exit 3")
    assert trainer.wait() == 1
    assert "not started: failed data-0 3" in trainer.output()
    assert "\nran" not in trainer.output()


AUXILIARY = {"buffer": {"primary": False}, "trainer": {"numNodes": 2}}


def test_an_auxiliary_task_ends_after_its_delay_when_the_primaries_have_succeeded(group):
    group.write_plan(AUXILIARY, workload="jobs")
    buffer = group.start_rank("buffer-0", CATCHES, GPU_CHARTS_DELAY_S=3)
    trainers = [group.start_rank(host, "sleep 1") for host in ("trainer-0", "trainer-1")]
    assert codes(*trainers) == [0, 0]
    start = time.monotonic()
    buffer.until_output("\ncaught")
    assert time.monotonic() - start > 2
    assert buffer.wait() == 0
    assert "ended with the group" in buffer.output()


def test_an_auxiliary_task_ends_without_delay_when_a_primary_has_failed(group):
    group.write_plan(AUXILIARY, workload="jobs")
    buffer = group.start_rank("buffer-0", CATCHES, GPU_CHARTS_DELAY_S=60)
    waits = f"{WAITS}; exit 5"
    trainers = [group.start_rank("trainer-0", waits), group.start_rank("trainer-1", CATCHES)]
    for rank in (buffer, trainers[1]):
        rank.until_output("\nran")
    trainers[0].until_output("starts attempt")
    trainers[0].touch("open")
    assert trainers[0].wait() == 5
    assert (trainers[1].wait(), buffer.wait()) == (1, 1)
    for rank in (trainers[1], buffer):
        assert "\ncaught" in rank.output()
        assert "stopped: failed trainer-0 5" in rank.output()


def test_a_failed_auxiliary_task_does_not_end_the_group(group):
    group.write_plan(AUXILIARY)
    trainers = [group.start_rank(host, "sleep 4; echo ran") for host in ("trainer-0", "trainer-1")]
    buffer = group.start_rank("buffer-0", "exit 9", GPU_CHARTS_MAY_FAIL="yes")
    assert buffer.wait() == 0
    assert "step=run exit_code=9" in buffer.output()
    assert "the group goes on without this auxiliary task" in buffer.output()
    assert codes(*trainers) == [0, 0]


@pytest.mark.parametrize("others_end_first", [False, True])
def test_a_failed_task_waits_for_the_others_and_then_fails(group, others_end_first):
    group.write_plan({"a": {}, "b": {}}, stop=False)
    failed = group.start_rank("a-0", f"{WAITS}; exit 4", GPU_CHARTS_END_LAST="yes")
    good = group.start_rank("b-0", WAITS)
    if not others_end_first:
        failed.touch("open")
        failed.until_output("waits for the others")
        assert failed.main.poll() is None
    good.touch("open")
    assert good.wait() == 0
    failed.touch("open")
    assert failed.wait() == 4


@pytest.mark.parametrize("pod_ends", [False, True])
def test_a_failure_reaches_the_others_although_the_network_was_away(group, pod_ends):
    """The kubelet ends the agent of a pod whose task has ended."""
    group.write_plan({"a": {}, "b": {}}, workload="jobs")
    failed = group.start_rank("a-0", f"{WAITS}; exit 5")
    other = group.start_rank("b-0", "sleep 30")
    other.until_output("starts attempt")
    names = group.names.read_text()
    group.names.write_text("")
    failed.touch("open")
    assert failed.main.wait(PATIENCE_S) == 5
    if pod_ends:
        failed.sidecar.terminate()
    time.sleep(3)
    group.names.write_text(names)
    assert other.wait() == 1
    assert "stopped: failed a-0 5" in other.output()
    if not pod_ends:
        until(
            lambda: " end=" in failed.output("agent"), "the group has ended for the first rank, too"
        )
        assert 'end="failed a-0 5"' in failed.output("agent"), "it failed by itself, and first"
    else:
        assert failed.sidecar.wait(10) == 0


@pytest.mark.parametrize(("code", "attempt", "ends"), [(29, "7", 29), (5, "1", 5), (5, "2", 0)])
def test_an_auxiliary_task_of_several_nodes_may_restart_the_group(group, code, attempt, ends):
    group.write_plan({"a": {"primary": False}, "b": {}})
    group.start_rank("b-0", "sleep 600", attempt=attempt)
    settings = {
        "GPU_CHARTS_MAY_FAIL": "yes",
        "GPU_CHARTS_IN_PLACE": "",
        "GPU_CHARTS_RECOVER_CODES": "29",
        "GPU_CHARTS_MAX_RESTARTS": 2,
    }
    rank = group.start_rank("a-0", f"exit {code}", attempt=attempt, **settings)
    assert rank.wait() == ends


@pytest.mark.parametrize("step", ["setup", "run"])
def test_sigterm_reaches_the_program_and_the_pod_does_not_count_as_failed(group, step):
    group.write_plan({"a": {}})
    rank = group.start_rank("a-0", **{"run": "echo no", step: CATCHES})
    rank.until_output("\nran")
    rank.main.send_signal(signal.SIGTERM)
    assert rank.wait() == 143
    assert "\ncaught" in rank.output()
    assert "stopped step=" in rank.output()


SLOW_START = """
set -T
before() { if [ "$BASH_COMMAND" = 'wait_for $!' ]; then touch "$GPU_CHARTS_ROOT/forked"; sleep 1; fi; }
trap before DEBUG
"""


@pytest.mark.parametrize("agent", ["", "yes"])
def test_sigterm_between_the_start_of_the_program_and_the_wait_for_it(group, agent):
    group.write_plan({"a": {}})
    rank = group.new_rank("a-0").publish_name().start_agent()
    (rank.root / "slow").write_text(SLOW_START)
    rank.start_task(CATCHES, shell="bash", BASH_ENV=rank.root / "slow", GPU_CHARTS_AGENT=agent)
    rank.until_output("\nran")
    until((rank.root / "forked").exists, "the shell has not begun to wait")
    rank.main.send_signal(signal.SIGTERM)
    start = time.monotonic()
    assert rank.wait() == 143
    assert time.monotonic() - start < 15, "not after the grace period"
    assert "\ncaught" in rank.output()


def test_sigterm_before_the_program_ends_the_rank_without_starting_it(group):
    group.write_plan({"a": {}})
    rank = group.new_rank("a-0").publish_name().start_agent()
    files = f"0644 key\n{rank.root / 'copy'}\n"
    (rank.root / "files").mkdir()
    os.mkfifo(rank.root / "files/key")
    rank.start_task(setup="echo ran", files=files)
    with (rank.root / "files/key").open(
        "w"
    ):  # the copy of the file has begun, and waits for its end
        rank.main.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    assert rank.wait() == 143
    assert "\nran" not in rank.output()


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace_period(group):
    group.write_plan({"a": {}})
    ignores = CATCHES.replace("'echo caught; exit 0'", "''")
    rank = group.start_rank("a-0", ignores, GPU_CHARTS_GRACE_S=2)
    rank.until_output("\nran")
    rank.main.send_signal(signal.SIGTERM)
    assert rank.wait() == 143


def test_sigterm_at_the_barrier_ends_the_rank_as_stopped(group):
    group.write_plan({"a": {}, "b": {}})
    rank = group.start_rank("a-0")
    rank.until_output("waits for the group")
    history = rank.root / "state/events.sent"
    until(lambda: history.exists() and "joined" in history.read_text(), "the task has joined")
    rank.main.send_signal(signal.SIGTERM)
    assert rank.wait() == 143
