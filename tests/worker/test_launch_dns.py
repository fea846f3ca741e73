"""ddp-launch and DNS: names that do not resolve, that resolve late, and that belong to another pod."""

from __future__ import annotations

import re

import pytest

from tests.helpers.launchers import Run

pytestmark = pytest.mark.slow


@pytest.fixture
def run(start, tmp_path):
    return Run(start, tmp_path)


def test_a_name_that_resolves_late_is_retried(run):
    for node in range(2):
        run.pod(node, 2, "--join-timeout=20", FAULT_DNS_S=3)
    assert run.wait() == [0, 0], run.output


def test_ranks_get_an_address_so_that_the_run_needs_no_dns(run):
    run.pod(0, 1, program=[run.script("import os; print(os.environ['MASTER_ADDR'])")])
    assert run.wait() == [0], run.output
    assert "127.0.0.1" in run.pods[0].output.splitlines()


def test_node_0_waits_while_dns_returns_the_previous_pods_address(run):
    """It sends nothing to that address."""
    run.pod(0, 2, "--join-timeout=20", FAULT_STALE="192.0.2.1:3")
    run.pod(1, 2, "--join-timeout=20")
    assert run.wait() == [0, 0], run.output
    assert re.search(r"phase=resolve waiting_for=.*192\.0\.2\.1", run.pods[0].output)


def test_a_node_that_cannot_connect_resolves_the_name_again(run):
    """An earlier look-up may have returned the address of a deleted pod."""
    run.pod(0, 2)
    run.pod(1, 2, FAULT_STALE="127.0.0.9:3")
    assert run.wait() == [0, 0], run.output
