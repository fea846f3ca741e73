"""A slice of the generated launches in tests/helpers/launch_family.py; `make launch-family` runs 500 of each kind."""

from __future__ import annotations

import pytest

from tests.helpers.launch_family import check, generate, seeds

pytestmark = pytest.mark.slow
FIRST, RUNS = seeds()


@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
@pytest.mark.parametrize("healthy", [False, True], ids=["fault", "healthy"])
def test_the_verdict_is_the_oracle_s(start, tmp_path, healthy, seed):
    case = generate(seed, healthy)
    problems = check(start, tmp_path, case)
    assert not problems, "\n".join([case.name, *problems])
