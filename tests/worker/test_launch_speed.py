"""The line about the speed of a run: when it is due, and which ranks it names."""

from __future__ import annotations

from gpuworker.launch.speed import EVERY_S, Speeds


def lines(*steps: list[int]) -> list[dict[str, object] | None]:
    """What is logged at each interval. `steps`: of each rank until then."""
    speeds, found = Speeds(), []
    for index, known in enumerate(steps):
        found.append(speeds.line(known, 1000 + index * EVERY_S))
        assert speeds.line(known, 1000 + index * EVERY_S + 1) is None, "too early"
    return found


def world(steps: int, others: dict[int, int] | None = None) -> list[int]:
    return [(others or {}).get(rank, steps) for rank in range(8)]


def test_step_and_rate_are_those_since_the_last_line():
    assert lines(world(0), world(600), world(900))[1:] == [
        {"step": 600, "steps_per_second": 600 / EVERY_S},
        {"step": 900, "steps_per_second": 300 / EVERY_S},
    ]


def test_ranks_whose_steps_take_over_1_2_times_the_median_are_named():
    first, second = lines(world(100), world(700, {3: 595, 6: 610}))
    assert first is None, "the rates are not known yet"
    assert second["slow_ranks"] == "3"


def test_nothing_is_logged_without_a_step():
    assert lines(world(0), world(0)) == [None, None]
    assert lines(world(500), world(0)) == [None, None], "the program has started again"


def test_nothing_is_logged_before_all_nodes_have_told():
    assert lines(world(0)[:4], world(100)) == [None, None]
