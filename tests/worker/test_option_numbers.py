"""Options that cannot work are usage errors: "nan" would wait for ever, and a bad port is a
traceback.
"""

import sys

import pytest

from gpuworker.accept import accept_node
from gpuworker.fleet import cli

NODE, SERVE = ["--device", "cpu", "--report-dir"], ["serve", "--run-id", "1"]


@pytest.fixture
def refused(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)

    def assert_refused(main, before: list[str], word: str, named: str = ""):
        monkeypatch.setattr(sys, "argv", ["program", *before, word])
        with pytest.raises(SystemExit) as error:
            main()
        printed = capsys.readouterr().err
        assert error.value.code == 2 and (named or before[-1]) in printed
        assert not list(tmp_path.iterdir())

    return assert_refused


@pytest.mark.parametrize("word", ["nan", "inf", "-5", "0", "many"])
@pytest.mark.parametrize(
    ("main", "before"),
    [
        (accept_node.main, [*NODE, "here", "--burn-in-seconds"]),
        (accept_node.main, [*NODE, "here", "--check-timeout"]),
        (accept_node.main, [*NODE, "here", "--processes"]),
        (cli.main, ["await", "http://127.0.0.1:9", "--timeout"]),
        (cli.main, ["submit", "report.json", "--to", "http://127.0.0.1:9/reports", "--timeout"]),
        (cli.main, [*SERVE, "--interval"]),
    ],
)
def test_a_number_that_cannot_work_is_refused(refused, main, before, word):
    refused(main, before, word)


@pytest.mark.parametrize(
    "word", ["collector:8080", "collector", "//collector", "http://", "http:/c:1", "http://c:x", ""]
)
@pytest.mark.parametrize(
    ("main", "before"), [(cli.main, ["await"]), (cli.main, ["submit", "report.json", "--to"])]
)
def test_an_address_that_cannot_work_is_refused(refused, main, before, word):
    refused(main, before, word, "must be a URL such as http://collector:8080")


@pytest.mark.parametrize("word", ["-1", "65536", "http"])
def test_what_is_no_port_is_refused(refused, word):
    refused(cli.main, [*SERVE, "--port"], word)


def test_a_fault_that_no_chosen_check_finds_is_refused(refused):
    """The node would pass, although a fault is injected."""
    words = [*NODE, "here", "--check", "environment", "--inject"]
    refused(accept_node.main, words, "slow-gpu")
