"""A slice of the generated launches in tests/helpers/launch_family.py.

`make launch-family` runs 500 of each kind, and 50 with torch.
"""

from __future__ import annotations

import pytest

from tests.helpers.launch_family import Case, check, generate, seeds

pytestmark = pytest.mark.slow
FIRST, RUNS = seeds()
GLOO_RUNS = max(1, RUNS // 10)  # a launch with torch takes ten times as long


@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
@pytest.mark.parametrize("healthy", [False, True], ids=["fault", "healthy"])
def test_the_verdict_is_the_oracle_s(start, tmp_path, healthy, seed):
    assert_oracle(start, tmp_path, generate(seed, healthy))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + GLOO_RUNS))
@pytest.mark.parametrize("healthy", [False, True], ids=["fault", "healthy"])
def test_the_verdict_with_torch_is_the_oracle_s(start, tmp_path, healthy, seed):
    assert_oracle(start, tmp_path, generate(seed, healthy, gloo=True))


def assert_oracle(start, folder, case: Case) -> None:
    problems = check(start, folder, case)
    assert not problems, "\n".join([case.name, *problems])
