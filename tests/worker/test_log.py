"""Log lines: every fact is on the line of its tag, whatever it contains."""

import pytest

from gpuworker.runtime.log import log


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
    ],
)
def test_a_fact_with_spaces_quotes_or_newlines_is_quoted_on_one_line(capsys, monkeypatch, fact, text):
    monkeypatch.setenv("NODE_RANK", "7")
    log("RESULT", fact=fact, last=1)
    assert capsys.readouterr().out == f"[RESULT] node=7 fact={text} last=1\n"


def test_the_node_is_the_node_rank_or_else_the_name_of_the_node(capsys, monkeypatch):
    monkeypatch.delenv("NODE_RANK", raising=False)
    monkeypatch.setenv("NODE_NAME", "gpu-12")
    log("DONE")
    assert capsys.readouterr().out == "[DONE] node=gpu-12\n"
