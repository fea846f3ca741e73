"""The state that an agent keeps for its restart, when its file is damaged or hostile."""

from __future__ import annotations

import pytest

from gpuworker.group.group_state import GroupPlan, GroupState, Task
from gpuworker.group.rank_server import RankServer
from tests.helpers.hostile_files import KINDS, plant

PLAN = GroupPlan("rl", 60.0, True, True, {"a": Task("a", ("a-0", "a-1"))})


def started(folder) -> RankServer:
    return RankServer(PLAN, "a-0", folder, "run", "0")


def test_the_state_survives_a_restart_of_the_agent(tmp_path):
    state = GroupState(released=True, started=["a-0"], done=["a-1"], failed={"a-0": 3})
    started(tmp_path).merge(state)
    assert started(tmp_path).state == state


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_be_read_is_no_state_and_is_replaced(tmp_path, kind):
    folder = tmp_path / "state"
    folder.mkdir()
    (tmp_path / "outside").write_text("not of the agent\n")
    plant(folder / "a-0.json", kind)
    assert started(folder).state == GroupState()
    started(folder).merge(GroupState(released=True))
    assert (tmp_path / "outside").read_text() == "not of the agent\n"
    assert started(folder).state.released == (kind != "folder"), "nothing of the task is removed with its content"
