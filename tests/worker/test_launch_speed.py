"""The line about the speed of a run: when it is due, and which ranks it names."""

from __future__ import annotations

from types import SimpleNamespace

from gpuworker.launch.speed import EVERY_S, Speeds


def lines(*steps: dict[str, object]) -> list[dict[str, object] | None]:
    """What is logged at each interval. `steps`: rank -> its steps until then; two ranks a node."""
    speeds, found = Speeds(), []
    for index, known in enumerate(steps):
        nodes = [
            SimpleNamespace(steps={rank: number for rank, number in known.items() if int(rank) // 2 == node})
            for node in range(4)
        ]
        found.append(speeds.line(nodes, 1000 + index * EVERY_S))
        assert speeds.line(nodes, 1000 + index * EVERY_S + 1) is None, "too early"
    return found


def world(steps: int, **others: int) -> dict[str, object]:
    return {str(rank): steps for rank in range(8)} | {name[1:]: number for name, number in others.items()}


def test_step_and_rate_are_those_since_the_last_line():
    assert lines(world(0), world(600), world(900))[1:] == [
        {"step": 600, "steps_per_second": 600 / EVERY_S},
        {"step": 900, "steps_per_second": 300 / EVERY_S},
    ]


def test_ranks_whose_steps_take_over_1_2_times_the_median_are_named():
    first, second = lines(world(100), world(700, _3=595, _6=610))
    assert first is None, "the rates are not known yet"
    assert second["slow_ranks"] == "3"


def test_nothing_is_logged_without_a_step():
    assert lines(world(0), world(0)) == [None, None]
    assert lines(world(500), world(0)) == [None, None], "the program has started again"


def test_what_another_node_makes_up_is_no_number():
    odd = world(0) | {"1": "many", "2": None}
    assert lines(odd, odd | {"0": 300})[1]["step"] == 300
