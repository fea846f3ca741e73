"""Log lines: every fact is on the line of its tag, whatever it contains."""

import os

import pytest

from gpuworker.runtime.log import log, write_termination_message


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        (True, "true"),
        (3, "3"),
        (1234.56789, "1235"),
        ("word", "word"),
        ("two words", '"two words"'),
        ("CUDA error: lost\nset X to see more", r'"CUDA error: lost\nset X to see more"'),
        ('no module "x"', r'"no module \"x\""'),
        ("run-0\x1b[2J", r'"run-0\u001b[2J"'),
        ("run-0\x9b2J", r'"run-0\u009b2J"'),
    ],
)
def test_a_fact_with_spaces_quotes_or_newlines_is_quoted_on_one_line(
    capsys, monkeypatch, fact, text
):
    monkeypatch.setenv("NODE_RANK", "7")
    log("RESULT", fact=fact, last=1)
    assert capsys.readouterr().out == f"[RESULT] node=7 fact={text} last=1\n"


def test_the_node_is_the_node_rank_or_else_the_name_of_the_node(capsys, monkeypatch):
    monkeypatch.delenv("NODE_RANK", raising=False)
    monkeypatch.setenv("NODE_NAME", "gpu-12")
    log("DONE")
    assert capsys.readouterr().out == "[DONE] node=gpu-12\n"


def test_a_termination_log_that_is_a_pipe_holds_nobody(monkeypatch, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "none"):
        monkeypatch.setenv("TERMINATION_LOG", str(path))
        write_termination_message("saved")
    assert not (tmp_path / "none").exists()


def test_a_full_disk_costs_the_termination_message_and_not_the_exit_code(monkeypatch):
    monkeypatch.setenv("TERMINATION_LOG", "/dev/full")
    write_termination_message("saved")
